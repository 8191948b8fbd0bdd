"""ConsumerGroup: a group's start, its lag in records and seconds, and its status; all pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millstream_operator.kafka.lag_age import Wanted
from millstream_operator.kafka.records import GroupMember, GroupState, Partition
from millstream_operator.models import (
    API_VERSION,
    ConsumerGroup,
    ConsumerGroupStatus,
    Lag,
    MaxLag,
    Standstill,
)
from millstream_operator.reconcile.group import plan as plans
from millstream_operator.reconcile.group.plan import (
    Observed,
    above,
    lag_by_partition,
    plan_start,
    wanted_ages,
)
from millstream_operator.validation.admission import decode

NOW = datetime(2026, 11, 20, tzinfo=UTC)
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def group(status: dict[str, Any] | None = None, **fields: Any) -> ConsumerGroup:
    document = {
        "apiVersion": API_VERSION,
        "kind": "ConsumerGroup",
        "metadata": {"name": "watch"},
        "spec": {"clusterRef": {"name": "default"}, **fields},
        "status": status or {},
    }
    decoded = decode(document)
    assert isinstance(decoded, ConsumerGroup)
    return decoded


def build_status(
    group: ConsumerGroup, observed: Observed, seconds: int, now: datetime
) -> ConsumerGroupStatus:
    """The status of a group that has just committed."""
    return plans.build_status(group, observed, seconds, Standstill(since=now, positions="p", records=0), now)


def as_json(status: ConsumerGroupStatus) -> dict[str, Any]:
    """The status as JSON, as on the API server."""
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return decoded


@pytest.mark.parametrize(
    ("fields", "state", "committed", "expected"),
    [
        ({"topics": ["a", "b"], "startAt": "Earliest"}, "Dead", {}, (A0, A1, B0)),
        ({"topics": ["a", "b"], "startAt": "Latest"}, "Empty", {A0: 5}, (B0,)),
        ({"topics": ["a", "missing"], "startAt": "Latest"}, "Empty", {}, (A0, A1)),
        ({"topics": ["a"], "startAt": "Earliest"}, "Stable", {}, ()),
        ({"topics": ["a"]}, "Empty", {}, ()),
        ({"topics": ["a"], "startAt": "Earliest"}, "Empty", {A1: 0}, ()),
    ],
    ids=["all", "only topics without any", "existing topics only", "not under members", "not asked", "once"],
)
def test_where_it_starts(
    fields: dict[str, Any], state: str, committed: dict[Partition, int], expected: tuple[Partition, ...]
) -> None:
    assert plan_start(group(**fields).spec, state, committed, {"a": 2, "b": 1}) == expected


def test_lag_is_end_minus_committed() -> None:
    observed = Observed(GroupState("Empty", ()), {A0: 5, A1: 9, B0: 4}, {A0: 8, A1: 8})
    assert lag_by_partition(observed) == {A0: 3, A1: 0}


def test_the_first_unread_record_of_each_partition_is_asked_for_its_age() -> None:
    observed = Observed(GroupState("Empty", ()), {A0: 5, A1: 8, B0: 4}, {A0: 8, A1: 8})
    assert wanted_ages(group(), observed) == [Wanted(A0, 5)]
    assert wanted_ages(group(maxLag={"seconds": 60}), observed) == [Wanted(A0, 5, 60)]


@pytest.mark.parametrize(
    ("limit", "lag", "words"),
    [
        (MaxLag(records=10), Lag(records=10, seconds=999), None),
        (MaxLag(records=10), Lag(records=11, seconds=0), "the lag is above maxLag.records: 10"),
        (MaxLag(records=0), Lag(), None),
        (MaxLag(seconds=60), Lag(records=999, seconds=60), None),
        (MaxLag(seconds=60), Lag(records=999, seconds=61), "the lag is above maxLag.seconds: 60"),
        (MaxLag(seconds=0), Lag(), None),
    ],
)
def test_max_lag(limit: MaxLag, lag: Lag, words: str | None) -> None:
    assert above(limit, lag) == words


def test_the_status_shows_it_all_and_stays_the_same_when_nothing_happens() -> None:
    members = (GroupMember("c-1", "10.0.0.1", (A0, A1)),)
    observed = Observed(GroupState("Stable", members), {A0: 5, A1: 8}, {A0: 8, A1: 8})
    status = build_status(group(topics=["a"], maxLag={"records": 2}), observed, 100, NOW)
    shown = as_json(status)
    assert shown["members"] == [
        {"clientId": "c-1", "host": "10.0.0.1", "partitions": ["a-0", "a-1"], "partitionCount": 2}
    ]
    assert (shown["state"], shown["memberCount"], shown["lag"]) == (
        "Stable",
        1,
        {"records": 3, "seconds": 100},
    )
    assert shown["topics"] == [{"topic": "a", "partitions": 2, "lag": 3}]
    assert [(c["type"], c["status"], c["reason"]) for c in shown["conditions"]] == [
        ("Ready", "True", "GroupObserved"),
        ("Lagging", "True", "AboveMaxLag"),
        ("Stuck", "False", "Consuming"),
    ]
    later = datetime(2026, 11, 21, tzinfo=UTC)
    again = build_status(group(shown, topics=["a"], maxLag={"records": 2}), observed, 105, later)
    assert as_json(again) == shown
    older = build_status(group(shown, topics=["a"], maxLag={"records": 2}), observed, 150, later)
    assert older.lag == Lag(records=3, seconds=150)


def test_a_missing_topic_and_a_dropped_max_lag() -> None:
    before = as_json(
        build_status(group(maxLag={"records": 1}), Observed(GroupState("Dead", ()), {}, {}), 0, NOW)
    )
    observed = Observed(GroupState("Dead", ()), {}, {}, missing=("a",))
    status = build_status(group(before, topics=["a"]), observed, 0, NOW)
    assert [(c.type, c.reason, c.message) for c in status.conditions or ()] == [
        ("Ready", "TopicNotFound", "there is no topic a"),
        ("Stuck", "Consuming", "the group commits, or its lag does not grow"),
    ]


@pytest.mark.parametrize("seconds", [100, 109, 110])
def test_an_age_that_grew_by_a_tenth_or_less_is_not_shown(seconds: int) -> None:
    assert shown_age(before=100, seconds=seconds) == 100


@pytest.mark.parametrize("seconds", [99, 111])
def test_another_age_is_shown(seconds: int) -> None:
    assert shown_age(before=100, seconds=seconds) == seconds


def shown_age(before: int, seconds: int) -> int | None:
    """The age shown if nothing was consumed or produced since the last reconcile."""
    observed = Observed(GroupState("Empty", ()), {A0: 5}, {A0: 8})
    shown = build_status(
        group({"lag": {"records": 3, "seconds": before}}, topics=["a"]), observed, seconds, NOW
    )
    return shown.lag.seconds if shown.lag else None


def test_a_group_that_has_caught_up_is_not_behind_by_any_time() -> None:
    observed = Observed(GroupState("Empty", ()), {A0: 8}, {A0: 8})
    status = build_status(group({"lag": {"records": 0, "seconds": 100}}), observed, 0, NOW)
    assert status.lag == Lag(records=0, seconds=0)


@pytest.mark.parametrize(
    ("state", "missing", "expected"),
    [
        ("Stable", (), ("True", "GroupObserved", "the group exists")),
        (
            "Dead",
            (),
            ("True", "GroupUnused", "the group does not exist yet: no consumer has joined it or committed"),
        ),
        ("Stable", ("a", "b"), ("False", "TopicNotFound", "there is no topic a, b")),
    ],
)
def test_ready_says_whether_there_is_a_group(
    state: str, missing: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    status = build_status(group(), Observed(GroupState(state, ()), {}, {}, missing), 0, NOW)
    ready = (status.conditions or ())[0]
    assert (ready.status, ready.reason, ready.message) == expected


def test_within_its_lag_a_group_does_not_lag() -> None:
    observed = Observed(GroupState("Empty", ()), {A0: 5}, {A0: 8})
    status = build_status(group(maxLag={"records": 3}), observed, 9, NOW)
    lagging = (status.conditions or ())[1]
    assert (lagging.status, lagging.reason, lagging.message) == (
        "False",
        "WithinMaxLag",
        "the lag is within maxLag",
    )


def test_a_hundred_members_are_shown_and_all_are_counted() -> None:
    members = tuple(GroupMember(f"c-{index}", "h", ()) for index in range(101))
    status = build_status(group(), Observed(GroupState("Stable", members), {}, {}), 0, NOW)
    assert (status.member_count, len(status.members or ())) == (101, 100)


def test_a_hundred_partitions_of_a_member_are_shown_and_all_are_counted() -> None:
    member = GroupMember("c", "h", tuple(Partition("a", index) for index in range(101)))
    (shown,) = build_status(group(), Observed(GroupState("Stable", (member,)), {}, {}), 0, NOW).members or ()
    assert (len(shown.partitions), shown.partition_count) == (100, 101)
