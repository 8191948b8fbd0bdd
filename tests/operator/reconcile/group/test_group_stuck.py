"""A group is stuck if its lag grows and it commits nothing: over time, and over restarts of the operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as some

from millstream_harness.in_memory import NOW as THEN
from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import cluster, group
from millstream_operator.kafka.records import GroupState, Partition, TopicIdentity
from millstream_operator.models import ConsumerGroup, Standstill, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.reconcile.group.stuck import digest_of, is_stuck, standing

NOW = datetime(2026, 11, 20, tzinfo=UTC)
AFTER_S = 300
A0 = Partition("a", 0)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def stuck_after(*seen: tuple[float, str, int], start: Standstill | None = None) -> bool:
    """Whether a group is stuck after observations at these seconds, with these positions and lags."""
    found = start
    for seconds, positions, records in seen:
        found = standing(found, positions, records, at(seconds))
    assert found is not None
    return is_stuck(found, seen[-1][2], at(seen[-1][0]), AFTER_S)


def test_a_group_whose_lag_grows_without_a_commit_is_stuck() -> None:
    assert stuck_after((0, "p", 5), (300, "p", 6))
    assert not stuck_after((0, "p", 5), (299, "p", 6))


def test_a_group_that_commits_or_whose_lag_does_not_grow_is_not_stuck() -> None:
    assert not stuck_after((0, "p", 5), (200, "q", 6), (400, "q", 9))
    assert not stuck_after((0, "p", 5), (1000, "p", 5))
    assert not stuck_after((0, "p", 0), (1000, "p", 0), (1010, "p", 3))


def test_a_clock_that_was_set_back_raises_no_alarm() -> None:
    assert not stuck_after((1000, "p", 5), (0, "p", 6), (299, "p", 7))


def test_a_position_in_a_topic_that_was_created_again_is_another_one() -> None:
    assert digest_of({A0: 5}, {"a": "one"}) != digest_of({A0: 5}, {"a": "two"})
    assert digest_of({A0: 5}, {"a": "one"}) == digest_of({A0: 5}, {"a": "one", "b": "three"})


@given(
    some.lists(some.tuples(some.integers(1, 100), some.booleans(), some.integers(0, 5)), min_size=1),
    some.integers(0, 20),
)
def test_a_restart_raises_no_alarm_and_ends_none(steps: list[tuple[int, bool, int]], restart: int) -> None:
    """At each step time passes, the group may commit, and records arrive.

    One operator sees everything; another restarts at one of the steps, and then knows only the status.
    """
    seconds, positions, records = 0, 0, 3
    never: Standstill | None = None
    anew: Standstill | None = None
    status: Standstill | None = None
    for number, (passed, commits, arrived) in enumerate(steps):
        seconds += passed
        positions += commits
        records += arrived
        if number == restart:
            anew = status
        never = standing(never, str(positions), records, at(seconds))
        anew = standing(anew, str(positions), records, at(seconds))
        is_stuck_now = is_stuck(anew, records, at(seconds), AFTER_S)
        if status is not None and not commits:
            assert is_stuck_now, "stays stuck until a commit"
        if is_stuck_now:
            assert is_stuck(never, records, at(seconds), AFTER_S), "no false alarm"
        status = anew if is_stuck_now else None


def test_the_resource_shows_it_and_a_restarted_operator_still_does() -> None:
    """Two operators: the second knows only the resource's status."""
    seconds, ends, committed = 0.0, 10, 4

    def look(*manifests: dict[str, object]) -> tuple[dict[str, object], tuple[str, str, str] | None]:
        found = in_memory(
            stored(cluster("default")),
            *manifests,
            groups=lambda ids: {one: GroupState("Empty", ()) for one in ids},
            committed=lambda ids: {one: {A0: committed} for one in ids},
            identities=lambda topics: {"a": TopicIdentity("id-a", 1)},
            offsets=lambda wanted: dict.fromkeys(wanted, ends),
            led_offsets=lambda wanted: dict.fromkeys(wanted, ends),
        )
        object.__setattr__(found.services, "now", lambda: THEN + timedelta(seconds=seconds))
        for manifest in manifests:
            if before is not None:
                found.services.group_memories.update(before)
            reconcile_groups(found.services, [decode_as(ConsumerGroup, manifest)])
        memories.update(found.services.group_memories)
        return found.kube.objects["ConsumerGroup", "watch"], found.condition(
            "ConsumerGroup", "watch", "Stuck"
        )

    memories: dict[str, object] = {}
    before: dict[str, object] | None = None
    resource, condition = look(stored(group("watch")))
    assert (condition or ())[:2] == ("False", "Consuming")
    before, seconds, ends = memories, 300.0, 11
    resource, condition = look(resource)
    assert condition == (
        "True",
        "NothingCommitted",
        "the lag grows and nothing was committed for 300 s: it has no members: start its consumers",
    )
    before, seconds = None, 310.0
    resource, condition = look(resource)
    assert (condition or ())[:2] == ("True", "NothingCommitted")
    committed, seconds = 5, 320.0
    resource, condition = look(resource)
    assert (condition or ())[:2] == ("False", "Consuming")
    assert "stuck" not in resource["status"]
