"""A flood fills neither the disk nor the place of others."""

from __future__ import annotations

from millstream_broker.security.audit.limits import (
    ADMINISTRATIVE,
    BURST_S,
    DENIED,
    LOGIN,
    MOST_COUNTED,
    MOST_SOURCES,
    OTHERS,
    EventSource,
    LineLimits,
)

ALICE, BOB = EventSource("User:alice", "10.0.0.1"), EventSource("User:bob", "10.0.0.2")


def admitted(limits: LineLimits, kind: str, source: EventSource, now: float, times: int) -> int:
    return sum(limits.admits(kind, source, now) for _ in range(times))


def test_one_source_has_a_tenth_of_the_rate_of_denials() -> None:
    limits = LineLimits(100)
    assert admitted(limits, DENIED, ALICE, 0.0, 1000) == 100
    assert admitted(limits, DENIED, ALICE, 1.0, 1000) == 10
    assert admitted(limits, DENIED, BOB, 1.0, 50) == 50


def test_many_sources_share_the_rate_of_a_kind() -> None:
    limits = LineLimits(100)
    count = sum(
        admitted(limits, DENIED, EventSource(f"User:{number}", ""), 0.0, 100) for number in range(100)
    )
    assert count == 100 * BURST_S
    assert not limits.admits(DENIED, BOB, 0.0)
    assert limits.admits(ADMINISTRATIVE, BOB, 0.0)
    assert limits.admits(LOGIN, BOB, 0.0)


def test_one_administrator_has_the_whole_rate() -> None:
    assert admitted(LineLimits(100), ADMINISTRATIVE, ALICE, 0.0, 2000) == 100 * BURST_S


def test_a_clock_that_goes_back_admits_nothing_more() -> None:
    limits = LineLimits(10)
    assert admitted(limits, DENIED, ALICE, 100.0, 100) == 10
    assert admitted(limits, DENIED, ALICE, 0.0, 100) == 0


def test_suppressed_events_are_counted_by_source_up_to_a_limit() -> None:
    limits = LineLimits(1)
    admitted(limits, DENIED, ALICE, 0.0, 11)
    for number in range(MOST_COUNTED + 100):
        admitted(limits, DENIED, EventSource("", str(number)), 0.0, 11)
    suppressed = limits.take_suppressed()
    assert suppressed[DENIED, ALICE] == 10
    assert len(suppressed) == MOST_COUNTED + 1
    assert sum(suppressed.values()) == 11 * (MOST_COUNTED + 101) - BURST_S
    assert suppressed[DENIED, OTHERS] > 100
    assert limits.take_suppressed() == {}


def test_it_remembers_a_limited_number_of_sources() -> None:
    limits = LineLimits(1)
    for number in range(MOST_SOURCES + 100):
        limits.admits(DENIED, EventSource("", str(number)), 0.0)
    assert len(limits._of_source) == MOST_SOURCES
