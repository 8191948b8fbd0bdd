"""A flood fills neither the disk nor the place of others; the rule itself is tested as `line_limits`."""

from __future__ import annotations

from millstream_broker.security.audit.limits import (
    ADMINISTRATIVE,
    BURST_S,
    DENIED,
    LOGIN,
    AuditLimits,
    EventSource,
    audit_limits,
)

ALICE, BOB = EventSource("User:alice", "10.0.0.1"), EventSource("User:bob", "10.0.0.2")


def admitted(limits: AuditLimits, kind: str, source: EventSource, now: float, times: int) -> int:
    return sum(limits.admits(kind, source, now) for _ in range(times))


def test_one_source_has_a_tenth_of_the_rate_of_denials_and_logins() -> None:
    limits = audit_limits(100)
    for kind in (DENIED, LOGIN):
        assert admitted(limits, kind, ALICE, 0.0, 1000) == 100
        assert admitted(limits, kind, ALICE, 1.0, 1000) == 10
        assert admitted(limits, kind, BOB, 1.0, 50) == 50


def test_many_sources_share_the_rate_of_a_kind() -> None:
    limits = audit_limits(100)
    count = sum(
        admitted(limits, DENIED, EventSource(f"User:{number}", ""), 0.0, 100) for number in range(100)
    )
    assert count == 100 * BURST_S
    assert not limits.admits(DENIED, BOB, 0.0)
    assert limits.admits(ADMINISTRATIVE, BOB, 0.0)
    assert limits.admits(LOGIN, BOB, 0.0)


def test_one_administrator_has_the_whole_rate() -> None:
    assert admitted(audit_limits(100), ADMINISTRATIVE, ALICE, 0.0, 2000) == 100 * BURST_S
