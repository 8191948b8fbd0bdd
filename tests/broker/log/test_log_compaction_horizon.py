"""A tombstone's delete horizon (KIP-534): when a batch gets, keeps and loses one, and when its tombstones are removed.

Each test compares all bytes that a pass leaves, so every branch is covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.compaction import Allowance, Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_kafka.batch import INT64_MAX, Record, build_batch, empty_batch, read_header, read_records
from millstream_kafka.compression import Compression

NOW = 1_700_000_000_000
RETENTION = 1000
CONFIG = LogConfig(cleanup_policy="compact", delete_retention_ms=RETENTION)
Pair = tuple[str, str | None]


def open_log(tmp_path: Path, **config: object) -> Log:
    return Log.open(tmp_path / "t-0", replace(CONFIG, **config), clean=True, now_ms=NOW)  # type: ignore[arg-type]


def put(log: Log, *pairs: Pair, timestamp: int = NOW) -> None:
    records = [
        Record(key.encode(), None if value is None else value.encode(), timestamp + i)
        for i, (key, value) in enumerate(pairs)
    ]
    log.append(build_batch(records), leader_epoch=0, now_ms=NOW)


def compact(log: Log, *, now: int = NOW, max_keys: int = 1000) -> None:
    log.roll(now_ms=NOW)
    compaction = Compaction(
        log, log.segments.active.base_offset, now_ms=now, allowance=Allowance(max_keys=max_keys)
    )
    while compaction.work():
        assert compaction.commit()
    compaction.finish()
    log.remove_deleted_files()


def batch(
    base: int, pairs: Sequence[tuple[int, str, str | None]], last: int, horizon: int | None, first: int = 0
) -> bytes:
    """A batch at ``base``: records by place; the record at ``first`` has the timestamp NOW."""
    records = [
        Record(key.encode(), None if value is None else value.encode(), NOW + place - first, (), base + place)
        for place, key, value in pairs
    ]
    return build_batch(
        records, base_offset=base, last_offset=base + last, leader_epoch=0, delete_horizon=horizon
    )


def test_a_batch_without_tombstones_has_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"))
    compact(log)
    assert list(log.batches_from(0)) == [
        batch(0, [(1, "b", "1")], 1, None),
        batch(2, [(0, "a", "2")], 0, None),
    ]


def test_the_first_pass_sets_it_though_every_record_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None))
    compact(log)
    assert list(log.batches_from(0)) == [batch(0, [(0, "a", "1"), (1, "b", None)], 1, NOW + RETENTION)]


def test_the_first_pass_sets_it_where_other_records_go(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None))
    put(log, ("a", "2"))
    compact(log)
    assert list(log.batches_from(0)) == [
        batch(0, [(1, "b", None)], 1, NOW + RETENTION),
        batch(2, [(0, "a", "2")], 0, None),
    ]


def test_a_tombstone_that_is_replaced_at_once_leaves_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None))
    put(log, ("b", "2"))
    compact(log)
    assert list(log.batches_from(0)) == [
        batch(0, [(0, "a", "1")], 1, None),
        batch(2, [(0, "b", "2")], 0, None),
    ]


def test_a_later_pass_leaves_it_as_it_is(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None))
    compact(log)
    before = list(log.batches_from(0))
    segment = log.segments[0]
    for now in (NOW, NOW + 1, NOW + RETENTION - 1):
        compact(log, now=now)
        assert list(log.batches_from(0)) == before
    assert log.segments[0] is segment  # nothing to write


def test_a_later_pass_keeps_it_when_other_records_of_the_batch_go(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None), ("c", None))
    compact(log)
    put(log, ("a", "2"), ("c", None))
    compact(log, now=NOW + 500)
    assert list(log.batches_from(0)) == [
        batch(0, [(1, "b", None)], 2, NOW + RETENTION),
        batch(3, [(0, "a", "2"), (1, "c", None)], 1, NOW + 500 + RETENTION),
    ]


def test_when_it_has_come_the_tombstones_go_and_with_them_the_horizon(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", "1"), ("b", None), ("c", "1"))
    put(log, ("d", None))
    compact(log)
    last = list(log.batches_from(0))[-1]
    compact(log, now=NOW + RETENTION)
    assert list(log.batches_from(0)) == [
        batch(0, [(0, "a", "1"), (2, "c", "1")], 2, None),
        empty_batch(read_header(last)),
    ]
    assert log.log_end_offset == 4


def test_a_tombstone_stays_for_one_pass_however_short_it_is_retained(tmp_path: Path) -> None:
    log = open_log(tmp_path, delete_retention_ms=0)
    put(log, ("a", "1"))
    put(log, ("a", None))
    compact(log)
    tombstone = batch(1, [(0, "a", None)], 0, NOW)
    assert list(log.batches_from(0)) == [tombstone]
    compact(log)
    assert list(log.batches_from(0)) == [empty_batch(read_header(tombstone))]


def test_it_goes_by_the_clock_of_the_first_pass_not_of_the_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", None), timestamp=NOW - 10 * RETENTION)
    compact(log, now=NOW + 7)
    (stored,) = log.batches_from(0)
    assert read_header(stored).base_timestamp == NOW + 7 + RETENTION
    assert read_header(stored).max_timestamp == NOW - 10 * RETENTION
    assert [record.timestamp for record in read_records(stored)] == [NOW - 10 * RETENTION]


@pytest.mark.parametrize("timestamp", [NOW, 0, -1, -2, -(2**62)])
def test_a_tombstone_may_be_retained_for_ever(tmp_path: Path, timestamp: int) -> None:
    """delete.retention.ms=9223372036854775807 is valid; its sum with the clock is more than a long."""
    log = open_log(tmp_path, delete_retention_ms=INT64_MAX)
    put(log, ("a", "1"), timestamp=timestamp)
    put(log, ("a", None), timestamp=timestamp)
    compact(log)
    assert not log.uncleanable
    (stored,) = log.batches_from(0)
    assert read_header(stored).base_timestamp == INT64_MAX
    assert [record.timestamp for record in read_records(stored)] == [timestamp]
    compact(log, now=2**62)
    assert list(log.batches_from(0)) == [stored]


def test_with_log_append_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    put(log, ("a", "1"), ("b", None))
    compact(log, now=NOW + 5)
    (stored,) = log.batches_from(0)
    header = read_header(stored)
    assert header.is_log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (NOW + 5 + RETENTION, NOW)
    assert [(r.key, r.timestamp) for r in read_records(stored)] == [(b"a", NOW), (b"b", NOW)]
    compact(log, now=NOW + 5 + RETENTION)
    (stored,) = log.batches_from(0)
    assert [(r.key, r.timestamp) for r in read_records(stored)] == [(b"a", NOW)]


def test_a_batch_that_is_emptied_has_none(tmp_path: Path) -> None:
    """A producer's last batch stays, empty, when its tombstones are removed."""
    log = open_log(tmp_path)
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 4}
    tombstones = [Record(b"a", None, NOW), Record(b"b", None, NOW + 1)]
    log.append(build_batch(tombstones, compression=Compression.ZSTD, **producer), leader_epoch=0, now_ms=NOW)
    compact(log)
    kept = [record._replace(offset=offset) for offset, record in enumerate(tombstones)]
    assert list(log.batches_from(0)) == [
        build_batch(
            kept, leader_epoch=0, delete_horizon=NOW + RETENTION, compression=Compression.ZSTD, **producer
        )
    ]
    compact(log, now=NOW + RETENTION)
    (stored,) = log.batches_from(0)
    header = read_header(stored)
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (0, -1, NOW + 1)
    assert (header.last_offset, header.record_count, header.base_sequence) == (1, 0, 4)
    compact(log, now=NOW + 2 * RETENTION)
    assert list(log.batches_from(0)) == [stored]


