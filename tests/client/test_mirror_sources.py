"""Addresses of sources for `millstream mirror status`, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream import mirrors
from millstream.errors import BadInput
from millstream.mirrors import mirror_status

CLUSTERS = {"orders": "A", "payments": "B"}
"""The source `kafka` of each mirror: two clusters."""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    groups = [
        SimpleNamespace(id=f"millstream-mirror.{name}.kafka", state="Stable", members=[]) for name in CLUSTERS
    ]

    def progress(_: Any, group: str) -> dict[tuple[str, int], mirrors._Progress]:
        name = group.split(".")[1]
        return {(name, 0): mirrors._Progress(5, CLUSTERS[name], "", 0, None, 0)}

    monkeypatch.setattr(mirrors, "_progress_of", progress)
    monkeypatch.setattr(mirrors, "_promoted", lambda *_: set())
    return SimpleNamespace(admin=SimpleNamespace(list_groups=lambda timeout: groups))


def a_source(cluster_id: str) -> Any:
    metadata = SimpleNamespace(cluster_id=cluster_id, topics={})
    return SimpleNamespace(bootstrap="kafka:9092", metadata=lambda: metadata)


def test_a_source_that_is_another_cluster_in_each_mirror_needs_the_mirrors_name(target: Any) -> None:
    with pytest.raises(BadInput) as refused:
        mirror_status(target, sources={"kafka": a_source("A")})
    assert refused.value.problem == "sources: kafka:9092 is cluster A, not B, which kafka of payments is"
    step = "name one of the mirrors with a source kafka: millstream mirror status MIRROR"
    assert refused.value.next_step == step
    (one,) = mirror_status(target, "orders", {"kafka": a_source("A")})
    assert (one.source_cluster, one.lag, [topic.gone for topic in one.topics]) == ("A", 0, [True])


def test_an_address_of_another_cluster_is_refused(target: Any) -> None:
    with pytest.raises(BadInput) as refused:
        mirror_status(target, "orders", {"kafka": a_source("B")})
    assert refused.value.problem == "sources: kafka:9092 is cluster B, not A, which kafka is"
    assert refused.value.next_step == "name an address of that cluster"
