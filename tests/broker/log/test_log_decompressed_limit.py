"""max.decompressed.message.bytes: large records of small batches, in each codec, wherever the broker decompresses."""

from __future__ import annotations

import mmap
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from millstream_broker.log import validator
from millstream_broker.log.compaction import Compaction
from millstream_broker.log.compaction_due import due
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_kafka import compression
from millstream_kafka.appendable import HeaderRefusedError
from millstream_kafka.batch import (
    HEADER,
    HEADER_SIZE,
    LARGEST_RECORD,
    Record,
    build_batch,
    read_records,
    scan_records,
    skim_records,
)
from millstream_kafka.compression import Compression, compress
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.varints import write_varint

NOW = 1_700_000_000_000
CODECS = [codec for codec in Compression if codec]
LIMIT = 100_000
LIMITED = LogConfig(max_decompressed_message_bytes=LIMIT)
READS: list[Callable[..., Iterator[object]]] = [scan_records, read_records, skim_records]
WHY = f"exceeds the configured maximum record size of {LIMIT}"


def of_size(size: int, codec: Compression) -> bytes:
    """A small record, then one whose length is ``size``."""
    overhead = len(body_of(size)) - size
    batch = build_batch(
        [Record(b"k", b"v", NOW), Record(b"k", bytes(size - overhead), NOW)], compression=codec
    )
    assert struct.unpack_from(">i", batch, 57) == (2,)
    return batch


def body_of(size: int) -> bytes:
    """What a record's length counts, with a value of ``size`` bytes."""
    body = bytearray(1)
    write_varint(body, 0)
    write_varint(body, 1)
    body += b"\x02k"
    write_varint(body, size)
    return bytes(body) + bytes(size) + b"\0"


def sealed(packed: bytes, codec: Compression, count: int = 1) -> bytes:
    data = bytearray(HEADER_SIZE) + packed
    HEADER.pack_into(data, 0, 0, len(data) - 12, 0, 2, 0, codec, count - 1, NOW, NOW, -1, -1, -1, count)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


def claiming(length: int, codec: Compression, zeros: int = 20 << 20) -> bytes:
    """A batch of few bytes that decompresses to one record of this length, or to the beginning of one."""
    body = bytearray()
    write_varint(body, length)
    return sealed(compress(codec, bytes(body) + bytes(zeros)), codec)


