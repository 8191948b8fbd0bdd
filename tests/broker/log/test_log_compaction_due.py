"""When a log is due for compaction, and up to which offset."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.compaction_due import due
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_harness.compaction import NOW, compact, put, put_closed

CONFIG = LogConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)


def configure(log: Log, **config: float) -> None:
    log.config = replace(CONFIG, **config)  # type: ignore[arg-type]


def test_an_active_segment_is_never_due(log: Log) -> None:
    assert due(log, NOW, 0) is None
    put(log, ("a", "1"))
    assert due(log, NOW, 1) is None


def test_the_share_is_of_the_bytes_that_can_be_compacted(log: Log) -> None:
    put_closed(log, ("a", "1"), ("b", "some more bytes"))
    compact(log)
    put_closed(log, ("a", "2"))
    put_closed(log, ("a", "3"), ("c", "not below the high watermark"))
    put(log, ("a", "4"))
    clean, dirty = log.segments[0].size, log.segments[1].size
    share = dirty / (clean + dirty)
    assert due(log, NOW, 3) == (share, 3)
    configure(log, min_cleanable_dirty_ratio=share)
    assert due(log, NOW, 3) is None
    configure(log, min_cleanable_dirty_ratio=math.nextafter(share, 0.0))
    assert due(log, NOW, 3) == (share, 3)


def test_only_what_lies_below_the_high_watermark_can_be_compacted(log: Log) -> None:
    put_closed(log, ("a", "1"), ("a", "2"))
    put_closed(log, ("a", "3"), ("a", "4"))
    assert due(log, NOW, 1) is None
    assert due(log, NOW, 2) == (1.0, 2)
    assert due(log, NOW, 3) == (1.0, 2)
    assert due(log, NOW, 4) == (1.0, 4)


def test_a_log_without_dirty_bytes_is_not_due(log: Log) -> None:
    put_closed(log, ("a", "1"))
    compact(log)
    put(log, ("a", "2"))
    assert due(log, NOW, 2) is None


def test_a_record_waits_for_min_compaction_lag(log: Log) -> None:
    put_closed(log, ("a", "1"))
    for lag in (1, 1000):
        configure(log, min_compaction_lag_ms=lag)
        assert due(log, NOW + lag - 1, 1) is None
        assert due(log, NOW + lag, 1) == (1.0, 1)


def test_without_min_compaction_lag_a_record_of_the_future_does_not_wait(log: Log) -> None:
    put_closed(log, ("a", "1"), timestamp=NOW + 1000)
    assert due(log, NOW, 1) == (1.0, 1)


def test_a_record_of_the_future_waits_only_while_it_is_dirty(log: Log) -> None:
    put_closed(log, ("k", "1"), timestamp=NOW + 10_000)
    compact(log)
    put_closed(log, ("k", "later"))
    configure(log, min_compaction_lag_ms=1000)
    assert due(log, NOW + 2000, 2) is not None


@pytest.mark.parametrize("timestamp", [0, 1, NOW])
def test_a_dirty_record_is_due_after_max_compaction_lag_whatever_the_share(log: Log, timestamp: int) -> None:
    put_closed(log, ("a", "1"), timestamp=timestamp)
    put_closed(log, ("b", "a younger one"), timestamp=timestamp + 500)
    configure(log, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    assert due(log, timestamp + 1000, 2) is None
    assert due(log, timestamp + 1001, 2) == (1.0, 2)


def test_a_record_without_timestamp_is_never_late(log: Log) -> None:
    put_closed(log, ("a", "1"), timestamp=-1)
    configure(log, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    assert due(log, NOW, 1) is None


def test_a_clean_record_is_never_late(log: Log) -> None:
    put_closed(log, ("a", "1"))
    compact(log)
    put_closed(log, ("b", "1"), timestamp=NOW + 1000)
    configure(log, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    assert due(log, NOW + 2000, 2) is None
