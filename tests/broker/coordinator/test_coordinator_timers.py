"""Deadlines by key: each comes due once, in order, at the time last set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.coordinator.timers import Timers


def due(timers: Timers[str], now: int) -> list[str]:
    """All keys due by then, in the order of their deadlines."""
    found = []
    while (key := timers.pop_due(now)) is not None:
        found.append(key)
    return found


def test_without_deadlines_there_is_nothing_to_wait_for() -> None:
    timers: Timers[str] = Timers()
    assert timers.earliest() is None
    assert timers.pop_due(10**9) is None


def test_deadline_is_due_at_its_very_time_and_only_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    assert timers.earliest() == 10
    assert due(timers, 9) == []
    assert due(timers, 10) == ["a"]
    assert due(timers, 11) == []
    assert timers.earliest() is None


def test_deadlines_come_due_by_time_and_those_of_one_time_in_the_order_they_were_set() -> None:
    timers: Timers[str] = Timers()
    for key, deadline in [("late", 30), ("x", 20), ("b", 20), ("a", 20), ("early", 10)]:
        timers.set(key, deadline)
    assert timers.earliest() == 10
    assert due(timers, 30) == ["early", "x", "b", "a", "late"]


def test_cancelled_deadline_is_not_due_and_hides_no_other() -> None:
    timers: Timers[str] = Timers()
    timers.set("gone", 10)
    timers.set("kept", 10)
    timers.cancel("gone")
    timers.cancel("never set")
    assert due(timers, 10) == ["kept"]
    timers.set("gone", 20)
    timers.cancel("gone")
    assert timers.earliest() is None


def test_deadline_that_is_put_off_comes_due_at_the_later_time() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("a", 30)
    timers.set("b", 20)
    assert due(timers, 29) == ["b"]
    assert timers.earliest() == 30
    assert due(timers, 30) == ["a"]


def test_deadline_that_is_set_again_and_again_takes_no_room() -> None:
    timers: Timers[str] = Timers()
    for deadline in [10] * 100 + list(range(10, 100)):
        timers.set("a", deadline)
    assert len(timers._heap) == 1
    assert due(timers, 99) == ["a"]


def test_deadline_that_is_brought_forward_comes_due_at_the_earlier_time() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 30)
    timers.set("a", 10)
    assert timers.earliest() == 10
    assert due(timers, 10) == ["a"]
    timers.set("a", 40)
    assert due(timers, 39) == []
    assert due(timers, 40) == ["a"]


KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 12)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_is_set_and_cancelled_what_is_due_is_what_a_dictionary_of_deadlines_says(
    steps: list[tuple[str, str, int]],
) -> None:
    timers: Timers[str] = Timers()
    deadlines: dict[str, int] = {}
    now = 0
    for what, key, number in steps:
        if what == "set":
            timers.set(key, now + number)
            deadlines[key] = now + number
        elif what == "cancel":
            timers.cancel(key)
            deadlines.pop(key, None)
        else:
            now += number
            passed = sorted(key for key, deadline in deadlines.items() if deadline <= now)
            assert sorted(due(timers, now)) == passed
            for each in passed:
                del deadlines[each]
        earliest = timers.earliest()
        assert (earliest is None) == (not deadlines)
        assert earliest is None or earliest <= min(deadlines.values())
