"""Age of the record at an offset: correct, and without a request once a partition was observed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_operator.kafka.lag_age import KEPT, OLDEST_S, STEP_S, UNSEEN_S, OffsetTimes, Wanted
from millstream_operator.kafka.records import Partition

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
START = 1_800_000_000_000


class Logs:
    """ListOffsets over logs whose records have these timestamps in ms, in this order."""

    def __init__(self, times: Mapping[Partition, list[int]]) -> None:
        self.times = {partition: list(several) for partition, several in times.items()}
        self.asked: list[dict[Partition, int]] = []

    def find(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        self.asked.append(dict(wanted))
        found = {}
        for partition, when in wanted.items():
            late = [offset for offset, time in enumerate(self.times[partition]) if time >= when]
            found[partition] = late[0] if late else -1
        return found

    def ends(self) -> dict[Partition, int]:
        return {partition: len(times) for partition, times in self.times.items()}


def aged(seconds: Mapping[Partition, list[int]], now: int = START) -> Logs:
    """Logs whose records have these ages."""
    return Logs({p: [now - age * 1000 for age in sorted(ages, reverse=True)] for p, ages in seconds.items()})


def tolerance(age: float) -> float:
    return max(STEP_S, age / 4) + 1


@given(
    ages=st.lists(st.integers(0, 400_000_000), min_size=1, max_size=20),
    other=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
    data=st.data(),
)
def test_an_age_is_right_for_what_was_never_seen_before(
    ages: list[int], other: list[int], data: st.DataObject
) -> None:
    logs, times = aged({A0: ages, A1: other}), OffsetTimes()
    times.saw_ends(logs.ends(), START)
    wanted = [Wanted(A0, offset) for offset in data.draw(st.sets(st.integers(0, len(ages) - 1), max_size=4))]
    wanted += [Wanted(A1, data.draw(st.integers(0, len(other) - 1)))]
    found = times.ages(wanted, START, logs.find)
    for one in wanted:
        age = (START - logs.times[one.partition][one.offset]) / 1000
        assert abs(found[one] - age) <= tolerance(max(age, found[one])), (one, age, found[one])


@given(
    steps=st.lists(st.integers(0, 30), min_size=2, max_size=300),
    reader=st.floats(0, 1),
    limit=st.integers(1, 400),
)
def test_what_was_seen_is_not_asked_again(steps: list[int], reader: float, limit: int) -> None:
    """A log grows by these numbers of records between observations, which are 10 s apart."""
    logs, times, now = Logs({A0: []}), OffsetTimes(), START
    times.saw_ends(logs.ends(), now)
    for count in steps:
        logs.times[A0] += [now + 10_000 * (number + 1) // (count + 1) for number in range(count)]
        now += 10_000
        times.saw_ends(logs.ends(), now)
    if not logs.times[A0]:
        return
    offset = min(len(logs.times[A0]) - 1, int(reader * len(logs.times[A0])))
    age = (now - logs.times[A0][offset]) / 1000
    found = times.ages([Wanted(A0, offset)], now, logs.find)[Wanted(A0, offset)]
    assert abs(found - age) <= tolerance(max(age, found))
    if len(steps) < KEPT:
        assert logs.asked == []
    judged = Wanted(A0, offset, limit)
    logs.asked.clear()
    assert (times.ages([judged], now, logs.find)[judged] > limit) == (age > limit)
    assert len(logs.asked) <= 1


def test_a_group_that_keeps_up_costs_nothing() -> None:
    logs, times, now = Logs({A0: []}), OffsetTimes(), START
    times.saw_ends(logs.ends(), now)
    for _ in range(500):
        logs.times[A0] += [now + 1000, now + 4000, now + 9000]
        now += 10_000
        times.saw_ends(logs.ends(), now)
        behind = Wanted(A0, len(logs.times[A0]) - 2)
        assert times.ages([behind], now, logs.find)[behind] <= 10
    assert logs.asked == []


def test_all_partitions_and_groups_share_each_request() -> None:
    alone, logs = aged({A0: [5000]}), aged({A0: [5000, 100], A1: [4000], B0: [3000]})
    OffsetTimes().ages([Wanted(A0, 0)], START, alone.find)
    wanted = [Wanted(A0, 0), Wanted(A1, 0), Wanted(B0, 0), Wanted(B0, 0, 3_600)]
    found = OffsetTimes().ages(wanted, START, logs.find)
    assert len(found) == 4
    assert len(logs.asked) <= len(alone.asked) + 2


@pytest.mark.parametrize(
    ("age", "limit", "is_above"), [(60, 60, False), (61, 60, True), (3, 2, True), (2, 3, False)]
)
def test_on_which_side_of_a_limit_an_age_is(age: int, limit: int, is_above: bool) -> None:
    logs, times = aged({A0: [age]}), OffsetTimes()
    wanted = Wanted(A0, 0, limit)
    assert (times.ages([wanted], START, logs.find)[wanted] > limit) is is_above


def test_a_record_that_no_time_finds_is_as_old_as_a_record_can_be() -> None:
    assert OffsetTimes().ages([Wanted(A0, 7)], START, lambda wanted: dict.fromkeys(wanted, -1)) == {
        Wanted(A0, 7): OLDEST_S
    }


def test_a_record_without_a_time_is_as_old_as_time() -> None:
    logs = Logs({A0: [-1]})
    assert OffsetTimes().ages([Wanted(A0, 0)], START, logs.find) == {Wanted(A0, 0): OLDEST_S}


def test_nothing_behind_asks_nothing() -> None:
    logs = aged({})
    assert OffsetTimes().ages([], START, logs.find) == {}
    assert logs.asked == []


def test_a_log_that_was_made_anew_is_learnt_anew() -> None:
    times = OffsetTimes()
    times.saw_ends({A0: 1000}, START - 600_000)
    times.saw_ends({A0: 2000}, START - 300_000)
    logs = aged({A0: [40, 20]})
    times.saw_ends(logs.ends(), START)
    found = times.ages([Wanted(A0, 0)], START, logs.find)[Wanted(A0, 0)]
    assert abs(found - 40) <= tolerance(40)


def test_times_that_producers_give_need_not_grow() -> None:
    logs = Logs({A0: [START - 1000, START - 900_000, START - 2000, START - 50_000, START]})
    times = OffsetTimes()
    times.saw_ends(logs.ends(), START)
    found = times.ages([Wanted(A0, offset) for offset in range(5)], START, logs.find)
    assert all(1 <= age <= 900 + tolerance(900) for age in found.values())


def test_what_nobody_looks_at_is_forgotten() -> None:
    times = OffsetTimes()
    times.saw_ends({A0: 0, B0: 0}, START)
    times.saw_ends({A0: 1, B0: 1}, START + 10_000)
    later = START + 10_001 + int(UNSEEN_S * 1000)
    times.saw_ends({B0: 1}, later)
    times.forget_unseen(later)
    logs = aged({A0: [3605], B0: [3605]}, later)
    assert 3600 <= times.ages([Wanted(B0, 0)], later, logs.find)[Wanted(B0, 0)] <= 3611
    assert logs.asked == [], "it was seen to come"
    times.ages([Wanted(A0, 0)], later, logs.find)
    assert logs.asked != []


def test_a_clock_that_is_set_back_makes_no_record_young() -> None:
    logs, times = Logs({A0: [START - 1000] * 20}), OffsetTimes()
    times.saw_ends({A0: 10}, START + 3_600_000)
    times.saw_ends(logs.ends(), START)
    later = START + 600_000
    times.saw_ends(logs.ends(), later)
    found = times.ages([Wanted(A0, 15)], later, logs.find)[Wanted(A0, 15)]
    assert abs(found - 601) <= tolerance(601)
