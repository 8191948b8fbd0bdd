"""A flood of one kind or from one source hides no other, in bounded memory."""

from __future__ import annotations

from millstream_broker.runtime.line_limits import MOST_COUNTED, MOST_SOURCES, LineLimits

SHARES = {"shared": 0.1, "whole": 1.0}


def limits(per_second: float = 1.0, burst: float = 100.0) -> LineLimits[str, str]:
    return LineLimits(per_second, burst, SHARES.__getitem__)


def admitted(of: LineLimits[str, str], kind: str, source: str, now: float, times: int = 1000) -> int:
    return sum(of.admits(kind, source, now) for _ in range(times))


def test_a_source_has_its_share_of_burst_and_rate() -> None:
    some = limits()
    assert admitted(some, "shared", "a", 0.0) == 10
    assert admitted(some, "shared", "a", 30.0) == 3
    assert admitted(some, "shared", "a", 1e6) == 10
    assert admitted(some, "whole", "a", 1e6) == 100


def test_all_sources_of_a_kind_share_its_burst_and_rate() -> None:
    some = limits()
    assert sum(admitted(some, "shared", str(number), 0.0) for number in range(50)) == 100
    assert sum(admitted(some, "shared", str(number), 60.0) for number in range(50)) == 60
    assert some.admits("whole", "0", 60.0)


def test_a_clock_that_goes_back_admits_nothing_more() -> None:
    some = limits()
    assert admitted(some, "whole", "a", 100.0) == 100
    assert admitted(some, "whole", "a", 0.0) == 0
    admitted(some, "whole", "a", 30.0)
    assert admitted(some, "whole", "a", 60.0) == 30, "and later no less"


def test_suppressed_lines_are_counted_by_source_up_to_a_limit() -> None:
    some = limits(burst=10.0)
    for number in range(MOST_COUNTED + 100):
        admitted(some, "shared", str(number), 0.0, 11)
    suppressed = some.take_suppressed()
    assert suppressed["shared", "0"] == 10
    assert len(suppressed) == MOST_COUNTED + 1
    assert sum(suppressed.values()) == 11 * (MOST_COUNTED + 100) - 10
    assert suppressed["shared", None] == 11 * 100
    assert some.take_suppressed() == {}


def test_it_remembers_a_limited_number_of_sources() -> None:
    some = limits()
    for number in range(MOST_SOURCES):
        some.admits("shared", str(number), 0.0)
    some.admits("shared", "0", 0.0)
    for number in range(100):
        some.admits("shared", f"late {number}", 0.0)
    kept = {source for _, source in some._of_source}
    assert len(kept) == MOST_SOURCES
    assert {"0", "late 0", "late 99", "101"} <= kept
    assert not {"1", "100"} & kept, "those that have been silent for longest are forgotten"
