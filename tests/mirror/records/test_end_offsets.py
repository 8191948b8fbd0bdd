"""Since when a task is behind: never later than the oldest missing record was seen, and hardly earlier."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from millstream_mirror.records.end_offsets import MOST, EndOffsets


def test_lag_counts_missing_records_only() -> None:
    ends = EndOffsets()
    for second in range(1000):
        ends.observe(100 * (second + 1), 1000 * second)
        assert ends.behind_since(100 * second) == 1000 * second


def test_complete_task_has_no_lag() -> None:
    ends = EndOffsets()
    assert ends.behind_since(0) is None
    ends.observe(10, 5)
    assert ends.behind_since(9) == 5
    assert ends.behind_since(10) is None
    ends.observe(10, 9)
    assert ends.behind_since(10) is None


def test_lost_source_records_are_not_missing() -> None:
    ends = EndOffsets()
    ends.observe(1000, 5)
    ends.observe(991, 900)
    assert ends.behind_since(990) == 900


@pytest.mark.parametrize("seed", range(20))
def test_merged_times_are_never_too_late(seed: int) -> None:
    some = random.Random(seed)
    ends, seen = EndOffsets(), [(0, 0)]
    now = end = offset = 0
    for _ in range(5000):
        now += some.randrange(1, 400)
        end += some.randrange(0, 20)
        ends.observe(end, now)
        if end > seen[-1][0]:
            seen.append((end, now))
        offset = min(end, offset + some.randrange(0, 19))
        since = ends.behind_since(offset)
        if offset == end:
            assert since is None
        else:
            assert since is not None
            exact = seen[bisect_right(seen, (offset, 1 << 60))][1]
            assert exact - 1000 - (now - since) // 50 <= since <= exact
        assert len(ends._ends) <= MOST
