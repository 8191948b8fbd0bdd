"""What the attacks on a secured cluster are, and what counts as growth, without any process."""

from __future__ import annotations

import random

import pytest

from millstream_faults.hostility.messages import any_frame, mutated
from millstream_faults.hostility.samples import (
    MB,
    Phases,
    Usage,
    acknowledged,
    growth,
    lost,
    percentile,
    waits,
)
from millstream_kafka.protocol.api import APIS

PHASES = Phases(before=10.0, attack=20.0, calm=50.0, end=60.0)


def samples(**of_phase: int) -> list[Usage]:
    """One broker's: `before`, `middle`, `last` and `after`, in MB; descriptors and threads stay the same."""
    times = {"before": 15.0, "middle": 35.0, "last": 45.0, "after": 55.0}
    return [Usage(at, of_phase[phase] * MB, 50, 8, 40) for phase, at in times.items()]


def test_memory_that_settles_is_no_growth() -> None:
    assert growth({1: samples(before=60, middle=150, last=160, after=120)}, PHASES) == []


@pytest.mark.parametrize(
    ("of_phase", "said"),
    [
        ({"before": 60, "middle": 150, "last": 250, "after": 60}, "memory grew from"),
        ({"before": 60, "middle": 150, "last": 150, "after": 150}, "memory was"),
    ],
)
def test_memory_that_grows_or_stays_is_named(of_phase: dict[str, int], said: str) -> None:
    (found,) = growth({3: samples(**of_phase)}, PHASES)
    assert found.startswith(f"broker 3: {said}")


@pytest.mark.parametrize("name", ["descriptors", "threads", "tasks"])
def test_file_descriptors_and_threads_must_come_back(name: str) -> None:
    kept = [
        each._replace(**{name: 500}) if each.at > 30 else each
        for each in samples(before=1, middle=1, last=1, after=1)
    ]
    (found,) = growth({1: kept}, PHASES)
    assert f"{name} was" in found


def test_a_sample_without_tasks_is_no_end_of_a_leak() -> None:
    """A broker that is too busy for its metrics."""
    kept = [
        each._replace(tasks=500) if each.at > 30 else each
        for each in samples(before=1, middle=1, last=1, after=1)
    ]
    kept.append(kept[-1]._replace(at=56.0, tasks=0))
    (found,) = growth({1: kept}, PHASES)
    assert found == "broker 1: tasks was 40 before the attack, and is 500 after it"


def test_acknowledged_records_are_where_they_were_acknowledged() -> None:
    lines = ["1.0 produce 0.01", "1.0 acknowledged 0 7 a\n", "2.0 fetch 0.01", "2.0 acknowledged 1 0 b c\n"]
    assert acknowledged(lines) == {0: {7: "a"}, 1: {0: "b c"}}
    assert lost(acknowledged(lines), {0: {6: "x", 7: "a"}, 1: {0: "b c"}}) == []
    assert lost(acknowledged(lines), {0: {7: "b"}, 2: {0: "b c"}}) == [
        "partition 0: 1 of 1 acknowledged records are lost or others, first that at offset 7",
        "partition 1: 1 of 1 acknowledged records are lost or others, first that at offset 0",
    ]
    assert waits(lines, PHASES).errors == []


def test_percentiles_are_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 0.5) == 50.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.99) == 0.0


def test_a_client_that_waits_more_than_twice_as_long_is_named() -> None:
    lines = [f"{at}.0 produce {0.010 if at < 20 else 0.025}\n" for at in range(5, 65)]
    lines += [f"{at}.0 fetch {0.010 if at < 20 else 0.019}\n" for at in range(5, 65)]
    found = waits([*lines, "30.0 fetch ApiError: it failed\n", "5.0 fetch BrokerError: before\n"], PHASES)
    assert found.slower() == ["produce: p99 was 10.0 ms before, and 25.0 ms during the attack"]
    assert found.errors == ["during: fetch: ApiError: it failed"]
    assert len(found.seconds["fetch", "before"]) == 10
    assert len(found.rows()) == 6


def test_equal_seeds_give_equal_requests_to_every_api() -> None:
    drawn = [[any_frame(random.Random(seed)) for seed in range(1500)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {name for name, _ in drawn[0]} == {api.name for api in APIS.values()}


def test_a_mutation_changes_something() -> None:
    data = bytes(range(200))
    assert all(mutated(random.Random(seed), data) != data for seed in range(50))
    assert mutated(random.Random(1), b"") is not None
