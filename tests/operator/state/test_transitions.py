"""Which changes of a status become Events, and how many are written."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import topic
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models.event import Event, EventType
from millstream_operator.models.keys import Key
from millstream_operator.state.event_budget import BURST, BURST_OF_ALL, EVERY_S, MOST_OBJECTS, Budget
from millstream_operator.state.event_rules import events_of
from millstream_operator.state.events import record
from millstream_operator.state.status import write_raw_status

NEWS = Event(EventType.NORMAL, "Created", "it is there")


def status(*conditions: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    found = [{"type": t, "status": s, "reason": r, "message": f"about {r}"} for t, s, r in conditions]
    return {**fields, "conditions": found}


READY = ("Ready", "True", "AllBrokersReady")
STARTING = ("Ready", "False", "BrokersStarting")
ROLLING = ("RollingUpdate", "True", "Restarting")
CLOSED = ("Upgrading", "False", "OutsideMaintenanceWindow")


@pytest.mark.parametrize(
    ("kind", "before", "after", "events"),
    [
        ("Topic", {}, status(("Ready", "True", "TopicReady"), topicId="x", partitions=3), ["Normal Created"]),
        (
            "Cluster",
            status(STARTING),
            status(READY, clusterId="c"),
            ["Normal Created", "Normal AllBrokersReady"],
        ),
        ("Cluster", status(READY), status(STARTING), ["Normal BrokersStarting"]),
        ("Cluster", status(READY), status(("Ready", "False", "BrokerFailed")), ["Warning BrokerFailed"]),
        (
            "Cluster",
            status(STARTING),
            status(("Ready", "False", "ScaleDownRefused")),
            ["Warning ScaleDownRefused"],
        ),
        # an upgrade that waits for its window reports it once, but not while another Cluster has the turn
        ("Cluster", status(READY), status(READY, CLOSED), ["Normal OutsideMaintenanceWindow"]),
        ("Cluster", status(READY, CLOSED), status(READY, CLOSED), []),
        ("Cluster", status(READY, CLOSED), status(READY, ("Upgrading", "True", "Upgrading")), []),
        ("Cluster", status(READY), status(READY, ("Upgrading", "False", "WaitingForCluster")), []),
        (
            "Cluster",
            status(READY, ("Upgrading", "True", "Upgrading")),
            status(READY, CLOSED),
            ["Normal OutsideMaintenanceWindow"],
        ),
        # nothing new
        ("Cluster", status(READY), status(READY), []),
        ("Cluster", {"brokers": None}, {}, []),
        # a roll: every restart has its own event
        ("Cluster", status(READY), status(STARTING, ROLLING), []),
        ("Cluster", status(STARTING, ROLLING), status(READY, ROLLING), []),
        ("Cluster", status(READY, ROLLING), status(READY), ["Normal RollingUpdateComplete"]),
        ("Cluster", status(STARTING, ROLLING), status(STARTING), []),
        # the window of an upgrade has ended before its last restart
        ("Cluster", status(READY, ROLLING, CLOSED), status(READY, CLOSED), []),
        (
            "Cluster",
            status(READY, ROLLING),
            status(READY, ("RollingUpdate", "True", "RestartBlocked")),
            ["Warning RestartBlocked"],
        ),
        # scaled, drained
        (
            "Cluster",
            status(READY, brokers={"desired": 3}),
            status(READY, brokers={"desired": 5}),
            ["Normal Scaled"],
        ),
        (
            "Cluster",
            status(READY),
            status(READY, ("Rebalancing", "True", "Draining")),
            ["Normal Draining"],
        ),
        (
            "Cluster",
            status(READY, ("Rebalancing", "True", "Draining")),
            status(READY),
            ["Normal Drained"],
        ),
        (
            "Topic",
            {"topicId": "x", "partitions": 3},
            {"topicId": "x", "partitions": 6},
            ["Normal PartitionsAdded"],
        ),
        (
            "Topic",
            {"topicId": "x", "replicationFactor": 1},
            {"topicId": "x", "replicationFactor": 3},
            ["Normal ReplicationChanged"],
        ),
        ("MirrorMaker", {"replicas": 1}, {"replicas": 2}, ["Normal Scaled"]),
        # a promoted mirror has no conditions of its workers any more
        (
            "MirrorMaker",
            status(READY, ("CaughtUp", "True", "CaughtUp"), ("Degraded", "False", "NothingMissing")),
            status(READY),
            [],
        ),
        # a Cluster's event is not repeated by its thousand Topics
        (
            "Topic",
            status(("Ready", "True", "TopicReady")),
            status(("Ready", "False", "ClusterNotReady")),
            [],
        ),
        ("Topic", status(("Ready", "False", "ClusterNotReady")), status(("Ready", "True", "TopicReady")), []),
        # groups and mirrors
        (
            "ConsumerGroup",
            status(("Lagging", "False", "WithinMaxLag")),
            status(("Lagging", "True", "AboveMaxLag")),
            ["Warning AboveMaxLag"],
        ),
        (
            "ConsumerGroup",
            status(("Lagging", "True", "AboveMaxLag")),
            status(("Lagging", "False", "WithinMaxLag")),
            ["Normal WithinMaxLag"],
        ),
        ("ConsumerGroup", status(), status(("Lagging", "False", "WithinMaxLag")), []),
        (
            "MirrorMaker",
            status(("CaughtUp", "False", "Behind")),
            status(("CaughtUp", "True", "CaughtUp")),
            ["Normal CaughtUp"],
        ),
        (
            "MirrorMaker",
            status(("CaughtUp", "True", "CaughtUp")),
            status(("CaughtUp", "False", "Behind")),
            [],
        ),
        (
            "MirrorMaker",
            status(("SourceReachable", "True", "SourcesReachable")),
            status(("SourceReachable", "False", "SourceUnreachable")),
            ["Warning SourceUnreachable"],
        ),
        # loads
        (
            "BatchLoad",
            {"lastRun": {"name": "a", "state": "Running"}},
            {"lastRun": {"name": "a", "state": "Succeeded", "rows": 7}},
            ["Normal RunSucceeded"],
        ),
        (
            "BatchLoad",
            {"lastRun": {"name": "a", "state": "Succeeded"}},
            status(
                ("Ready", "False", "RunFailed"), lastRun={"name": "b", "state": "Failed", "error": "no room"}
            ),
            ["Warning RunFailed"],
        ),
        # every kind
        ("Topic", status(), status(("Paused", "True", "ReconcilePaused")), ["Normal Paused"]),
        ("Topic", status(("Paused", "True", "ReconcilePaused")), status(), ["Normal Resumed"]),
        ("Cluster", status(), status(("Warning", "True", "MinimumIsr")), ["Warning MinimumIsr"]),
    ],
)
def test_what_changed_is_told_once(
    kind: str, before: dict[str, Any], after: dict[str, Any], events: list[str]
) -> None:
    assert [f"{event.type} {event.reason}" for event in events_of(kind, before, after)] == events
    assert events_of(kind, after, after) == []


def test_a_status_that_is_written_is_told_of_and_counted() -> None:
    manifest = stored(topic("flights"))
    found = in_memory(manifest)
    key, uid = Key("Topic", "ns", "flights"), manifest["metadata"]["uid"]
    after = status(("Ready", "False", "InvalidTopic"))
    assert write_raw_status(found.services, key, uid, {}, after)
    assert found.kube.events == [("Warning", "InvalidTopic", "about InvalidTopic")]
    assert not write_raw_status(found.services, key, uid, after, after)
    assert len(found.kube.events) == 1
    text = found.services.metrics.text().decode()
    assert 'millstream_operator_events_total{reason="InvalidTopic",type="Warning"} 1.0' in text


def test_an_event_that_kubernetes_refuses_is_counted_as_dropped() -> None:
    found = in_memory(stored(topic("flights")))
    found.kube.refused["Event"] = KubeError(403, "Forbidden", "no")
    record(found.services, Key("Topic", "ns", "flights"), "uid", NEWS)
    assert "millstream_operator_events_dropped_total 1.0" in found.services.metrics.text().decode()


def test_an_object_has_a_burst_of_events_and_then_one_a_minute() -> None:
    now = 0.0
    budget = Budget(clock=lambda: now)
    key = Key("Topic", "ns", "flights")
    assert sum(budget.allows(key, EventType.NORMAL) for _ in range(100)) == BURST
    assert budget.allows(Key("Topic", "ns", "other"), EventType.NORMAL)
    now += EVERY_S
    assert [budget.allows(key, EventType.WARNING) for _ in range(2)] == [True, False]


def test_news_of_many_objects_does_not_hide_a_warning() -> None:
    budget = Budget(clock=lambda: 0.0)
    keys = [Key("Topic", "ns", f"t{number}") for number in range(5 * MOST_OBJECTS)]
    assert sum(budget.allows(key, EventType.NORMAL) for key in keys) == BURST_OF_ALL
    assert budget.allows(keys[0], EventType.WARNING)


def test_what_is_known_of_objects_is_bounded() -> None:
    now = 0.0
    budget = Budget(clock=lambda: now)
    for number in range(3 * MOST_OBJECTS):
        budget.allows(Key("Topic", "ns", f"t{number}"), EventType.NORMAL)
        now += 2 * EVERY_S
    assert len(budget._objects) <= MOST_OBJECTS
