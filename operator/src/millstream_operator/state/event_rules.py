"""Events about the status changes that matter to an administrator: a status before and after in, Events out.

An Event reports that something happened; the status shows the current state. So there are Events for changes only, and
none for consequences of another resource's trouble: a Cluster that is not ready reports this itself, and its thousand
Topics do not. Pure: no input or output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..models.conditions import ConditionType, Reason
from ..models.event import Event, EventType
from ..models.words import count_of


class _Seen(NamedTuple):
    status: str = ""
    reason: str = ""
    message: str = ""


PROGRESS = frozenset(
    {
        Reason.BROKERS_STARTING,
        Reason.DELETING,
        Reason.LISTENERS_PENDING,
        Reason.NO_WORKERS,
        Reason.PROMOTING,
        Reason.REASSIGNING,
        Reason.RECONCILE_PAUSED,
        Reason.RUNNING,
        Reason.RUN_PENDING,
        Reason.SCHEDULED,
        Reason.SUSPENDED,
        Reason.WAITING_FOR_RECORDS,
        Reason.WORKERS_STARTING,
        Reason.ZOOKEEPER_NOT_READY,
    }
)
"""Reasons of resources that are not ready yet, although nothing is wrong."""
OF_THE_CLUSTER = Reason.CLUSTER_NOT_READY
TOLD_ELSEWHERE = (
    OF_THE_CLUSTER,
    Reason.DELETING,
    Reason.DEADLINE_EXCEEDED,
    Reason.OOM_KILLED,
    Reason.RUN_FAILED,
)
"""Reasons that the Cluster, reconcile/common/deletion.py or the run reports."""
RUN_EVENTS = {
    "Running": (EventType.NORMAL, "RunStarted"),
    "Succeeded": (EventType.NORMAL, "RunSucceeded"),
    "Failed": (EventType.WARNING, "RunFailed"),
}
REBALANCED = {
    Reason.DRAINING: ("Drained", "the brokers to remove have no replicas left"),
    Reason.SPREADING: ("Rebalanced", "the new brokers have their replicas"),
    Reason.REASSIGNING: ("Reassigned", "all replicas are in place"),
}


def events_of(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Event]:
    """The Events for a change of a resource's status; both statuses are as in a manifest, ``{}`` for none."""
    old, new = _conditions(before), _conditions(after)
    return [
        *_created(kind, before, after),
        *_ready(kind, old, new),
        *_numbers(kind, before, after),
        *_others(old, new),
        *_runs(before, after),
    ]