def refusal(act: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


class Largest:
    """The most memory that decompressing takes at a time: buffers, and objects of Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffer = 0

        class Mapped(mmap.mmap):
            def __new__(cls, fileno: int, size: int) -> Any:
                self.buffer = max(self.buffer, size)
                return super().__new__(cls, fileno, size)

        monkeypatch.setattr(compression.mmap, "mmap", Mapped)

    def of(self, act: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            act()
            return self.buffer + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Largest:
    return Largest(monkeypatch)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("read", READS)
def test_record_size_limit(read: Callable[..., Iterator[object]], codec: Compression) -> None:
    assert len(list(read(of_size(LIMIT, codec), LIMIT))) == 2
    batch = of_size(LIMIT + 1, codec)
    assert len(list(read(batch))) == 2
    error = refusal(lambda: list(read(batch, LIMIT)))
    assert error.code is ErrorCode.INVALID_RECORD
    assert f"Invalid record size: {LIMIT + 1} {WHY}." in error.message


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [LIMIT + 1, 100 << 20, 2**31 - 1])
def test_bomb_is_refused_before_it_is_decompressed(length: int, codec: Compression, largest: Largest) -> None:
    batch = claiming(length, codec)
    refused: list[ApiError] = []
    most = largest.of(
        lambda: refused.append(
            refusal(lambda: validator.validate(batch, LIMITED, NOW, where="t-0", read=True))
        )
    )
    assert refused[0].code is ErrorCode.INVALID_RECORD
    assert f"Invalid record size: {length} {WHY}" in refused[0].message
    assert most < 20 * len(batch) + (1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_large_record_behind_many_small_ones(codec: Compression) -> None:
    body = bytearray(build_batch([Record(b"k", b"v", NOW)] * 30_000)[HEADER_SIZE:])
    write_varint(body, LIMIT + 1)
    batch = sealed(compress(codec, bytes(body) + bytes(LIMIT)), codec, 30_001)
    assert WHY in refusal(lambda: list(skim_records(batch, LIMIT))).message


@pytest.mark.parametrize("codec", CODECS)
def test_batch_may_be_larger_than_its_records(codec: Compression) -> None:
    batch = build_batch([Record(b"k", bytes(LIMIT - 20), NOW)] * 30, compression=codec)
    for read in READS:
        assert len(list(read(batch, LIMIT))) == 30


def test_uncompressed_records_are_not_limited() -> None:
    batch = of_size(LIMIT + 1, Compression.NONE)
    for read in READS:
        assert len(list(read(batch, LIMIT))) == 2
    assert validator.validate(batch, LIMITED, NOW, where="t-0")


@pytest.mark.parametrize("codec", CODECS)
def test_limited_topics_read_compressed_batches_before_they_append_them(codec: Compression) -> None:
    good, bad = of_size(LIMIT, codec), of_size(LIMIT + 1, codec)
    for batch in (good, bad):
        assert validator.validate(batch, LogConfig(), NOW, where="t-0")
        error = refusal(lambda: validator.validate(batch, LIMITED, NOW, where="t-0"))  # noqa: B023
        assert isinstance(error, HeaderRefusedError)  # the caller then has it read
    assert validator.validate(good, LIMITED, NOW, where="t-0", read=True)
    error = refusal(lambda: validator.validate(bad, LIMITED, NOW, where="t-0", read=True))
    assert (error.code, isinstance(error, HeaderRefusedError)) == (ErrorCode.INVALID_RECORD, False)


def test_recompressed_batches_are_limited() -> None:
    config = LogConfig(max_decompressed_message_bytes=LIMIT, compression_type="zstd")
    assert validator.validate(of_size(LIMIT, Compression.GZIP), config, NOW, where="t-0")
    error = refusal(
        lambda: validator.validate(of_size(LIMIT + 1, Compression.GZIP), config, NOW, where="t-0")
    )
    assert WHY in error.message


def test_snappy_block_may_not_claim_more_than_it_can_hold(largest: Largest) -> None:
    """A raw block begins with its size, for which the decoder would allocate memory."""
    block = bytearray(cramjam.snappy.compress_raw(b"x" * 50))
    claim = bytes([0xFF, 0xFF, 0xFF, 0x3F])  # 128 MiB less one byte
    packed = claim + bytes(block[1:])
    xerial = compress(Compression.SNAPPY, b"") + struct.pack(">i", len(packed)) + packed
    for data in (packed, xerial):

        def decompress(data: bytes = data) -> None:
            with pytest.raises(ValueError, match=f"claims {(1 << 27) - 1} bytes"):
                compression.decompress(Compression.SNAPPY, memoryview(data))

        assert largest.of(decompress) < 1 << 20


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
def test_large_result_is_held_once(codec: Compression, largest: Largest) -> None:
    packed = compress(codec, bytes(20 << 20))
    result: list[Any] = []
    largest.of(lambda: result.append(compression.decompress(codec, memoryview(packed))))
    assert isinstance(result[0], mmap.mmap)
    assert len(result[0]) == 20 << 20
    assert result[0][:3] == bytes(3)


def limited_log(folder: Path, limit: int) -> Log:
    return Log.open(
        folder / "t-0",
        LogConfig(
            cleanup_policy="compact",
            max_decompressed_message_bytes=limit,
            min_cleanable_dirty_ratio=0.0,
            segment_bytes=1 << 20,
        ),
        clean=True,
        now_ms=NOW,
    )


def test_look_ups_refuse_larger_records_until_the_limit_is_raised(tmp_path: Path) -> None:
    log = limited_log(tmp_path, LARGEST_RECORD)
    log.append(of_size(LIMIT + 1, Compression.ZSTD), leader_epoch=0, now_ms=NOW)
    log.reconfigure(LIMITED)
    for look_up in (lambda: log.offset_for_timestamp(NOW), log.max_timestamp):
        error = refusal(look_up)
        assert (error.code, WHY in error.message) == (ErrorCode.INVALID_RECORD, True)
    log.reconfigure(LogConfig(max_decompressed_message_bytes=LIMIT + 1))
    assert log.offset_for_timestamp(NOW) == log.max_timestamp() == (NOW, 0, 0)


def compacted(log: Log, meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Run a pass if one is due; returns whether the log may be compacted again."""
    end = log.log_end_offset
    assert due(log, NOW, end) is not None
    compaction = Compaction(log, end, now_ms=NOW)
    meanwhile()
    while compaction.work():
        compaction.commit()
    compaction.finish()
    return not log.uncleanable


def test_compaction_stops_at_larger_records_until_the_limit_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = limited_log(tmp_path, LARGEST_RECORD)
    enough = log.config
    limited = replace(enough, max_decompressed_message_bytes=LIMIT)
    log.append(of_size(LIMIT + 1, Compression.ZSTD), leader_epoch=0, now_ms=NOW)
    log.roll(now_ms=NOW)
    log.reconfigure(limited)
    assert not compacted(log)
    assert WHY in caplog.messages[-1]
    assert due(log, NOW, log.log_end_offset) is None
    log.reconfigure(replace(limited, retention_ms=1))
    assert log.uncleanable
    log.reconfigure(enough)
    log.reconfigure(limited)
    assert compacted(log, meanwhile=lambda: log.reconfigure(enough))
    assert log.first_dirty_offset == 0
    assert compacted(log)
    (batch,) = log.batches_from(0)
    assert [record.offset for record in read_records(batch)] == [1]
