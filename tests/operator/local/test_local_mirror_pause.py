"""A paused MirrorMaker with a real worker: it continues with its configuration, and its status follows it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.local import DEADLINE_S, Sandbox
from millstream_harness.scenario import eventually

pytestmark = pytest.mark.process

RECORDS = 4000
LIMITED, UNLIMITED = ", maxBytesPerSecond: 20000", ""
WORKER = "mirror/default/copy/0"


def spec(limit: str, topics: str, replicas: int) -> str:
    return (
        f"{{sources: [{{name: west, clusterRef: {{name: west}}{limit}}}], target: {{clusterRef: {{name: east}}}},"
        f" topics: {{include: [{topics}]}}, replicas: {replicas}}}"
    )


def produce(bootstrap: str, topic: str) -> None:
    """Produce two megabytes in small batches."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20})
    for _ in range(RECORDS):
        producer.produce(topic, os.urandom(500))
    assert producer.flush(60) == 0


def test_a_paused_mirror_continues_as_it_was(sandbox: Sandbox) -> None:
    for name in ("west", "east"):
        sandbox.write("Cluster", name, "{}")
    for name in ("orders", "payments"):
        sandbox.write("Topic", name, "{clusterRef: {name: west}, partitions: 1}")
    sandbox.write("MirrorMaker", "copy", spec(LIMITED, "orders", 1))
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    produce(sandbox.found("Cluster", "west")["status"]["bootstrap"], "orders")
    worker, file = sandbox.pid(WORKER), (sandbox.data / "mirrors/copy/mirror.json").read_text()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = sandbox.found("MirrorMaker", "copy")["status"]
        return found

    def conditions() -> dict[str, tuple[str, str]]:
        return {one["type"]: (one["status"], one["reason"]) for one in status()["conditions"]}

    def lag() -> dict[str, int]:
        found: dict[str, int] = status().get("lag") or {}
        return found

    edited = spec(UNLIMITED, "orders, payments", 2)
    sandbox.write("MirrorMaker", "copy", edited, '{millstream.dev/paused: "true"}')
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    words = "paused by annotation millstream.dev/paused; remove it to resume"
    assert f"MirrorMaker copy: {words}" in sandbox.said
    assert conditions()["Paused"] == ("True", "ReconcilePaused")

    behind = eventually(
        lag, lambda now: now.get("seconds", 0) > 0, "the status has the worker's lag", DEADLINE_S
    )
    assert 0 < behind["records"] <= RECORDS
    eventually(
        lag,
        lambda now: 0 < now.get("records", 0) < behind["records"],
        "it still copies, within the limit",
        DEADLINE_S,
    )
    assert sandbox.ready("MirrorMaker", "copy")[2] == "1 of 2 workers are ready"
    assert (sandbox.pid(WORKER), status()["replicas"], status()["topics"]) == (worker, 1, 1)
    assert (sandbox.data / "mirrors/copy/mirror.json").read_text() == file

    sandbox.write("MirrorMaker", "copy", edited)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert "Paused" not in conditions()
    eventually(
        lag, lambda now: now == {"records": 0, "seconds": 0}, "the rest, without the limit", DEADLINE_S
    )
    eventually(
        status,
        lambda now: (now["replicas"], now.get("topics")) == (2, 2),
        "both workers, both topics",
        DEADLINE_S,
    )


def test_a_mirror_that_is_paused_before_it_began_has_no_workers(sandbox: Sandbox) -> None:
    for name in ("west", "east"):
        sandbox.write("Cluster", name, "{}")
    sandbox.write("MirrorMaker", "copy", spec(UNLIMITED, "orders", 1), '{millstream.dev/paused: "true"}')
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.ready("MirrorMaker", "copy")[:2] == ("False", "WorkersStarting")
    assert not [one for one in sandbox.runtime().status().daemons if one["name"].startswith("mirror/")]