def _created(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    if kind == "Topic" and after.get("topicId") and after["topicId"] != before.get("topicId"):
        partitions, replicas = after.get("partitions"), after.get("replicationFactor")
        words = f"the topic exists: partitions={partitions}, replicationFactor={replicas}"
        yield Event(EventType.NORMAL, "Created", words)
    if kind == "Cluster" and after.get("clusterId") and not before.get("clusterId"):
        yield Event(EventType.NORMAL, "Created", f"the brokers have formed cluster {after['clusterId']}")


def _ready(kind: str, old: Mapping[str, _Seen], new: Mapping[str, _Seen]) -> Iterator[Event]:
    was, now = old.get(ConditionType.READY, _Seen()), new.get(ConditionType.READY, _Seen())
    if was[:2] == now[:2] or now.reason in TOLD_ELSEWHERE or was.reason == OF_THE_CLUSTER:
        return
    rolls = ConditionType.ROLLING_UPDATE in old or ConditionType.ROLLING_UPDATE in new
    if now.status == "True":
        is_new_topic = kind == "Topic" and not was.status  # already has its Event
        if was.status != "True" and not rolls and not is_new_topic:
            yield Event(EventType.NORMAL, now.reason, now.message)
    elif now.reason not in PROGRESS:
        yield Event(EventType.WARNING, now.reason, now.message)
    elif not rolls:  # each restart has its own Event
        yield Event(EventType.NORMAL, now.reason, now.message)


def _numbers(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    if kind == "Cluster":
        yield from _number("Scaled", "brokers", _desired(before), _desired(after))
    elif kind == "MirrorMaker":
        yield from _number("Scaled", "workers", before.get("replicas"), after.get("replicas"))
    elif kind == "Topic" and before.get("topicId") == after.get("topicId"):
        yield from _number("PartitionsAdded", "partitions", before.get("partitions"), after.get("partitions"))
        factors = before.get("replicationFactor"), after.get("replicationFactor")
        yield from _number("ReplicationChanged", "replicas", *factors)


def _desired(status: Mapping[str, Any]) -> int | None:
    desired: int | None = (status.get("brokers") or {}).get("desired")
    return desired


def _number(reason: str, noun: str, before: int | None, after: int | None) -> Iterator[Event]:
    if before is not None and after is not None and before != after:
        yield Event(EventType.NORMAL, reason, f"from {before} to {after} {noun}")


def _others(old: Mapping[str, _Seen], new: Mapping[str, _Seen]) -> Iterator[Event]:
    def turned(kind: ConditionType) -> tuple[_Seen, _Seen] | None:
        was, now = old.get(kind, _Seen()), new.get(kind, _Seen())
        return (was, now) if was[:2] != now[:2] else None

    is_well = new.get(ConditionType.READY, _Seen()).status == "True"
    upgrade_waits = new.get(ConditionType.UPGRADING, _Seen()).reason == Reason.OUTSIDE_MAINTENANCE_WINDOW
    if change := turned(ConditionType.ROLLING_UPDATE):
        was, now = change
        if now.reason == Reason.RESTART_BLOCKED:
            yield Event(EventType.WARNING, now.reason, now.message)
        elif not now.status and is_well and not upgrade_waits:  # each restart has had its own Event
            yield Event(EventType.NORMAL, "RollingUpdateComplete", "all pods match the Cluster's spec")
    if change := turned(ConditionType.REBALANCING):
        was, now = change
        if now.status == "True":
            yield Event(EventType.NORMAL, now.reason, now.message)
        elif was.status == "True" and is_well and was.reason in REBALANCED:
            yield Event(EventType.NORMAL, *REBALANCED[Reason(was.reason)])
    if (change := turned(ConditionType.UPGRADING)) and change[1].reason == Reason.OUTSIDE_MAINTENANCE_WINDOW:
        yield Event(EventType.NORMAL, change[1].reason, change[1].message)
    if change := turned(ConditionType.PAUSED):
        paused = change[1].status == "True"
        words = change[1].message if paused else "the annotation was removed"
        yield Event(EventType.NORMAL, "Paused" if paused else "Resumed", words)
    if (change := turned(ConditionType.RESET)) and (now := change[1]).status:
        level = EventType.NORMAL if now.status == "True" else EventType.WARNING
        yield Event(level, now.reason, now.message)
    if (change := turned(ConditionType.PROMOTED)) and (now := change[1]).status:
        well = now.status == "True" or now.reason in PROGRESS
        yield Event(EventType.NORMAL if well else EventType.WARNING, now.reason, now.message)
    if (change := turned(ConditionType.WARNING)) and change[1].status == "True":
        yield Event(EventType.WARNING, change[1].reason, change[1].message)
    for kind, bad in (
        (ConditionType.STRAYS, "True"),
        (ConditionType.LAGGING, "True"),
        (ConditionType.STUCK, "True"),
        (ConditionType.LATE, "True"),
        (ConditionType.DATA_QUALITY, "False"),
        (ConditionType.SOURCE_REACHABLE, "False"),
        (ConditionType.DEGRADED, "True"),
        (ConditionType.CAUGHT_UP, ""),  # falling behind is no Event: lag is a metric
    ):
        if change := turned(kind):
            was, now = change
            if not now.status:  # the condition is gone
                continue
            if now.status == bad:
                yield Event(EventType.WARNING, now.reason, now.message)
            elif now.status == ("False" if bad == "True" else "True") and (was.status == bad or not bad):
                yield Event(EventType.NORMAL, now.reason, now.message)


def _runs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    was, now = before.get("lastRun") or {}, after.get("lastRun") or {}
    if (was.get("name"), was.get("state")) == (now.get("name"), now.get("state")):
        return
    if (found := RUN_EVENTS.get(now.get("state", ""))) is not None:
        name = now.get("name", "")
        rows = f": {count_of(now['rows'], 'row')}" if now.get("rows") is not None else ""
        why = f": {now['error']}" if now.get("error") else ""
        yield Event(*found, f"run {name}{rows}{why}")


def _conditions(status: Mapping[str, Any]) -> dict[str, _Seen]:
    found = {}
    for condition in status.get("conditions") or ():
        if isinstance(condition, Mapping):
            words = (str(condition.get(key, "")) for key in ("status", "reason", "message"))
            found[str(condition.get("type"))] = _Seen(*words)
    return found
