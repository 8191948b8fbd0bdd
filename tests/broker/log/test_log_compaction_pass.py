"""One pass: what it reads, joins, rewrites and leaves alone, and its limits."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.compaction import Allowance, Compaction, Throttler, pause_after
from millstream_broker.log.config import LogConfig
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from millstream_broker.log.log import Log
from millstream_harness.compaction import NOW, compact, pass_over, put, put_closed, run, stored, values
from millstream_kafka.batch import INT32_MAX, Record, build_batch, read_header

CONFIG = LogConfig(cleanup_policy="compact", index_interval_bytes=100)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)


def bases(log: Log) -> list[int]:
    """Base offsets of the closed segments."""
    return [segment.base_offset for segment in log.segments][:-1]


# -- comparison -------------------------------------------------------------------------------------------------


def test_a_record_behind_the_end_replaces_nothing(log: Log) -> None:
    """The record may be above the high watermark, and be truncated."""
    put_closed(log, ("a", "1"))
    put_closed(log, ("b", "1"), ("b", "2"))
    put_closed(log, ("a", "2"), ("b", "3"))
    behind = log.segments[2]
    compact(log, end=3)
    assert values(log) == [(0, "a", "1"), (2, "b", "2"), (3, "a", "2"), (4, "b", "3")]
    assert log.first_dirty_offset == 3
    assert log.segments[1] is behind


def test_a_record_without_key_goes(log: Log) -> None:
    """Such a record was written before the topic was compacted."""
    log.config = replace(CONFIG, cleanup_policy="delete")
    log.append(
        build_batch([Record(None, b"no key", NOW), Record(b"a", b"1", NOW)]), leader_epoch=0, now_ms=NOW
    )
    put_closed(log, ("b", "1"))
    log.config = CONFIG
    compact(log)
    assert values(log) == [(1, "a", "1"), (2, "b", "1")]
    assert not log.uncleanable


def test_a_clean_record_stays_while_no_dirty_one_has_its_key(log: Log) -> None:
    put_closed(log, ("a", "1"), ("b", "1"), ("c", "1"))
    compact(log)
    put_closed(log, ("b", "2"))
    compact(log)
    assert values(log) == [(0, "a", "1"), (2, "c", "1"), (3, "b", "2")]


# -- nothing to do ----------------------------------------------------------------------------------------------


def test_a_segment_from_which_nothing_goes_is_not_written_anew(log: Log) -> None:
    put_closed(log, ("a", "1"), ("b", "1"))
    segment = log.segments[0]
    for _ in range(2):
        compact(log)
        assert log.segments[0] is segment


def test_an_empty_batch_that_stays_is_not_written_anew(log: Log) -> None:
    batch = build_batch([Record(b"k", b"1", NOW)], producer_id=1, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=0, now_ms=NOW)
    put_closed(log, ("k", "2"))
    compact(log)
    assert [read_header(batch).record_count for batch in log.batches_from(0)] == [0, 1]
    segment = log.segments[0]
    compact(log)
    assert log.segments[0] is segment


def test_a_segment_behind_what_was_noted_is_left_alone(log: Log) -> None:
    put_closed(log, ("a", "1"), ("a", "2"))
    put_closed(log, ("b", "1"), ("b", "2"))
    behind = log.segments[1]
    compact(log, max_keys=1)
    assert log.first_dirty_offset == 2
    assert log.segments[1] is behind
    assert values(log) == [(1, "a", "2"), (2, "b", "1"), (3, "b", "2")]


def test_the_files_of_a_new_segment_have_their_final_names(log: Log) -> None:
    for i in range(20):
        put(log, ("k", f"{i}"), (f"{i}", "stays"))
    log.roll(now_ms=NOW)
    compact(log)
    names = sorted(path.name for path in log.directory.iterdir() if path.name.startswith(f"{0:020d}"))
    assert names == [f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    assert len(log.segments[0].offsets) > 1
    assert (log.directory / names[0]).stat().st_size == 8 * len(log.segments[0].offsets)


# -- joined segments --------------------------------------------------------------------------------------------


def test_neighbours_are_joined_though_every_record_stays(log: Log) -> None:
    put_closed(log, ("a", "1"))
    put_closed(log, ("b", "1"))
    before = stored(log)
    compact(log)
    assert bases(log) == [0]
    assert stored(log) == before


def test_a_joined_segment_is_not_larger_than_segment_bytes(log: Log) -> None:
    for i in range(5):
        put_closed(log, (f"{i}", "v"))
    size = log.segments[0].size
    log.config = replace(CONFIG, segment_bytes=2 * size - 1)
    compact(log)
    assert bases(log) == [0, 1, 2, 3, 4]
    log.config = replace(CONFIG, segment_bytes=2 * size)
    compact(log)
    assert bases(log) == [0, 2, 4]


def test_a_joined_segment_has_no_more_index_entries_than_fit(log: Log) -> None:
    """Joining may add an entry to each of the segments."""
    for segment in range(5):
        for i in range(10):
            put(log, (f"{segment} {i}", "v"), timestamp=NOW + 10 * segment + i)
        log.roll(now_ms=NOW)
    (entries,) = {max(len(segment.offsets), len(segment.times)) for segment in log.segments[:5]}
    assert entries > 2
    most = 2 * (entries + 1) * TIME_ENTRY.size
    log.config = replace(CONFIG, index_size_max_bytes=most - 1)
    compact(log)
    assert bases(log) == [0, 10, 20, 30, 40]
    log.config = replace(CONFIG, index_size_max_bytes=most)
    compact(log)
    assert bases(log) == [0, 20, 40]
    assert all(len(segment.times) * TIME_ENTRY.size <= most for segment in log.segments)


def test_index_entries_are_counted_as_they_are_stored(log: Log) -> None:
    """The pass counts from the files and caches nothing: the loop may truncate the log meanwhile."""
    for i in range(20):
        put(log, (f"{i}", "v"), timestamp=NOW + i)
    log.roll(now_ms=NOW)
    segment = log.segments[0]
    segment.unload()
    for offsets, times in ((3, 2), (1, 2), (0, 0)):
        os.truncate(segment.path(".index"), offsets * OFFSET_ENTRY.size)
        os.truncate(segment.path(".timeindex"), times * TIME_ENTRY.size)
        assert segment.index_entries() == max(offsets, times)


@pytest.mark.parametrize(("last", "joined"), [(INT32_MAX - 1, [0]), (INT32_MAX, [0, 1])])
def test_the_offsets_of_a_joined_segment_fit_its_index(log: Log, last: int, joined: list[int]) -> None:
    put_closed(log, ("a", "1"))
    log.append_as_follower(build_batch([Record(b"b", b"1", NOW)], base_offset=last), now_ms=NOW)
    log.roll(now_ms=NOW)
    before = stored(log)
    compact(log)
    assert bases(log) == joined
    assert stored(log) == before


def test_segments_far_from_offset_0_are_joined(log: Log) -> None:
    log.truncate_fully_and_start_at(2**40, now_ms=NOW)
    put_closed(log, ("a", "1"))
    put_closed(log, ("b", "1"))
    put_closed(log, ("c", "1"))
    compact(log)
    assert bases(log) == [2**40]


# -- limits -----------------------------------------------------------------------------------------------------


def test_a_throttle_lets_no_more_through_than_it_says() -> None:
    now, rate = [0.0], [100.0]
    throttle = Throttler(lambda: rate[0], lambda: now[0])
    assert throttle.take(20) == 0.0  # idle until now: 30 bytes pass at once
    assert throttle.take(20) == pytest.approx(0.1)
    assert throttle.take(50) == pytest.approx(0.6)
    now[0] = 0.5
    assert throttle.take(0) == pytest.approx(0.1)
    now[0] = 10.0
    assert throttle.take(30) == pytest.approx(0.0)
    rate[0] = 1000.0
    assert throttle.take(100) == pytest.approx(0.1)
    rate[0] = 0.0  # at most one byte a second
    assert throttle.take(5) == pytest.approx(5.1)


def test_a_pass_rests_for_the_rest_of_its_share() -> None:
    assert pause_after(1.0, 0.25) == 3.0
    assert pause_after(0.5, 0.5) == 0.5
    assert pause_after(10.0, 1.0) == 0.0
    assert pause_after(0.002, 0.5) == 0.0  # too short for a pause


def test_a_pass_that_rests_comes_to_its_end(log: Log) -> None:
    put_closed(log, *[("k", f"{i}") for i in range(2000)])
    end = log.segments.active.base_offset
    compaction = Compaction(log, end, now_ms=NOW, allowance=Allowance(share=0.9))
    worker = threading.Thread(target=run, args=(compaction,))
    worker.start()
    worker.join(60)
    is_late = worker.is_alive()
    compaction.cancel()
    worker.join()
    assert not is_late
    assert values(log) == [(1999, "k", "1999")]


def test_a_throttled_pass_can_be_cancelled(log: Log) -> None:
    for i in range(40):
        put_closed(log, ("k", f"{i}"))
    pauses = threading.Event()

    class Noting(Throttler):
        def take(self, size: int) -> float:
            pauses.set()
            return super().take(size)

    allowance = Allowance(throttle=Noting(lambda: 1.0))  # a byte a second
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW, allowance=allowance)
    worker = threading.Thread(target=compaction.work)
    worker.start()
    assert pauses.wait(60)
    assert worker.is_alive()
    compaction.cancel()
    worker.join(60)
    assert not worker.is_alive()
    assert not list(log.directory.glob("*.cleaned"))


def test_a_pass_that_is_cancelled_while_it_writes_leaves_no_file(log: Log) -> None:
    for i in range(40):
        put_closed(log, ("k", f"{i}"))
    written: list[str] = []

    class Cancelling(Throttler):
        def take(self, size: int) -> float:
            if found := list(log.directory.glob("*.cleaned")):
                written.extend(path.name for path in found)
                compaction.cancel()
            return 0.0

    allowance = Allowance(throttle=Cancelling(lambda: 0.0))
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW, allowance=allowance)
    assert not compaction.work()
    assert written
    assert not list(log.directory.glob("*.cleaned"))


def test_the_bytes_read_and_written_are_accounted_for(log: Log) -> None:
    taken: list[int] = []

    class Counting(Throttler):
        def take(self, size: int) -> float:
            taken.append(size)
            return 0.0

    for i in range(60):
        put(log, (f"k{i % 5}", f"v{i}"))
    log.roll(now_ms=NOW)
    size = log.size
    allowance = Allowance(throttle=Counting(lambda: 0.0))
    run(Compaction(log, log.log_end_offset, now_ms=NOW, allowance=allowance))
    assert sum(taken) == 2 * size + log.size  # read for the keys, read to be copied, written


def test_a_pass_makes_the_names_of_new_files_durable(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    put_closed(log, ("a", "1"), ("a", "2"))
    compaction = pass_over(log)
    assert compaction.work()
    compaction.commit()
    assert str(log.directory) not in synced
    assert not compaction.work()
    assert synced[-1] == str(log.directory)
    log.remove_deleted_files()
    synced.clear()
    run(pass_over(log))  # the pass removes nothing
    assert str(log.directory) not in synced


# -- a log that loses all its records -----------------------------------------------------------------------------


def test_the_last_batch_of_a_log_stays_though_its_records_go(log: Log, tmp_path: Path) -> None:
    """A follower that copies the log reaches its end, so it is in sync; a reader learns the next offset."""
    put_closed(log, ("a", None))
    put_closed(log, ("b", None), ("c", None))
    compact(log)
    compact(log, now=NOW + log.config.delete_retention_ms + 1)
    assert (stored(log), log.log_start_offset, log.log_end_offset) == ([], 0, 3)
    found = log.read(0, 1 << 20, upper=3, min_one=True)
    assert found is not None
    header = read_header(found.read())
    assert (header.record_count, header.next_offset) == (0, 3)
    copy = Log.open(tmp_path / "copy-0", CONFIG, clean=True, now_ms=NOW)
    copy.append_as_follower(found.read(), now_ms=NOW)
    assert copy.log_end_offset == 3


def test_an_emptied_batch_goes_once_another_stands_behind_it(log: Log) -> None:
    put_closed(log, ("a", None))
    compact(log)
    compact(log, now=NOW + log.config.delete_retention_ms + 1)
    assert log.segments[0].size > 0
    put_closed(log, ("b", "1"))
    compact(log, now=NOW + log.config.delete_retention_ms + 1)
    assert values(log) == [(1, "b", "1")]
    assert next(log.segments.headers_from(0)).base_offset == 1