# -- the memory for keys ends within a segment ------------------------------------------------------------------


def test_behind_what_was_noted_nothing_is_touched(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("k", "old"))
    put(log, ("x", "1"))
    put(log, ("x", "2"))
    put(log, ("k", None))
    put(log, ("x", "3"))
    compact(log, max_keys=2)
    assert log.first_dirty_offset == 2
    before = [
        batch(0, [(0, "k", "old")], 0, None),
        batch(1, [(0, "x", "1")], 0, None),
        batch(2, [(0, "x", "2")], 0, None),
        batch(3, [(0, "k", None)], 0, None),
        batch(4, [(0, "x", "3")], 0, None),
    ]
    assert list(log.batches_from(0)) == before
    compact(log, now=NOW + RETENTION, max_keys=1)  # "x" = 2 only
    assert log.first_dirty_offset == 3
    assert list(log.batches_from(0)) == [before[0], *before[2:]]
    compact(log, now=NOW + 2 * RETENTION, max_keys=1)  # sets the tombstone's horizon only now
    assert list(log.batches_from(0)) == [
        before[2],
        batch(3, [(0, "k", None)], 0, NOW + 3 * RETENTION),
        before[4],
    ]
    compact(log, now=NOW + 3 * RETENTION)
    assert list(log.batches_from(0)) == [before[4]]


def test_the_last_batch_that_was_noted_and_the_first_that_was_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, ("a", None))
    put(log, ("b", None))
    compact(log, max_keys=1)
    assert log.first_dirty_offset == 1
    assert list(log.batches_from(0)) == [
        batch(0, [(0, "a", None)], 0, NOW + RETENTION),
        batch(1, [(0, "b", None)], 0, None),
    ]


def test_a_horizon_that_has_come_is_not_heeded_behind_what_was_noted(tmp_path: Path) -> None:
    """An older checkpoint makes the whole log dirty again; one key of memory covers only the first record."""
    log = open_log(tmp_path)
    put(log, ("a", "1"))
    put(log, ("b", None))
    compact(log)
    before = list(log.batches_from(0))
    log.first_dirty_offset = 0
    compact(log, now=NOW + RETENTION, max_keys=1)
    assert log.first_dirty_offset == 1
    assert list(log.batches_from(0)) == before
    compact(log, now=NOW + RETENTION, max_keys=1)
    assert list(log.batches_from(0)) == [before[0], empty_batch(read_header(before[1]))]


@pytest.mark.parametrize("max_keys", range(1, 9))
def test_a_deleted_key_never_comes_back_however_little_memory_there_is(tmp_path: Path, max_keys: int) -> None:
    """Every horizon passes before the next compaction."""
    log = open_log(tmp_path)
    for i in range(8):
        put(log, (f"k{i}", "old"))
    for i in range(8):
        put(log, (f"k{i}", None))
    put(log, ("k9", "kept"))
    for number in range(20):
        compact(log, now=NOW + number * 2 * RETENTION, max_keys=max_keys)
        table: dict[bytes | None, bytes | None] = {}
        for stored in log.batches_from(0):
            for record in read_records(stored):
                table[record.key] = record.value
        assert {key: value for key, value in table.items() if value is not None} == {b"k9": b"kept"}
    assert table == {b"k9": b"kept"}
