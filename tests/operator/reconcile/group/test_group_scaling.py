"""Number of consumers of a group: bounds for any load, and simulated consumers under rising and falling loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millstream_harness.manifests import group
from millstream_operator.kafka.records import GroupState, Partition
from millstream_operator.models import ConsumerGroup, Scaling, decode_as
from millstream_operator.models.scaling import History, Load
from millstream_operator.reconcile.group.plan import Observed
from millstream_operator.reconcile.group.scaling import decide, load_of

NOW = datetime(2026, 11, 20, tzinfo=UTC)
LOOK_S = 10


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def scaling(least: int = 1, most: int = 10, target: int = 100, window: int = 300) -> Scaling:
    return Scaling(min=least, max=most, target_lag=target, stabilization_seconds=window)


def load(unread: int, partitions: int = 100) -> Load:
    return Load(unread, unread, 0, partitions)


def first(wanted: Scaling, unread: int, present: int | None, partitions: int = 100) -> int:
    return decide(wanted, load(unread, partitions), present, History(), NOW)[0]


def test_one_consumer_for_each_target_lag() -> None:
    assert [first(scaling(), unread, None) for unread in (0, 1, 100, 101, 350, 10_000)] == [1, 1, 1, 2, 4, 10]


def test_never_more_than_partitions_whatever_the_minimum() -> None:
    assert first(scaling(least=5), 10_000, None, partitions=3) == 3
    assert first(scaling(), 10_000, None, partitions=0) == 0


@pytest.mark.parametrize(
    "lack", [Load(0, 0, 0, 0, missing=True), Load(900, 900, 0, 2, missing=True), Load(900, 900, 0, 2)]
)
def test_an_answer_that_lacks_topics_or_partitions_stops_nobody(lack: Load) -> None:
    """Many such responses do not, either, unless all of a window lack the same."""
    wanted, history, present = scaling(), History(), 8
    for seconds in range(0, 3600, LOOK_S):
        full = Load(750, 750 + 100 * seconds, 100 * seconds, 100)
        present, history = decide(wanted, full if seconds % 250 == 0 else lack, present, history, at(seconds))
        assert present == 8, seconds


def test_topics_that_stay_deleted_stop_all_consumers_after_a_window() -> None:
    wanted, history, present = scaling(), History(), 8
    for seconds in range(0, 300, LOOK_S):
        present, history = decide(wanted, Load(0, 0, 0, 0, missing=True), present, history, at(seconds))
        assert present == 8, seconds
    assert decide(wanted, Load(0, 0, 0, 0, missing=True), present, history, at(300))[0] == 0


def test_partitions_that_stay_fewer_stop_consumers_after_a_window() -> None:
    wanted, history, present = scaling(), History(), 8
    for seconds in range(0, 300, LOOK_S):
        present, history = decide(wanted, load(0, 3), present, history, at(seconds))
        assert present == 8, seconds
    assert decide(wanted, load(0, 3), present, history, at(300))[0] == 3


def test_a_lower_maximum_applies_at_once() -> None:
    assert first(scaling(most=4), 10_000, 8) == 4
    assert decide(scaling(most=4), Load(0, 0, 0, 0, missing=True), 8, History(), NOW)[0] == 4


def test_a_topic_that_is_missing_holds_up_no_consumer_that_others_need() -> None:
    assert decide(scaling(), Load(900, 900, 0, 100, missing=True), 2, History(), NOW)[0] == 9


def test_none_runs_while_there_is_nothing_to_read() -> None:
    assert first(scaling(least=0), 0, None) == 0
    assert first(scaling(least=0), 1, 0) == 1


def test_a_tenth_more_or_less_changes_nothing() -> None:
    assert first(scaling(), 440, 4) == 4
    assert first(scaling(), 441, 4) == 5


def test_a_restarted_operator_stops_nobody_for_a_window() -> None:
    wanted, history, present = scaling(least=0), History(), 8
    for seconds in range(0, 300, LOOK_S):
        present, history = decide(wanted, load(0), present, history, at(seconds))
        assert present == 8
    present, history = decide(wanted, load(0), present, history, at(300))
    assert present == 4, "half of them"


def test_a_clock_that_is_set_back_stops_nobody() -> None:
    wanted, history, present = scaling(least=0), History(), 8
    for seconds in (0, 100, 200, -5000, -4900, -4800):
        present, history = decide(wanted, load(0), present, history, at(seconds))
    assert present == 8


def test_a_peak_within_the_window_keeps_its_consumers() -> None:
    wanted, history, present = scaling(), History(), 1
    for seconds in range(0, 3600, LOOK_S):
        present, history = decide(
            wanted, load(500 if seconds % 250 == 0 else 0), present, history, at(seconds)
        )
        assert present == 5, seconds


@given(
    some.integers(0, 20),
    some.integers(1, 20),
    some.integers(1, 1000),
    some.lists(
        some.tuples(
            some.integers(-100, 400), some.integers(0, 10_000), some.integers(0, 30), some.integers(0, 10_000)
        ),
        min_size=1,
        max_size=40,
    ),
    some.integers(0, 40),
)
def test_bounds_hold_for_any_loads(
    least: int, more: int, target: int, looks: list[tuple[int, int, int, int]], start: int
) -> None:
    wanted = scaling(least, least + more, target)
    history, present, seconds = History(), start, 0
    fewer_since: int | None = None  # since when there are fewer partitions than consumers
    for passed, unread, partitions, produced in looks:
        seconds += passed
        if partitions >= min(present, wanted.max):
            fewer_since = None
        elif fewer_since is None or passed < 0:  # the clock was set back
            fewer_since = seconds
        present, history = decide(
            wanted, Load(unread, produced, 0, partitions), present, history, at(seconds)
        )
        assert min(least, partitions) <= present <= least + more
        assert present <= partitions or (fewer_since is not None and seconds - fewer_since < 300)
        if unread and partitions:
            assert present > 0, "somebody reads"
        assert len(history.peaks) <= wanted.max + 1


@dataclass
class Consumers:
    """A simulated group: each consumer reads ``speed`` records a second, and takes ``start_s`` to start."""

    speed: float
    wanted: Scaling
    start_s: int = 20
    partitions: int = 12
    present: int = 1
    produced: float = 0
    consumed: float = 0
    changes: list[tuple[int, int]] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    history: History = field(default_factory=History)

    def run(self, seconds: int, rate: Callable[[int], float]) -> None:
        ready = [(0, self.present)]
        for second in range(seconds):
            active = min(self.present, [count for since, count in ready if since <= second][-1])
            self.produced += rate(second)
            self.consumed = min(self.produced, self.consumed + active * self.speed)
            self.lags.append(int(self.produced - self.consumed))
            if second % LOOK_S == 0:
                seen = Load(self.lags[-1], int(self.produced), int(self.consumed), self.partitions)
                count, self.history = decide(self.wanted, seen, self.present, self.history, at(second))
                if count != self.present:
                    self.changes.append((second, count))
                    ready.append((second + self.start_s, count))
                    self.present = count


def test_a_steady_load_gets_its_consumers_and_keeps_them() -> None:
    """The load needs three consumers. By lag alone they would stop as idle, and start again, every five minutes."""
    one = Consumers(speed=100, wanted=scaling(target=1000))
    one.run(4 * 3600, lambda second: 250)
    assert max(one.lags[3600:]) < 20_000
    assert one.changes[-1] == (one.changes[-1][0], 3)
    assert one.changes[-1][0] < 1200


def test_a_load_that_ends_lets_them_go_step_by_step_and_the_last_one_when_all_is_read() -> None:
    one = Consumers(speed=100, wanted=scaling(least=0, target=1000))
    one.run(3 * 3600, lambda second: 500 if second < 1800 else 0)
    assert max(count for _, count in one.changes) >= 5
    downs = [count for second, count in one.changes if second > 1800]
    assert downs == sorted(downs, reverse=True)
    assert one.present == 0
    assert one.lags[-1] == 0
    assert one.changes[-1][0] < 3 * 3600


def test_from_none_and_back_for_each_burst() -> None:
    one = Consumers(speed=100, wanted=scaling(least=0, target=1000), present=0)
    one.run(4 * 3600, lambda second: 50 if second % 3600 < 60 else 0)
    starts = [second for second, count in one.changes if count == 1]
    ends = [second for second, count in one.changes if count == 0]
    assert len(starts) == len(ends) == 4
    assert one.lags[-1] == 0


def test_more_than_all_consumers_can_do_takes_them_all_and_no_more() -> None:
    one = Consumers(speed=10, wanted=scaling(most=50, target=1000), partitions=6)
    one.run(3600, lambda second: 1000)
    assert one.present == 6
    assert one.changes[-1][0] < 120


def observed(committed: dict[Partition, int], ends: dict[Partition, int]) -> Observed:
    return Observed(GroupState("Empty", ()), committed, ends)


def test_the_load_is_counted_without_members() -> None:
    spec = group("watch", topics=["a"])
    resource = decode_as(ConsumerGroup, spec)
    a0, a1, other = Partition("a", 0), Partition("a", 1), Partition("b", 0)
    assert load_of(resource, observed({a0: 4}, {a0: 10, a1: 0})) == Load(6, 10, 4, 2)
    gone = Observed(GroupState("Empty", ()), {a0: 4}, {}, missing=("a",))
    assert load_of(resource, gone) == Load(0, 0, 0, 0, missing=True)
    assert load_of(resource, observed({a0: 4, other: 1}, {a0: 4, a1: 0, other: 3})) == Load(2, 7, 5, 2)


def test_a_topic_without_any_position_needs_a_first_consumer_once_it_has_records() -> None:
    resource = decode_as(ConsumerGroup, group("watch", topics=["a"]))
    a0 = Partition("a", 0)
    assert load_of(resource, observed({}, {a0: 5})).unread == 1
    assert load_of(resource, observed({}, {a0: 0})).unread == 0
