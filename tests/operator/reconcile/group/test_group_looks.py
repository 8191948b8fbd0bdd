"""Reconciles of ConsumerGroups: requests to brokers, statuses, and when the next one is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.in_memory import NOW, InMemory, deleted, in_memory, stored
from millstream_harness.manifests import cluster, group
from millstream_operator.kafka.records import (
    EARLIEST,
    LATEST,
    AdminError,
    GroupState,
    Partition,
    Refusal,
    TopicIdentity,
)
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.state.metrics import Metrics
from millstream_operator.state.status import FINALIZER

CLUSTER = stored(cluster("default"))
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
ENDS = {A0: 10, A1: 20, B0: 30}


STARTS = {"early": "Earliest", "also-early": "Earliest", "late": "Latest"}


def offsets(wanted: Mapping[Partition, int]) -> dict[Partition, int]:
    """Offsets of logs that start at 2 and whose last record is new."""
    known = {EARLIEST: dict.fromkeys(ENDS, 2), LATEST: ENDS}
    return {partition: known.get(when, ENDS)[partition] for partition, when in wanted.items()}


def without_a1(wanted: Mapping[Partition, int]) -> dict[Partition, int]:
    return {partition: offset for partition, offset in offsets(wanted).items() if partition != A1}


def brokers(
    committed: Mapping[str, Mapping[Partition, int]], state: str = "Empty", **more: Any
) -> dict[str, Any]:
    """Responses of brokers with the topics a and b."""
    counts = {"a": 2, "b": 1}
    return {
        "groups": lambda ids: {one: GroupState(state, ()) for one in ids},
        "committed": {name: dict(one) for name, one in committed.items()},
        "identities": lambda topics: {
            topic: TopicIdentity(f"id-{topic}", counts[topic]) for topic in topics if topic in counts
        },
        "offsets": offsets,
        "led_offsets": offsets,
        **more,
    }


def look(*groups: Mapping[str, Any], brokers: Mapping[str, Any], there: bool = True) -> InMemory:
    found = in_memory(*([CLUSTER] if there else []), *groups, **brokers)
    seconds = reconcile_groups(found.services, [decode_as(ConsumerGroup, one) for one in groups])
    assert len(seconds) == len(groups)
    found.again.update({key.name: each for key, each in seconds.items()})
    return found


def finalizers(found: InMemory, name: str = "watch") -> list[str]:
    kept: list[str] = found.kube.objects["ConsumerGroup", name]["metadata"].get("finalizers", [])
    return kept


def ready(found: InMemory, name: str = "watch") -> tuple[str, str, str] | None:
    return found.condition("ConsumerGroup", name)


def test_a_group_is_shown_with_its_lag() -> None:
    found = look(stored(group("watch", topics=["b"])), brokers=brokers({"watch": {A0: 4, A1: 20}}))
    status = found.status("ConsumerGroup", "watch")
    assert (status["state"], status["observedGeneration"]) == ("Empty", 2)
    assert status["lag"]["records"] == 6
    assert status["topics"] == [
        {"topic": "a", "topicId": "id-a", "partitions": 2, "lag": 6},
        {"topic": "b", "topicId": "id-b", "partitions": 1, "lag": 0},
    ]
    assert ready(found) == ("True", "GroupObserved", "the group exists")
    assert found.again["watch"] == 8.5


@pytest.mark.parametrize("took", [0.0, 1.0, 2.0, 4.0])
def test_a_lag_is_at_most_ten_seconds_old(took: float) -> None:
    """The next observation begins as late as it may and takes as long as this one; until it ends, this one counts."""
    seconds = 0.0

    def slow(ids: Sequence[str]) -> dict[str, GroupState]:
        nonlocal seconds
        seconds += took
        return {one: GroupState("Empty", ()) for one in ids}

    found = in_memory(CLUSTER, stored(group("watch")), **brokers({"watch": {A0: 4}}, groups=slow))
    object.__setattr__(found.services, "now", lambda: NOW + timedelta(seconds=seconds))
    metrics = found.services.metrics
    metrics.lags.clock = lambda: seconds
    metrics.show(found.services.store)
    resource = decode_as(ConsumerGroup, stored(group("watch")))
    (again,) = reconcile_groups(found.services, [resource]).values()
    assert age(metrics) == seconds == took
    seconds += again + took
    assert took < age(metrics) <= 10


def age(metrics: Metrics) -> float:
    name = "millstream_group_lag_age_seconds"
    found = metrics.registry.get_sample_value(name, {"namespace": "ns", "name": "watch"})
    assert found is not None
    return found


@pytest.mark.parametrize(("took", "again"), [(4.0, 2.0), (6.0, 3.0), (30.0, 8.5)])
def test_slow_brokers_get_a_rest(took: float, again: float) -> None:
    seconds = 0.0

    def slow(ids: Sequence[str]) -> dict[str, GroupState]:
        nonlocal seconds
        seconds += took
        return {one: GroupState("Empty", ()) for one in ids}

    found = in_memory(CLUSTER, stored(group("watch")), **brokers({}, groups=slow))
    object.__setattr__(found.services, "now", lambda: NOW + timedelta(seconds=seconds))
    resource = decode_as(ConsumerGroup, stored(group("watch")))
    assert list(reconcile_groups(found.services, [resource]).values()) == [again]


def test_groups_that_cannot_start_wait_together_and_commit_nothing() -> None:
    """Partition 1 of topic a has no leader at first; it has one when the ends of the logs are read."""
    found = look(
        *(stored(group(name, groupId=name, topics=["a"], startAt=at)) for name, at in STARTS.items()),
        stored(group("of-b", groupId="of-b", topics=["b"], startAt="Earliest")),
        brokers=brokers({}, led_offsets=without_a1, commit=None),
    )
    for name in STARTS:
        words = "a-1 has no leader: start a broker that has a replica"
        assert ready(found, name) == ("False", "ClusterNotReady", words)
    assert found.brokers.requests("commit") == ["of-b"]
    assert len(found.brokers.requests("led_offsets")) == 3, "one for each start, and one for the ends"


def test_a_paused_group_is_shown_and_commits_nothing() -> None:
    wanted = group("watch", topics=["a", "b"], startAt="Earliest")
    paused = stored(wanted, annotations={"millstream.dev/paused": "true"})
    found = look(paused, brokers=brokers({"watch": {B0: 30}}))
    assert found.brokers.requests("commit") == []
    assert ready(found) == ("True", "GroupObserved", "the group exists")
    assert (found.condition("ConsumerGroup", "watch", "Paused") or ())[:2] == ("True", "ReconcilePaused")


def test_only_partitions_behind_are_asked_for_their_age() -> None:
    found = look(stored(group("watch")), brokers=brokers({"watch": {A0: 10, A1: 19}}))
    assert all(set(one) == {A1} for one in found.brokers.requests("offsets"))
    caught_up = look(stored(group("watch")), brokers=brokers({"watch": {A0: 10, A1: 20}}))
    assert caught_up.brokers.requests("offsets") == []
    assert caught_up.status("ConsumerGroup", "watch")["lag"] == {"records": 0, "seconds": 0}


def test_the_age_is_asked_in_milliseconds_of_now() -> None:
    found = look(stored(group("watch")), brokers=brokers({"watch": {A0: 9}}))
    now_ms = int(NOW.timestamp()) * 1000
    assert found.brokers.requests("offsets")[0] == {A0: now_ms - 1000}


def test_groups_of_a_cluster_cost_a_handful_of_requests() -> None:
    found = look(
        *(stored(group(name, groupId=f"id-{name}")) for name in "xyz"),
        brokers=brokers({"id-x": {A0: 10}, "id-y": {B0: 30}}),
    )
    assert found.brokers.asked[:2] == [
        ("groups", ["id-x", "id-y", "id-z"]),
        ("committed", ["id-x", "id-y", "id-z"]),
    ]
    assert [request for request, *_ in found.brokers.asked[2:]] == [
        "identities",
        "committed",  # once more, because the first time the topics' ids were unknown
        "led_offsets",
        "identities",
    ]
    shown = {name: found.status("ConsumerGroup", name).get("topics") or [] for name in "xyz"}
    assert {name: [one["topic"] for one in topics] for name, topics in shown.items()} == {
        "x": ["a"],
        "y": ["b"],
        "z": [],
    }


@pytest.mark.parametrize(("start_at", "at"), [("Earliest", {A0: 2, A1: 2}), ("Latest", {A0: 10, A1: 20})])
def test_a_group_starts_where_it_is_to_start(start_at: str, at: dict[Partition, int]) -> None:
    committed: list[Any] = []

    def commit(group_id: str, first: Mapping[Partition, int]) -> None:
        committed.append((group_id, first))

    found = look(
        stored(group("watch", topics=["a", "b"], startAt=start_at)),
        brokers=brokers({"watch": {B0: 30}}, commit=commit),
    )
    assert committed == [("watch", at)]
    assert found.brokers.requests("groups") == [["watch"], ["watch"]]
    # earlier commits count, too
    assert [one["lag"] for one in found.status("ConsumerGroup", "watch")["topics"]] == [
        30 - sum(at.values()),
        0,
    ]


def test_a_consumer_that_came_first_keeps_its_group_and_the_next_group_starts() -> None:
    refusals = {"taken": Refusal("UNKNOWN_MEMBER_ID", "has members"), "free": None}
    found = look(
        *(stored(group(name, topics=["a"], startAt="Latest")) for name in refusals),
        brokers=brokers({}, commit=lambda group_id, _: refusals[group_id]),
    )
    shown = {name: found.status("ConsumerGroup", name)["lag"] for name in refusals}
    assert shown == {"taken": {"records": 0, "seconds": 0}, "free": {"records": 0, "seconds": 0}}
    assert found.brokers.requests("commit") == ["taken", "free"]
    assert found.brokers.requests("groups") == [["taken", "free"], ["free"]]


def test_a_topic_that_is_not_there_is_named() -> None:
    found = look(stored(group("watch", topics=["a", "lost"])), brokers=brokers({}))
    assert ready(found) == ("False", "TopicNotFound", "there is no topic lost")


def test_brokers_that_do_not_answer_are_asked_again_soon() -> None:
    found = look(
        *map(stored, (group("x"), group("y"))), brokers=brokers({}, groups=AdminError("nobody listens"))
    )
    for name in "xy":
        assert ready(found, name) == ("False", "ClusterNotReady", "nobody listens")
        assert found.again[name] == 5


def test_without_its_cluster_a_group_says_so() -> None:
    found = look(stored(group("watch")), brokers={}, there=False)
    assert ready(found) == ("False", "ClusterNotFound", "there is no Cluster default in namespace ns")
    assert found.again["watch"] == 30


def test_without_its_cluster_a_deleted_group_is_let_go() -> None:
    found = look(stored(group("watch", deletionPolicy="Delete"), **deleted(1)), brokers={}, there=False)
    assert finalizers(found) == []
    assert found.again["watch"] == 30


def test_of_two_resources_of_one_group_the_older_has_it() -> None:
    older = stored(group("old", groupId="watch"))
    younger = stored(group("new", groupId="watch"), creationTimestamp="2026-02-01T00:00:00Z")
    found = look(younger, older, brokers=brokers({}))
    assert found.brokers.requests("groups") == [["watch"]]
    assert ready(found, "new") == (
        "False",
        "ConflictingGroup",
        "group watch of Cluster default belongs to the older ConsumerGroup old in namespace ns: delete this"
        " ConsumerGroup, or create it with another groupId",
    )
    assert found.again == {"new": 30, "old": 8.5}


def test_only_a_group_to_be_deleted_with_its_resource_holds_the_resource() -> None:
    found = look(stored(group("kept")), stored(group("doomed", deletionPolicy="Delete")), brokers=brokers({}))
    assert (finalizers(found, "kept"), finalizers(found, "doomed")) == ([], [FINALIZER])


def test_deleted_resources_take_the_offsets_along_that_they_are_to_delete() -> None:
    found = look(
        stored(group("doomed", deletionPolicy="Delete"), **deleted(1)),
        stored(group("retained"), **deleted(1)),
        stored(group("never-held", deletionPolicy="Delete"), **deleted(1, finalizers=[])),
        stored(group("wanted")),
        brokers=brokers({}, delete_groups={"doomed": None}),
    )
    assert found.brokers.requests("delete_groups") == [["doomed"]]
    assert found.brokers.requests("groups") == [["wanted"]]
    assert (finalizers(found, "doomed"), finalizers(found, "retained")) == ([], [])
    assert found.again == {"doomed": 30, "retained": 30, "never-held": 30, "wanted": 8.5}


def test_a_deletion_policy_of_retain_asks_brokers_nothing() -> None:
    assert look(stored(group("watch"), **deleted(1)), brokers={}).brokers.asked == []


def test_members_hold_the_resource_until_they_leave() -> None:
    refused = {"x": Refusal("NON_EMPTY_GROUP", "NON_EMPTY_GROUP"), "y": None}
    found = look(
        *(stored(group(name, deletionPolicy="Delete"), **deleted(1)) for name in "xy"),
        brokers={"delete_groups": refused},
    )
    assert [finalizers(found, name) for name in "xy"] == [[FINALIZER], []]
    words = (
        "waiting to delete offsets of group x: the group has members: stop its consumers; "
        "set annotation millstream.dev/skip-deletion=true to give up"
    )
    assert ready(found, "x") == ("False", "Deleting", words)
    assert found.kube.events == [("Warning", "WaitingForDeletion", words)]
    assert found.again == {"x": 5, "y": 30}


def test_a_user_gives_up_offsets_of_a_group_with_members() -> None:
    skip = {"annotations": {"millstream.dev/skip-deletion": "true"}}
    found = look(stored(group("watch", deletionPolicy="Delete"), **deleted(1, **skip)), brokers={})
    assert finalizers(found) == []
    assert [told.reason for told in found.kube.events] == ["DeletionSkipped"] * 2


@pytest.mark.parametrize(("reason", "events"), [("GroupReady", 1), ("Deleting", 0)])
def test_what_is_waited_for_is_told_once(reason: str, events: int) -> None:
    known = {"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": ""}
    found = look(
        stored(group("watch", deletionPolicy="Delete"), {"conditions": [known]}, **deleted(1)),
        brokers={"delete_groups": AdminError("nobody listens")},
    )
    assert [told.reason for told in found.kube.events] == ["WaitingForDeletion"] * events


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        ("GROUP_ID_NOT_FOUND", True),
        ("NON_EMPTY_GROUP", False),
        ("COORDINATOR_LOAD_IN_PROGRESS", False),
        ("NOT_COORDINATOR", False),
    ],
)
def test_a_coordinator_that_is_not_ready_holds_the_resource(error: str, is_kept: bool) -> None:
    found = look(
        stored(group("watch", deletionPolicy="Delete"), **deleted(1)),
        brokers={"delete_groups": {"watch": Refusal(error, error)}},
    )
    assert finalizers(found) == ([] if is_kept else [FINALIZER])
    assert found.again == {"watch": 30 if is_kept else 5}


@pytest.mark.parametrize("seconds", [1, 100_000])
def test_offsets_that_are_not_deleted_hold_their_resource(seconds: float) -> None:
    found = look(
        stored(group("watch", deletionPolicy="Delete"), **deleted(seconds)),
        stored(group("retained"), **deleted(seconds)),
        brokers={"delete_groups": AdminError("nobody listens")},
    )
    assert (finalizers(found), finalizers(found, "retained")) == ([FINALIZER], [])
    words = (
        "waiting to delete offsets of group watch: nobody listens; "
        "set annotation millstream.dev/skip-deletion=true to give up"
    )
    assert ready(found) == ("False", "Deleting", words)
    assert found.kube.events == [("Warning", "WaitingForDeletion", words)]
    assert found.again == {"watch": 5, "retained": 30}
