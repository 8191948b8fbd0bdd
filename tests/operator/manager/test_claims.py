"""Which release acts in a namespace, when another one held its Lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream_harness.in_memory import NOW, MemoryKube
from millstream_operator.kubernetes.client import KubeError, Manifest
from millstream_operator.manager.claims import CLAIM, Claims, claim
from millstream_operator.manager.controller import FOREIGN_INTERVAL_S, JITTER

OURS = "this/release"


class Beside(MemoryKube):
    """A namespace that another release holds."""

    def __init__(self) -> None:
        super().__init__(claim("ns", "other/release", NOW))
        self.terminating = False

    def create(self, manifest: Mapping[str, Any], manager: str = "") -> Manifest:
        if self.terminating:
            words = "unable to create new content in namespace ns because it is being terminated"
            raise KubeError(403, "Forbidden", words)
        return super().create(manifest)

    def record(self, *_: object) -> None:
        """Events do not matter here."""


def test_the_next_look_after_its_lease_was_deleted_takes_the_namespace() -> None:
    kube, now = Beside(), 0.0
    claims = Claims(kube, OURS, lambda: now)
    assert not claims.ours("ns")
    del kube.objects["Lease", CLAIM]
    now = FOREIGN_INTERVAL_S * (1 - JITTER)
    assert claims.ours("ns")
    assert kube.objects["Lease", CLAIM]["spec"]["holderIdentity"] == OURS
    assert not claims.foreign()


def test_every_release_finishes_the_deletions_of_a_namespace_that_is_being_deleted() -> None:
    """The release that held it may be gone, and nobody can create its Lease again."""
    kube, now = Beside(), 0.0
    claims = Claims(kube, OURS, lambda: now)
    assert not claims.ours("ns")
    kube.terminating = True
    now = 20.0
    assert not claims.ours("ns"), "the other one's Lease is still there"
    del kube.objects["Lease", CLAIM]
    now = 40.0
    assert claims.ours("ns")
    assert not claims.foreign()
    kube.terminating = False
    kube.put(claim("ns", "other/release", NOW))
    assert not claims.ours("ns"), "a new namespace of the name"
