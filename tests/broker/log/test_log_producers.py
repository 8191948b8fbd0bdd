"""Idempotence: which batches of a producer are stored, which are recognised as duplicates, which are refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.producer_state import (
    AppendedBatch,
    ProducerStateEntry,
    ProducerStateManager,
    SnapshotError,
)
from millstream_kafka.batch import INT32_MAX, Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


def send(
    log: Log, sequence: int, count: int = 2, *, epoch: int = 0, producer: int = 1, now: int = NOW
) -> AppendInfo:
    batch = build_batch(
        [Record(b"k", b"v", NOW)] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return log.append(batch, leader_epoch=0, now_ms=now)


def open_log(tmp_path: Path, *, clean: bool = True, **config: int) -> Log:
    return Log.open(tmp_path / "t-0", LogConfig(**config), clean=clean, now_ms=NOW)  # type: ignore[arg-type]


#           what came before: (epoch, sequence, count) …     what comes           stored, or the error
@pytest.mark.parametrize(
    ("before", "batch", "expected"),
    [
        ([], (0, 0, 2), "stored"),
        ([], (0, 77, 2), "stored"),  # unknown: its past may have expired
        ([(0, 0, 2)], (0, 2, 2), "stored"),
        ([(0, 0, 2)], (0, 0, 2), "duplicate"),
        ([(0, 0, 2)], (0, 0, 3), OUT_OF_ORDER),  # same start, but not the same batch
        ([(0, 0, 2)], (0, 1, 1), OUT_OF_ORDER),
        ([(0, 0, 2)], (0, 3, 2), OUT_OF_ORDER),
        ([(0, i, 1) for i in range(5)], (0, 0, 1), "duplicate"),
        ([(0, i, 1) for i in range(6)], (0, 0, 1), OUT_OF_ORDER),  # the sixth batch back is forgotten
        ([(0, i, 1) for i in range(6)], (0, 1, 1), "duplicate"),
        ([(1, 0, 2)], (0, 2, 2), FENCED),
        ([(1, 0, 2)], (0, 0, 2), FENCED),
        ([(1, 0, 2)], (2, 0, 2), "stored"),
        ([(1, 0, 2)], (2, 2, 2), OUT_OF_ORDER),
        ([(0, 0, 2), (1, 0, 2)], (1, 0, 2), "duplicate"),
        ([(0, INT32_MAX - 1, 2)], (0, 0, 1), "stored"),  # sequences wrap
        ([(0, INT32_MAX, 3)], (0, 2, 1), "stored"),
        ([(0, INT32_MAX, 3)], (0, INT32_MAX, 3), "duplicate"),
        ([(0, INT32_MAX, 3)], (0, 3, 1), OUT_OF_ORDER),
    ],
)
def test_table(
    tmp_path: Path,
    before: list[tuple[int, int, int]],
    batch: tuple[int, int, int],
    expected: str | ErrorCode,
) -> None:
    log = open_log(tmp_path)
    offsets = {}
    for epoch, sequence, count in before:
        offsets[epoch, sequence, count] = send(log, sequence, count, epoch=epoch).first_offset
    epoch, sequence, count = batch
    end, size = log.log_end_offset, log.size
    if isinstance(expected, ErrorCode):
        with pytest.raises(ApiError) as caught:
            send(log, sequence, count, epoch=epoch)
        assert caught.value.code is expected
        assert (log.log_end_offset, log.size) == (end, size)
        return
    info = send(log, sequence, count, epoch=epoch)
    assert info.duplicate == (expected == "duplicate")
    if info.duplicate:
        assert info.first_offset == offsets[batch]
        assert info.last_offset == offsets[batch] + count - 1
        assert (log.log_end_offset, log.size) == (end, size)
    else:
        assert info.first_offset == end
        assert log.log_end_offset == end + count
    log.close()


def test_several_batches_at_once_are_repeated_or_stored_as_a_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    def send_two(first: int, second: int) -> AppendInfo:
        batches = [
            build_batch([Record(b"k", b"v", NOW)], producer_id=1, producer_epoch=0, base_sequence=sequence)
            for sequence in (first, second)
        ]
        return log.append(b"".join(batches), leader_epoch=0, now_ms=NOW)

    assert send_two(0, 1).last_offset == 1
    repeated = send_two(0, 1)
    assert (repeated.duplicate, repeated.first_offset, repeated.last_offset) == (True, 0, 1)
    with pytest.raises(ApiError) as caught:
        send_two(1, 2)
    assert caught.value.code is OUT_OF_ORDER
    assert log.log_end_offset == 2
    assert not send_two(2, 3).duplicate
    log.close()


def test_a_request_with_old_and_new_batches_is_refused_by_the_name_of_its_first_producer(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    send(log, 0, 1, producer=7)
    requests = [
        b"".join(
            build_batch([Record(b"k", b"v", NOW)], producer_id=producer, producer_epoch=0, base_sequence=0)
            for producer in producers
        )
        for producers in ((7, 8), (8, 7))
    ]
    for request, first in zip(requests, (7, 8), strict=True):
        with pytest.raises(ApiError) as caught:
            log.append(request, leader_epoch=0, now_ms=NOW)
        assert caught.value.code is OUT_OF_ORDER
        assert caught.value.message == f"producer {first}: 1 of 2 batches were stored before"
    assert log.log_end_offset == 1


def test_a_batch_without_producer_does_not_hide_the_next_ones_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 1)
    plain = build_batch([Record(b"k", b"v", NOW)])

    def follow(sequence: int) -> AppendInfo:
        batch = build_batch(
            [Record(b"k", b"v", NOW)], producer_id=1, producer_epoch=0, base_sequence=sequence
        )
        return log.append(plain + batch, leader_epoch=0, now_ms=NOW)

    with pytest.raises(ApiError) as caught:
        follow(2)
    assert caught.value.code is OUT_OF_ORDER
    assert follow(1).last_offset == 2


def test_a_refusal_says_what_was_expected(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 2, epoch=3)
    for epoch, sequence, message in (
        (3, 4, "producer 1, epoch 3: sequence 4, expected 2"),
        (4, 2, "producer 1, epoch 4: sequence 2, expected 0"),
        (2, 2, "producer 1: epoch 2 is before 3"),
    ):
        with pytest.raises(ApiError) as caught:
            send(log, sequence, epoch=epoch)
        assert caught.value.message == message


def test_where_only_the_epoch_is_known_sequences_begin_at_0(tmp_path: Path) -> None:
    """As after a transaction marker, which has no sequence."""
    log = open_log(tmp_path)
    log.producers.by_id[1] = ProducerStateEntry(3, NOW)
    with pytest.raises(ApiError):
        send(log, 0, epoch=2)
    with pytest.raises(ApiError):
        send(log, 1, epoch=3)
    assert send(log, 0, epoch=3).first_offset == 0


def test_producers_do_not_see_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, producer=1)
    send(log, 0, producer=2)
    assert send(log, 2, producer=1).first_offset == 4
    assert send(log, 0, producer=2).first_offset == 2


def test_batches_of_one_append_follow_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    def batch(sequence: int) -> bytes:
        return build_batch([Record(b"k", b"v", NOW)], producer_id=1, producer_epoch=0, base_sequence=sequence)

    log.append(batch(0) + batch(1), leader_epoch=0, now_ms=NOW)
    with pytest.raises(ApiError):
        log.append(batch(2) + batch(4), leader_epoch=0, now_ms=NOW)
    log.append(batch(2) + batch(3), leader_epoch=0, now_ms=NOW)
    assert log.log_end_offset == 4


@pytest.mark.parametrize(
    "how", ["clean", "kill", "kill without page cache", "garbage snapshot", "no snapshot"]
)
def test_state_survives_a_restart(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for i in range(7):
        send(log, 2 * i)
    log.close(clean=how == "clean" or "snapshot" in how)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        if how == "garbage snapshot":
            snapshot.write_bytes(b"\x00\x01" + b"garbage")
        elif how == "no snapshot":
            snapshot.unlink()
    log = Log.open(
        tmp_path / "t-0",
        LogConfig(),
        clean=how == "clean" or "snapshot" in how,
        page_cache_kept=how == "kill",
        now_ms=NOW,
    )
    assert send(log, 12).duplicate
    assert send(log, 12).first_offset == 12
    with pytest.raises(ApiError):
        send(log, 16)
    assert send(log, 14).first_offset == 14


@pytest.mark.parametrize("how", ["clean", "kill", "kill without page cache", "cut"])
def test_each_of_the_last_five_batches_may_come_again_after_a_restart(tmp_path: Path, how: str) -> None:
    """A client with five batches in flight when the broker died sends all of them again. Each has its own segment."""
    log = open_log(tmp_path, segment_bytes=80)
    for i in range(7):
        send(log, 2 * i)
    assert len(log.segments) == 7
    if how == "cut":
        log.truncate_to(12, now_ms=NOW)
    else:
        log.close(clean=how == "clean")
        log = Log.open(
            tmp_path / "t-0", LogConfig(), clean=how == "clean", page_cache_kept=how == "kill", now_ms=NOW
        )
    last = 10 if how == "cut" else 12
    for sequence in range(last - 8, last + 2, 2):
        info = send(log, sequence)
        assert (info.duplicate, info.first_offset, info.last_offset) == (True, sequence, sequence + 1)
    with pytest.raises(ApiError, match=f"sequence {last - 10}, expected {last + 2}"):
        send(log, last - 10)
    assert send(log, last + 2).first_offset == last + 2


def test_state_is_cut_with_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for i in range(7):
        send(log, 2 * i)
    log.truncate_to(6, now_ms=NOW)
    assert log.log_end_offset == 6
    with pytest.raises(ApiError):
        send(log, 8)
    assert send(log, 6).first_offset == 6
    assert not [p for p in (tmp_path / "t-0").glob("*.snapshot") if int(p.stem) > 6]


def test_idle_producers_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_id_expiration_ms=1000)
    send(log, 0, producer=1, now=NOW)
    send(log, 0, producer=2, now=NOW + 800)
    assert log.expire_producers(NOW + 1000) == 0
    assert log.expire_producers(NOW + 1500) == 1
    assert send(log, 9, producer=1).first_offset == 4
    with pytest.raises(ApiError):
        send(log, 9, producer=2)


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("timestamp", [NOW, 0, -1], ids=["of now", "of old events", "none"])
def test_truncation_does_not_age_producers(tmp_path: Path, timestamp: int, rolled: bool) -> None:
    """However old the timestamps, the producer was active a moment ago."""
    log = open_log(tmp_path, producer_id_expiration_ms=1000)
    batches = [
        build_batch(
            [Record(b"k", b"v", timestamp)], producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        for producer, sequence in ((1, 0), (2, 0), (2, 1))
    ]
    log.append(batches[0], leader_epoch=0, now_ms=NOW - 600)
    if rolled:
        log.roll(now_ms=NOW)
    log.append(batches[1], leader_epoch=0, now_ms=NOW)
    log.append(batches[2], leader_epoch=0, now_ms=NOW)
    log.truncate_to(2, now_ms=NOW + 300)
    assert log.expire_producers(NOW + 400) == 0
    assert log.append(batches[0], leader_epoch=1, now_ms=NOW + 400).duplicate
    assert log.append(batches[1], leader_epoch=1, now_ms=NOW + 400).duplicate
    assert not log.append(batches[2], leader_epoch=1, now_ms=NOW + 400).duplicate
    assert log.expire_producers(NOW + 401) == 1  # nor does it make them younger
    assert 2 in log.producers.by_id


def test_damaged_snapshots_are_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 5, producer=11)
    data = log.producers.encode()
    assert ProducerStateManager.decode(data).encode() == data
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(SnapshotError):
            ProducerStateManager.decode(bytes(damaged))
        with pytest.raises(SnapshotError):
            ProducerStateManager.decode(data[:position])


def test_a_log_started_anew_has_no_producers(tmp_path: Path) -> None:
    """Not even after a kill: its snapshots describe removed records, and the records in between are unknown."""
    log = open_log(tmp_path, segment_bytes=300)
    for sequence in range(10):
        send(log, sequence, 1)
    log.close()
    assert len(list((tmp_path / "t-0").glob("*.snapshot"))) > 1
    log = open_log(tmp_path)
    log.truncate_fully_and_start_at(100, now_ms=NOW)
    assert list((tmp_path / "t-0").glob("*.snapshot")) == []
    log.close(clean=False)
    log = open_log(tmp_path, clean=False)
    assert log.producers.by_id == {}
    assert send(log, 50).first_offset == 100
    log.close()


def test_a_log_that_restarts_at_its_start_has_no_producers(tmp_path: Path) -> None:
    """All that is left of the log lies before its start."""
    log = open_log(tmp_path)
    for sequence in range(10):
        send(log, sequence, 1)
    log.close()
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=False, log_start_offset=20, now_ms=NOW)
    assert log.producers.by_id == {}
    assert list((tmp_path / "t-0").glob("*.snapshot")) == []
    assert send(log, 50).first_offset == 20
    log.close()


def test_a_snapshot_of_the_start_counts(tmp_path: Path) -> None:
    """Even after all records are deleted, a retry is recognised."""
    log = open_log(tmp_path)
    send(log, 0, 10)
    log.roll(now_ms=NOW)
    log.delete_records_before(10)
    log.close()
    log = open_log(tmp_path)
    assert log.segments.first_offset == 10
    assert send(log, 0, 10).duplicate
    assert send(log, 10, 1).first_offset == 10
    log.close()


def test_truncation_drops_later_snapshots(tmp_path: Path) -> None:
    """They would describe other records than those of the next leader."""
    log = open_log(tmp_path, segment_bytes=300)
    for sequence in range(10):
        send(log, sequence, 1)
    log.close()
    for cut in (8, 5, 3, 0):
        log = open_log(tmp_path, segment_bytes=300)
        log.truncate_to(cut, now_ms=NOW)
        assert all(int(path.stem) <= cut for path in (tmp_path / "t-0").glob("*.snapshot"))
        log.close(clean=False)
        log = open_log(tmp_path, clean=False, segment_bytes=300)
        if cut:
            assert log.producers.by_id[1].batches[-1].last_sequence == cut - 1
        else:
            assert log.producers.by_id == {}
        log.close(clean=False)


def test_a_snapshot_has_kafkas_bytes(tmp_path: Path) -> None:
    producers = ProducerStateManager()
    producers.by_id[7] = ProducerStateEntry(3, 1000)  # known only by its epoch, as after a transaction marker
    batch = AppendedBatch(10, 14, 20, 24, 999)
    older = AppendedBatch(8, 9, 17, 18, 998)
    producers.by_id[8] = ProducerStateEntry(
        4, 2000, [older, batch], coordinator_epoch=5, transaction_first_offset=0
    )
    data = producers.encode()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, count) == (1, crc32c(data[6:]), 3)
    entries = list(struct.iter_unpack(">qhiqiqiq", data[10:]))
    assert entries == [
        (7, 3, -1, -1, 0, 1000, -1, -1),
        (8, 4, 9, 18, 1, 2000, 5, 0),
        (8, 4, 14, 24, 4, 2000, 5, 0),
    ]
    again = ProducerStateManager.decode(data)
    assert again.by_id[7].batches == []
    assert again.by_id[8] == ProducerStateEntry(
        4, 2000, [AppendedBatch(8, 9, 17, 18, 2000), AppendedBatch(10, 14, 20, 24, 2000)], 5, 0
    )


def test_a_snapshot_of_no_producer_is_one() -> None:
    data = ProducerStateManager().encode()
    assert data == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
    assert ProducerStateManager.decode(data).by_id == {}
    with pytest.raises(SnapshotError, match="9 bytes"):
        ProducerStateManager.decode(data[:-1])


def test_a_snapshot_keeps_a_batch_at_offset_0() -> None:
    producers = ProducerStateManager()
    batch = AppendedBatch(0, 0, 0, 0, NOW)
    producers.by_id[1] = ProducerStateEntry(0, NOW, [batch])
    assert ProducerStateManager.decode(producers.encode()).by_id[1].batches == [batch]


def test_a_snapshot_has_as_many_entries_as_it_says() -> None:
    """Otherwise it is refused, even under a correct CRC."""
    producers = ProducerStateManager()
    producers.by_id[1] = ProducerStateEntry(0, NOW)
    data = producers.encode()
    for count in (0, 2):
        counted = struct.pack(">i", count) + data[10:]
        with pytest.raises(SnapshotError, match=f"{count} entries"):
            ProducerStateManager.decode(struct.pack(">hI", 1, crc32c(counted)) + counted)


def test_of_a_producer_with_several_epochs_a_snapshot_counts_from_the_last_on() -> None:
    entries = b""
    for epoch, sequence in ((3, 0), (4, 0), (4, 1)):
        one = ProducerStateManager()
        one.by_id[1] = ProducerStateEntry(epoch, NOW, [AppendedBatch(sequence, sequence, 9, 9, NOW)])
        entries += one.encode()[10:]
    counted = struct.pack(">i", 3) + entries
    found = ProducerStateManager.decode(struct.pack(">hI", 1, crc32c(counted)) + counted)
    batches = [AppendedBatch(sequence, sequence, 9, 9, NOW) for sequence in (0, 1)]
    assert found.by_id == {1: ProducerStateEntry(4, NOW, batches)}


def test_a_snapshot_is_written_without_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits while a log rolls."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    ProducerStateManager().save(str(tmp_path / "0.snapshot"))
    assert (tmp_path / "0.snapshot").read_bytes() == ProducerStateManager().encode()
    assert not synced


def test_a_producer_with_an_open_transaction_is_kept() -> None:
    producers = ProducerStateManager()
    producers.by_id[1] = ProducerStateEntry(0, 1000, transaction_first_offset=0)
    producers.by_id[2] = ProducerStateEntry(0, 1000)
    assert producers.expire(1000) == 0
    assert producers.expire(1001) == 1
    assert list(producers.by_id) == [1]
