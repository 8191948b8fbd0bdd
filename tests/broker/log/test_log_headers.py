"""Records with more headers than a broker reads: a few KB can hold millions."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from millstream_broker.log import validator
from millstream_broker.log.compaction import Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_kafka import batch as module
from millstream_kafka import varints
from millstream_kafka.batch import (
    HEADER,
    HEADER_SIZE,
    MOST_HEADERS,
    MOST_HEADERS_A_RECORD,
    Record,
    TooManyHeadersError,
    build_batch,
    read_records,
    scan_records,
    skim_records,
)
from millstream_kafka.compression import Compression, compress
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.varints import write_varint

NOW = 1_700_000_000_000
BOMB = 5_000_000
FEW = 200
"""Numbers read in a few records: their lengths, keys and counts, but not BOMB headers."""


def with_headers(*counts: int, base: int = 0, codec: Compression = Compression.ZSTD) -> bytearray:
    """A batch with a record for each count, all with key k; their headers are empty."""
    body = bytearray()
    for offset, count in enumerate(counts):
        data = bytearray(1)
        write_varint(data, 0)
        write_varint(data, offset)
        data += b"\x02k\x02v"
        write_varint(data, count)
        data += bytes(2 * count)
        write_varint(body, len(data))
        body += data
    batch = bytearray(HEADER_SIZE) + compress(codec, body)
    last, length = len(counts) - 1, len(batch) - 12
    HEADER.pack_into(batch, 0, base, length, 0, 2, 0, codec, last, NOW, NOW, -1, -1, -1, last + 1)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


class Reads:
    """Counts the numbers read in records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = module.read_varint

        def counted(*arguments: Any) -> tuple[int, int]:
            self.count += 1
            return read(*arguments)

        for reader in (module, varints):
            monkeypatch.setattr(reader, "read_varint", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads(monkeypatch)
    list(read_records(with_headers(FEW)))
    assert found.count > FEW, "headers count"
    found.count = 0
    return found


def validated(batch: bytearray) -> None:
    validator.validate(batch, LogConfig(), NOW, where="t-0", read=True)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_record_has_at_most_so_many_headers(codec: Compression) -> None:
    most = with_headers(0, MOST_HEADERS_A_RECORD, codec=codec)
    assert [len(one.headers) for one in read_records(most)] == [0, MOST_HEADERS_A_RECORD]
    validated(most)
    beyond = with_headers(0, MOST_HEADERS_A_RECORD + 1, codec=codec)
    for read in (validated, lambda batch: list(scan_records(batch)), lambda batch: list(read_records(batch))):
        with pytest.raises(
            TooManyHeadersError, match=r"batch at offset 0: too many headers, 10001"
        ) as caught:
            read(beyond)
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_has_at_most_so_many_headers() -> None:
    full = [MOST_HEADERS_A_RECORD] * (MOST_HEADERS // MOST_HEADERS_A_RECORD)
    assert sum(1 for _ in read_records(with_headers(*full))) == len(full)
    validated(with_headers(*full))
    for read in (scan_records, read_records):
        with pytest.raises(TooManyHeadersError):
            list(read(with_headers(*full, 1)))  # type: ignore[operator]


def test_a_large_uncompressed_batch_may_have_more() -> None:
    counts = [MOST_HEADERS_A_RECORD] * (MOST_HEADERS // MOST_HEADERS_A_RECORD + 1)
    assert sum(1 for _ in scan_records(with_headers(*counts, codec=Compression.NONE))) == len(counts)


def test_a_bomb_is_refused_before_it_is_read(reads: Reads) -> None:
    batch = with_headers(BOMB)
    assert len(batch) < 4096
    for _ in range(2):
        with pytest.raises(ApiError):
            validated(batch)
    assert reads.count < FEW


# -- records that are stored ------------------------------------------------------------------------------------


@pytest.mark.parametrize("append_time", [None, NOW + 99])
def test_skimming_finds_what_reading_finds(append_time: int | None) -> None:
    records = [
        Record(b"k%d" % offset if offset % 2 else None, b"v" * offset, NOW - offset, (("a", b"1"),), offset)
        for offset in (3, 4, 7)
    ]
    batch = build_batch(
        records, base_offset=2, last_offset=9, compression=Compression.GZIP, append_time=append_time
    )
    assert list(skim_records(batch)) == [(one.timestamp, one.offset, one.key) for one in read_records(batch)]
    assert [offset for _, offset, _ in skim_records(batch)] == [3, 4, 7]


@pytest.mark.parametrize(("at", "byte"), [(61, 0x7E), (64, 0x7E), (65, 0x7E), (65, 0x10)])
def test_skimming_refuses_what_is_not_a_record(at: int, byte: int) -> None:
    """The length, the offset, a key beyond the batch, a key in the next record."""
    batch = bytearray(build_batch([Record(b"k", b"v", NOW), Record(b"k", b"v", NOW)]))
    batch[at] = byte
    with pytest.raises(ApiError, match="batch at offset 0: ") as caught:
        list(skim_records(batch))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_look_up_by_time_does_not_read_headers(tmp_path: Path, reads: Reads) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    log.append(with_headers(BOMB), leader_epoch=3, now_ms=NOW)
    reads.count = 0
    assert log.offset_for_timestamp(NOW) == (NOW, 0, 3)
    assert log.max_timestamp() == (NOW, 0, 3)
    assert 0 < reads.count < FEW


def test_compaction_keeps_a_bomb_and_what_deletes_its_values(tmp_path: Path, reads: Reads) -> None:
    config = LogConfig(cleanup_policy="compact", delete_retention_ms=1000)
    log = Log.open(tmp_path / "t-0", config, clean=True, now_ms=NOW)

    def put(value: bytes | None) -> None:
        log.append(bytearray(build_batch([Record(b"k", value, NOW)])), leader_epoch=0, now_ms=NOW)

    def compacted(now_ms: int) -> list[int]:
        log.roll(now_ms=now_ms)
        compaction = Compaction(log, log.log_end_offset, now_ms=now_ms)
        while compaction.work():
            compaction.commit()
        compaction.finish()
        assert not log.uncleanable
        assert log.first_dirty_offset == log.log_end_offset
        return [offset for batch in log.batches_from(0) for _, offset, _ in skim_records(batch)]

    put(b"old")
    log.append_as_follower(with_headers(BOMB, 0, base=1), now_ms=NOW)  # no client may send it
    assert compacted(NOW) == [1, 2]  # its key is known
    put(None)
    assert compacted(NOW) == [1, 2, 3]
    put(b"new")
    put(None)
    assert compacted(NOW + 5000) == [1, 2, 5]
    put(b"last")
    put(None)
    log.append(bytearray(build_batch([Record(b"x", b"", NOW)])), leader_epoch=0, now_ms=NOW)
    assert compacted(NOW + 50_000) == [1, 2, 7, 8]
    log.append(bytearray(build_batch([Record(b"x", b"", NOW)])), leader_epoch=0, now_ms=NOW)
    assert compacted(NOW + 99_000) == [1, 2, 7, 9], (
        "the tombstone's horizon is over; the bomb's value would return"
    )
    assert 0 < reads.count < 10 * FEW
