"""A Cluster on a laptop whose Internal listener closes and opens, with several brokers, and a load from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.local import consume, produce
from millstream_harness.local_closed import Closed
from millstream_harness.spark import use_spark

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Closed]:
    found = Closed(tmp_path)
    yield found
    found.runtime().down()


def test_three_brokers_close_and_open_with_their_records(sandbox: Closed) -> None:
    three = {"brokers": {"replicas": 3}, "zookeeper": {"replicas": 1}}
    sandbox.closed("west", sandbox.port, listenerDefaults={}, **three)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 3, replicationFactor: 3}")
    sandbox.user("app", "west", "All")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    produce(sandbox.bootstrap, "orders", 100)

    sandbox.closed("west", sandbox.port, **three)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert "Cluster west: brokers connect to each other in another way: all are restarted" in sandbox.said
    sandbox.produce("app", '{"n": 100}')
    assert len(sandbox.read("app", 101)) == 101
    pids = [sandbox.pid(f"broker/default/west/{number}") for number in range(3)]
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert [sandbox.pid(f"broker/default/west/{number}") for number in range(3)] == pids

    sandbox.closed("west", sandbox.port, config={"log.retention.hours": "99"}, **three)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert (
        "Cluster west: its configuration changed: brokers are restarted, one after the other" in sandbox.said
    )
    assert len(sandbox.read("app", 101)) == 101

    sandbox.closed("west", sandbox.port, listenerDefaults={}, **three)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert consume(sandbox.bootstrap, "orders", 101) == list(range(101))


def test_a_load_logs_in(sandbox: Closed, monkeypatch: pytest.MonkeyPatch) -> None:
    use_spark(monkeypatch)
    sandbox.closed("west", sandbox.port)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 3}")
    sandbox.user("app", "west", "Write")
    load = (
        "{clusterRef: {name: west}, topics: [orders], minRecords: 2, value: {format: Binary},"
        " output: {path: /lake/orders, volumeClaimName: lake}, spark: {driver: {memory: 512m}}}"
    )
    sandbox.write("BatchLoad", "daily", load)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    for value in ("one", "two"):
        sandbox.produce("app", value)
    outcome = sandbox.runtime().up(sandbox.manifests)
    assert (outcome.failures, outcome.waiting) == ({}, {})
    run = sandbox.found("BatchLoad", "daily")["status"]["lastRun"]
    assert (run["state"], run["rows"]) == ("Succeeded", 2)
    assert {"daily-load-user", "daily-load-trust"} < sandbox.secrets()
    spoken = (sandbox.data / "loads" / "daily" / run["name"] / "spark.log").read_text()
    password = (sandbox.data / "users" / "daily-load-user" / "password").read_text()
    assert password not in spoken
