"""The operator's metrics."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import topic
from millstream_operator.handlers import CONTROLLERS
from millstream_operator.kubernetes.client import resource_of
from millstream_operator.manager.controller import FAILED, Manager
from millstream_operator.manager.workqueue import Batch, WorkQueue
from millstream_operator.models.keys import Key
from millstream_operator.serving import scrape
from millstream_operator.state.cache import Store
from millstream_operator.state.lags import Measured
from millstream_operator.state.metric_table import MOST_OBJECTS
from millstream_operator.state.metrics import Metrics

Samples = dict[tuple[str, ...], float]


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def resource(kind: str, name: str, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": kind,
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {},
        "status": status,
    }


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": ""}


def shown(*resources: dict[str, Any]) -> Samples:
    store, metrics = Store(), Metrics()
    for one in resources:
        store.put(one)
    metrics.show(store)
    return samples(metrics)


def test_conditions_are_counted_and_those_that_need_attention_are_named() -> None:
    found = shown(
        resource("Topic", "a", conditions=[condition("Ready", "True", "TopicReady")]),
        resource("Topic", "b", conditions=[condition("Ready", "False", "InvalidTopic")]),
        resource("Topic", "c", conditions=[condition("Ready", "False", "made up")]),
        resource("ConsumerGroup", "g", conditions=[condition("Lagging", "True", "AboveMaxLag")]),
        resource("BatchLoad", "l", conditions=[condition("Succeeded", "False", "Running")]),
        resource("MirrorMaker", "m", conditions=[condition("Ready", "False", "NoWorkers")]),
    )
    assert found["millstream_operator_resources", "Topic"] == 3
    assert found["millstream_operator_resources", "Cluster"] == 0
    assert found["millstream_operator_conditions", "Topic", "TopicReady", "True", "Ready"] == 1
    assert found["millstream_operator_conditions", "Topic", "Other", "False", "Ready"] == 1
    named = {key[1:] for key in found if key[0] == "millstream_operator_attention"}
    assert named == {
        ("Topic", "b", "ns", "InvalidTopic", "Ready"),
        ("Topic", "c", "ns", "Other", "Ready"),
        ("ConsumerGroup", "g", "ns", "AboveMaxLag", "Lagging"),
    }


def test_series_by_object_are_bounded_and_clusters_come_first() -> None:
    broken = [condition("Ready", "False", "InvalidTopic")]
    topics = [resource("Topic", f"t{number}", conditions=broken) for number in range(5000)]
    found = shown(
        *topics, resource("Cluster", "east", conditions=[condition("Ready", "False", "BrokerFailed")])
    )
    named = [key for key in found if key[0] == "millstream_operator_attention"]
    assert len(named) == MOST_OBJECTS
    assert ("millstream_operator_attention", "Cluster", "east", "ns", "BrokerFailed", "Ready") in named
    omitted = found["millstream_operator_series_omitted", "millstream_operator_attention"]
    assert omitted == 5001 - MOST_OBJECTS
    assert len(found) < MOST_OBJECTS + 200


def test_numbers_of_clusters_groups_and_loads() -> None:
    run = {
        "name": "l-1",
        "state": "Succeeded",
        "rows": 7,
        "corruptRecords": 2,
        "startTime": "2026-11-22T08:00:00Z",
        "endTime": "2026-11-22T08:01:30Z",
    }
    late = {"type": "Late", "status": "True", "reason": "RunFailed"}
    found = shown(
        resource("Cluster", "east", brokers={"desired": 3, "ready": 2}),
        resource("ConsumerGroup", "g", lag={"records": 5, "seconds": 60}),
        resource("BatchLoad", "l", lastRun=run, lag={"records": 9, "seconds": 30}, conditions=[late]),
        resource("BatchLoad", "odd", lastRun={"state": "Running", "startTime": "yesterday"}),
        resource("Topic", "unreadable", conditions="none"),
    )
    assert found["millstream_cluster_brokers", "east", "ns"] == 3
    assert found["millstream_cluster_brokers_ready", "east", "ns"] == 2
    assert found["millstream_group_lag_records", "g", "ns"] == 5
    assert found["millstream_group_lag_seconds", "g", "ns"] == 60
    assert found["millstream_load_run_state", "l", "ns", "Succeeded"] == 1
    assert found["millstream_load_run_rows", "l", "ns"] == 7
    assert found["millstream_load_run_seconds", "l", "ns"] == 90
    assert found["millstream_load_run_end_timestamp_seconds", "l", "ns"] == 1795334490
    assert ("millstream_load_run_seconds", "odd", "ns") not in found
    assert found["millstream_load_run_corrupt_records", "l", "ns"] == 2
    assert found["millstream_load_lag_records", "l", "ns"] == 9
    assert found["millstream_load_lag_seconds", "l", "ns"] == 30
    assert found["millstream_load_late", "l", "ns"] == 1
    assert ("millstream_load_late", "odd", "ns") not in found


def test_the_lag_that_was_seen_last_goes_before_the_one_in_the_status() -> None:
    store, metrics = Store(), Metrics()
    store.put(resource("ConsumerGroup", "g", lag={"records": 5, "seconds": 60}))
    metrics.show(store)
    key = Key("ConsumerGroup", "ns", "g")
    metrics.lags.put(key, Measured(6, 61, 0.0))
    assert samples(metrics)["millstream_group_lag_records", "g", "ns"] == 6
    metrics.lags.forget(key)
    assert samples(metrics)["millstream_group_lag_records", "g", "ns"] == 5


def test_how_old_a_lag_is() -> None:
    """The age counts since the measurement, with the oldest first; it is unknown for a lag that only the status has."""
    store, metrics = Store(), Metrics()
    metrics.lags.clock = lambda: 1000.0
    for number in range(MOST_OBJECTS + 2):
        store.put(resource("ConsumerGroup", f"g{number}", lag={"records": 5}))
        metrics.lags.put(Key("ConsumerGroup", "ns", f"g{number}"), Measured(6, 61, float(number)))
    store.put(resource("ConsumerGroup", "unmeasured", lag={"records": 5}))
    metrics.show(store)
    name = "millstream_group_lag_age_seconds"
    found = {key[1]: value for key, value in samples(metrics).items() if key[0] == name}
    assert found == {f"g{number}": 1000.0 - number for number in range(MOST_OBJECTS)}


async def test_looks_and_their_errors_are_counted() -> None:
    found = in_memory(stored(topic("flights")))
    manager = Manager(found.services, CONTROLLERS)
    key = Key("Topic", "ns", "flights")

    def fail(*_: object) -> None:
        raise LookupError("a bug")

    manager.controllers = {"Topic": type(CONTROLLERS["Topic"])(CONTROLLERS["Topic"].kind, fail, lambda _: 1)}  # type: ignore[arg-type]
    again = manager._reconcile(Batch(1, (key,)))
    assert again == {key: FAILED}
    manager._looked(key, FAILED, 0.0)
    manager._looked(key, 5.0, 0.0)
    manager.measure()
    seen = samples(found.services.metrics)
    assert seen["millstream_operator_errors_total", "LookupError", "Topic"] == 1
    assert seen["millstream_operator_reconciles_total", "Topic", "error"] == 1
    assert seen["millstream_operator_reconciles_total", "Topic", "ok"] == 1
    assert seen["millstream_operator_queue_keys",] == 1
    assert seen["millstream_operator_leading", ""] == 1


def test_what_is_due_is_counted() -> None:
    queue = WorkQueue()
    for number in range(5):
        queue.add(Key("Topic", "ns", str(number)), number % 2, float(number))
    assert (queue.due(2.5), queue.overdue(2.5), len(queue)) == (3, 2.5, 5)


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/ns/pods/x", "pods"),
        ("/api/v1/nodes", "nodes"),
        ("/apis/apps/v1/namespaces/ns/statefulsets", "statefulsets"),
        ("/apis/millstream.dev/v1alpha1/namespaces/namespaces/topics/t/status", "topics/status"),
        ("/apis/millstream.dev/v1alpha1", ""),
    ],
)
def test_requests_are_told_apart_by_what_they_are_of(path: str, resource: str) -> None:
    assert resource_of(path) == resource


async def test_prometheus_gets_them_by_http() -> None:
    metrics = Metrics()
    runner = await scrape.serve(("127.0.0.1", 0), metrics, lambda: metrics.queue_due.set(7))
    try:
        port = runner.addresses[0][1]

        def get() -> tuple[str, str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                return answer.headers["Content-Type"], answer.read().decode()

        kind, text = await asyncio.to_thread(get)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert "millstream_operator_queue_due 7.0" in text
        assert "process_resident_memory_bytes" in text
        assert "_created" not in text
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
async def test_health_is_served_to_both_families(host: str) -> None:
    stuck = False

    def health() -> dict[str, int]:
        if stuck:
            raise scrape.Unhealthy("stuck")
        return {"reconciles": 3}

    runner = await scrape.serve_health(f"http://{host}:0/healthz", health)
    try:
        port = runner.addresses[0][1]

        def get(address: str) -> bytes:
            with urllib.request.urlopen(f"http://{address}:{port}/healthz", timeout=60) as answer:
                return bytes(answer.read())

        for address in ("127.0.0.1", "[::1]"):
            assert await asyncio.to_thread(get, address) == b'{"work": {"reconciles": 3}}'
        stuck = True
        with pytest.raises(HTTPError, match="500"):
            await asyncio.to_thread(get, "127.0.0.1")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("text", ["8081", "host:", "host:70000", "host:1e3"])
def test_a_wrong_address_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: HOST:PORT"):
        scrape.parse_address(text)
    assert scrape.parse_address("") is None
    assert scrape.parse_address("[::]:8081") == ("::", 8081)
