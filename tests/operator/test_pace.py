"""How often a status is written when only numbers changed."""

from __future__ import annotations

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
from millstream_operator.pace import BUDGET, PER_SECOND, Pace, in_round_numbers, rounded
from millstream_operator.status import write_status


def sized(size: int | None, **more: Any) -> TopicStatus:
    return TopicStatus(size_bytes=size, partitions=3, **more)


def spent(pace: Pace, now: float = 0.0) -> int:
    """Number of small changes written before the first is held back."""
    count = 0
    while not pace.holds_back(sized(100 + count), sized(101 + count), now):
        count += 1
    return count


def test_few_changes_are_all_written() -> None:
    pace = Pace()
    assert not any(pace.holds_back(sized(n), sized(n + 1), n * 2.5 * 2) for n in range(1000))


def test_many_are_written_only_when_they_gain_or_lose_a_digit() -> None:
    pace = Pace()
    assert spent(pace) == BUDGET / 2 + 1
    assert pace.holds_back(sized(99), sized(98), 0.0)
    assert not pace.holds_back(sized(99), sized(100), 0.0)
    assert not pace.holds_back(sized(1), sized(0), 0.0)


def test_together_they_stay_within_the_budget() -> None:
    pace = Pace()
    written = sum(not pace.holds_back(sized(9), sized(10), second / 10) for second in range(36_000))
    assert written <= BUDGET + 3600 * PER_SECOND + 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (sized(None), sized(5)),
        (sized(5), sized(6, under_replicated=1)),
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
    ids=["first known", "a state beside it", "first lag", "another topic", "another state"],
)
def test_anything_else_is_written_at_once(before: msgspec.Struct, after: msgspec.Struct) -> None:
    pace = Pace()
    while not pace.holds_back(sized(9), sized(10), 0.0):
        pass
    assert not pace.holds_back(before, after, 0.0)  # type: ignore[arg-type]


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
    ],
    ids=["group", "mirror"],
)
def test_lags_are_such_numbers(before: msgspec.Struct, after: msgspec.Struct) -> None:
    pace = Pace()
    spent(pace)
    assert pace.holds_back(before, after, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, 0), (1, 1), (99, 99), (100, 100), (109, 100), (34_567, 34_000), (999_999, 990_000)],
)
def test_a_status_shows_two_digits(number: int, shown: int) -> None:
    assert rounded(number) == shown
    assert in_round_numbers(sized(number)) == sized(shown)
    lag = Lag(records=number, seconds=5)
    topics = (TopicLag(topic="a", partitions=number, lag=number),)
    assert in_round_numbers(ConsumerGroupStatus(lag=lag, topics=topics)) == ConsumerGroupStatus(
        lag=Lag(records=shown, seconds=5), topics=(TopicLag(topic="a", partitions=number, lag=shown),)
    )


def test_a_number_that_is_the_same_in_round_numbers_is_not_written() -> None:
    found = in_memory(stored(topic("a"), {"sizeBytes": 12_000}))
    shown = decode_as(Topic, found.kube.objects["Topic", "a"])
    assert not write_status(found.services, shown, TopicStatus(size_bytes=12_999))
    assert write_status(found.services, shown, TopicStatus(size_bytes=13_001))
    assert found.status("Topic", "a") == {"sizeBytes": 13_000}


def test_what_is_held_back_is_not_written_and_the_rest_is() -> None:
    found = in_memory(stored(topic("a"), {"sizeBytes": 100}))
    assert found.services.pace is not None
    spent(found.services.pace, found.services.now().timestamp())
    shown = decode_as(Topic, found.kube.objects["Topic", "a"])
    assert not write_status(found.services, shown, TopicStatus(size_bytes=110))
    assert found.kube.applied == []
    assert write_status(found.services, shown, TopicStatus(size_bytes=110, partitions=3))
    assert found.status("Topic", "a") == {"sizeBytes": 110, "partitions": 3}
