"""The operator removes its finalizer from an object that others write at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millstream_harness.in_memory import MemoryKube, stored
from millstream_harness.manifests import topic
from millstream_operator.kubernetes.client import KubeError, Manifest
from millstream_operator.state.status import ATTEMPTS, FINALIZER, release_finalizer

HELD = stored(topic("t"), finalizers=["others", FINALIZER])


class Contested(MemoryKube):
    """Rejects the first changes, each with a conflict."""

    def __init__(self, conflicts: int, status: int = 409) -> None:
        super().__init__(HELD)
        self.left, self.status = conflicts, status

    def merge(self, live: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
        if self.left:
            self.left -= 1
            raise KubeError(self.status, "Conflict", "it has changed")
        return super().merge(live, change)

    def finalizers(self) -> list[str]:
        found: list[str] = self.objects["Topic", "t"]["metadata"]["finalizers"]
        return found


@pytest.mark.parametrize("conflicts", [0, 1, ATTEMPTS - 1])
def test_a_change_meanwhile_is_looked_at(conflicts: int) -> None:
    kube = Contested(conflicts)
    assert release_finalizer(kube, HELD)
    assert kube.finalizers() == ["others"]
    assert not release_finalizer(kube, kube.objects["Topic", "t"]), "it is off"


def test_changes_without_end_are_an_error() -> None:
    kube = Contested(ATTEMPTS)
    with pytest.raises(KubeError, match="it has changed"):
        release_finalizer(kube, HELD)
    assert kube.finalizers() == ["others", FINALIZER]


def test_an_object_that_is_gone_needs_nothing() -> None:
    assert not release_finalizer(Contested(1, status=404), HELD)


def test_another_refusal_is_an_error() -> None:
    with pytest.raises(KubeError):
        release_finalizer(Contested(1, status=403), HELD)
