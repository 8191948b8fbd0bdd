"""How often a status is written when only numbers changed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import topic
from millstream_operator.models import (
    ConsumerGroupStatus,
    Lag,
    MirrorMakerStatus,
    MirrorSourceStatus,
    Topic,
    TopicLag,
    TopicStatus,
    decode_as,
)
from millstream_operator.models.keys import Key
from millstream_operator.state.status import write_status
from millstream_operator.state.status_throttle import BUDGET, PER_SECOND, RESERVE, SETTLED_S, UNSEEN_S, Pace

RATE = PER_SECOND["ConsumerGroup"]
GROUPS = 500
LOOK_S = 8.0


def key(number: int = 0, kind: str = "ConsumerGroup") -> Key:
    return Key(kind, "ns", f"one-{number}")


def behind(records: int | None, seconds: int = 1, **more: Any) -> ConsumerGroupStatus:
    return ConsumerGroupStatus(lag=Lag(records=records, seconds=seconds), state="Stable", **more)


class Groups:
    """Groups that are looked at as the operator does it: all of them, every ``LOOK_S``."""

    def __init__(self, count: int) -> None:
        self.pace = Pace()
        self.now = 0.0
        self.shown = dict.fromkeys(range(count), 1000)
        self.lags = dict(self.shown)
        self.writes: list[float] = []
        self.written_at = dict.fromkeys(self.shown, 0.0)
        self.random = random.Random(1)

    def look(self) -> None:
        self.now += LOOK_S
        for number in self.random.sample(sorted(self.lags), len(self.lags)):
            shown, lag = self.shown[number], self.lags[number]
            if shown == lag:
                self.pace.shows(key(number))
            elif not self.pace.holds_back(key(number), behind(shown), behind(lag), self.now):
                self.shown[number] = lag
                self.writes.append(self.now)
                self.written_at[number] = self.now

    def move(self) -> None:
        self.lags = {
            number: lag + self.random.choice((-3, -2, -1, 1, 2, 3)) for number, lag in self.lags.items()
        }

    def run(self, seconds: float) -> None:
        """Observe all groups under traffic."""
        until = self.now + seconds
        while self.now < until:
            self.move()
            self.look()


def test_few_groups_show_each_number() -> None:
    found = Groups(4)
    for _ in range(1000):
        found.move()
        found.look()
        assert found.shown == found.lags


def test_many_groups_stay_within_the_budget_and_take_turns() -> None:
    """Under constant traffic, each status is written as often as the others."""
    found = Groups(200)
    found.run(600)
    found.writes.clear()
    found.run(1000)
    assert len(found.writes) == pytest.approx(RATE * 1000, rel=0.02)
    assert found.now - min(found.written_at.values()) <= 200 / RATE + 2 * LOOK_S


def test_the_last_number_of_all_is_written_once_they_stand_still() -> None:
    """The reserve serves most of them at once, and the budget the others."""
    found = Groups(GROUPS)
    found.run(400)
    before = found.now
    assert found.shown != found.lags
    while found.now <= before + SETTLED_S + 2 * LOOK_S:
        found.look()
    assert sum(found.shown[one] == lag for one, lag in found.lags.items()) >= RESERVE
    while found.now <= before + SETTLED_S + 2 * LOOK_S + (GROUPS - RESERVE) / RATE:
        found.look()
    assert found.shown == found.lags
    assert len(found.writes) <= BUDGET + RATE * found.now


def test_no_pattern_of_traffic_exceeds_the_budget() -> None:
    """Groups that stop, move, and grow tenfold in turn."""
    found = Groups(GROUPS)
    for number in range(150):
        if number % 5 == 0:
            found.lags = {one: found.random.choice((3, 1000, 123_457)) + number for one in found.lags}
        found.look()
    times = [0.0, *found.writes]
    for begin in range(0, int(found.now), 100):
        for length in (100, 300, 1000):
            count = sum(begin <= at < begin + length for at in times)
            assert count <= BUDGET + RATE * length, (begin, length)
    assert len(found.writes) <= BUDGET + RATE * found.now


def test_a_tenfold_number_does_not_wait_for_its_turn() -> None:
    found = Groups(GROUPS)
    found.run(600)
    found.move()
    found.lags |= {7: 10 * found.shown[7], 8: found.shown[8] // 10, 9: 9 * found.shown[9]}
    found.look()
    assert (found.shown[7], found.shown[8]) == (found.lags[7], found.lags[8])
    assert found.shown[9] != found.lags[9]


def test_a_number_that_has_changed_much_gets_its_turn_much_sooner() -> None:
    """Of 500 groups, twenty have growing lags; all other numbers stay almost right."""
    found = Groups(GROUPS)
    found.run(600)
    oldest, wrong = 0.0, 0.0
    for round_ in range(600):
        found.move()
        for number in range(20):
            found.lags[number] = int(found.lags[number] * 1.03) % 100_000_000
        found.look()
        for number in range(20 if round_ > 100 else 0):
            oldest = max(oldest, found.now - found.written_at[number])
            wrong = max(wrong, found.lags[number] / found.shown[number])
    assert oldest < 300
    assert wrong < 3
    assert found.now - min(found.written_at.values()) < 1.5 * GROUPS / RATE, "nobody starves"


def test_kinds_have_budgets_of_their_own() -> None:
    pace = Pace()
    written: Counter[str] = Counter()
    for kind in PER_SECOND:
        for number in range(int(BUDGET)):
            one = key(number, kind)
            written[kind] += not pace.holds_back(one, behind(5), behind(6), 0.0)
    assert set(written.values()) == {BUDGET - RESERVE}


def test_who_does_not_come_any_longer_keeps_nobody_waiting() -> None:
    """Groups whose Cluster hangs are next in turn, but are not observed."""
    found = Groups(GROUPS)
    found.run(600)
    for number in [one for one in range(GROUPS) if found.shown[one] != found.lags[one]][:400]:
        del found.lags[number]
    found.run(2 * UNSEEN_S)
    found.writes.clear()
    found.run(1000)
    assert len(found.writes) == pytest.approx(RATE * 1000, rel=0.02)


def test_an_age_that_grows_is_no_change_of_what_stands_still() -> None:
    pace, now = spent(), 0.0
    while pace.holds_back(key(2), behind(5, 10), behind(6, 11 + int(now)), now):
        now += 1.0
    assert now == SETTLED_S


def test_a_number_that_comes_and_goes_does_not_stand_still() -> None:
    pace = spent()
    for now in range(0, 120, 8):
        assert pace.holds_back(key(), behind(5), behind(6), now)
        pace.shows(key())


def spent() -> Pace:
    """No budget is left for small changes, and other groups wait."""
    pace = Pace()
    for number in range(1000, 2000):
        pace.holds_back(key(number), behind(5), behind(6), 0.0)
    return pace


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (behind(None), behind(5)),
        (behind(5), behind(6, member_count=1)),
        (ConsumerGroupStatus(), ConsumerGroupStatus(lag=Lag(records=1, seconds=1))),
        (
            ConsumerGroupStatus(topics=(TopicLag(topic="a", lag=1),)),
            ConsumerGroupStatus(topics=(TopicLag(topic="a", lag=1), TopicLag(topic="b", lag=1))),
        ),
        (
            ConsumerGroupStatus(state="Empty", lag=Lag(records=1, seconds=1)),
            ConsumerGroupStatus(state="Stable", lag=Lag(records=2, seconds=2)),
        ),
    ],
    ids=["first known", "a count beside it", "first lag", "another topic", "another state"],
)
def test_anything_else_is_written_at_once(before: msgspec.Struct, after: msgspec.Struct) -> None:
    assert not spent().holds_back(key(), before, after, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            ConsumerGroupStatus(lag=Lag(records=1, seconds=1), topics=(TopicLag(topic="a", lag=1),)),
            ConsumerGroupStatus(lag=Lag(records=2, seconds=3), topics=(TopicLag(topic="a", lag=2),)),
        ),
        (
            MirrorMakerStatus(sources=(MirrorSourceStatus(name="a", lag=Lag(records=1, seconds=1)),)),
            MirrorMakerStatus(sources=(MirrorSourceStatus(name="a", lag=Lag(records=2, seconds=1)),)),
        ),
        (TopicStatus(size_bytes=5, partitions=3), TopicStatus(size_bytes=6, partitions=3)),
    ],
    ids=["group", "mirror", "topic"],
)
def test_lags_and_sizes_are_such_numbers(before: msgspec.Struct, after: msgspec.Struct) -> None:
    assert spent().holds_back(key(), before, after, 0.0)  # type: ignore[arg-type]


def test_what_is_held_back_is_not_written_and_the_rest_is_with_all_its_digits() -> None:
    found = in_memory(stored(topic("a"), {"sizeBytes": 123_456}))
    pace, now = found.services.pace, found.services.now().timestamp()
    assert pace is not None
    for number in range(1000):
        pace.holds_back(key(number, "Topic"), TopicStatus(size_bytes=5), TopicStatus(size_bytes=6), now)
    shown = decode_as(Topic, found.kube.objects["Topic", "a"])
    assert not write_status(found.services, shown, TopicStatus(size_bytes=123_457))
    assert found.kube.applied == []
    assert write_status(found.services, shown, TopicStatus(size_bytes=123_457, partitions=3))
    assert found.status("Topic", "a") == {"sizeBytes": 123_457, "partitions": 3}
