"""Malicious batches: which are refused, and with which error; harmless ones are accepted."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.log import validator
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_kafka.appendable import MOST_RECORDS_A_BYTE, HeaderRefusedError, validate
from millstream_kafka.batch import (
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    LEAST_RECORD,
    MOST_OFFSETS,
    Record,
    build_batch,
    empty_batch,
    read_header,
    read_records,
    scan_records,
)
from millstream_kafka.compression import Compression, compress
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
CODECS = [codec for codec in Compression if codec]


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def record(
    offset: int, *, key: bytes = varint(1) + b"k", value: bytes = varint(1) + b"v", tail: bytes = varint(0)
) -> bytes:
    """``key`` and ``value`` include their lengths; ``tail`` is the count of headers, and the headers."""
    body = b"\0" + varint(0) + varint(offset) + key + value + tail
    return varint(len(body)) + body


def sealed(
    body: bytes,
    *,
    count: int = 1,
    last: int | None = None,
    codec: Compression = Compression.NONE,
    base: int = 0,
) -> bytes:
    """A batch of these bytes under a correct CRC. ``last`` is the last offset delta, by default ``count - 1``."""
    packed = compress(codec, body)
    data = bytearray(HEADER_SIZE) + packed
    delta = count - 1 if last is None else last
    HEADER.pack_into(data, 0, base, len(data) - 12, 0, 2, 0, codec, delta, NOW, NOW, -1, -1, -1, count)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


def refusal(act: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


# -- records that are read --------------------------------------------------------------------------------------

GOOD = record(0)
BAD_RECORDS: dict[str, tuple[Sequence[bytes], str]] = {
    "descending offsets": ([record(1), record(0)], "offset"),
    "the same offset twice": ([record(0), record(0)], "offset"),
    "a gap": ([record(0), record(2)], "offset"),
    "not from 0": ([record(1), record(2)], "offset"),
    "a negative offset": ([record(-1), record(0)], "offset"),
    "an offset of 2^34": ([record(0), record(2**34)], "offset"),
    "an offset in six bytes": ([b"\x18\0\0\x80\x80\x80\x80\x80\0\x02k\x02v"], "more than 5 bytes"),
    "a key beyond the record": ([record(0, key=varint(100) + b"k")], ""),
    "a key beyond the record, in the next one": ([record(0, key=varint(9) + b"k"), record(1)], ""),
    "a value beyond the record": ([record(0, value=varint(100) + b"v")], ""),
    "a value shorter than the record": ([record(0, value=varint(1) + b"vv")], ""),
    "fewer headers than there are": ([record(0, tail=varint(0) + b"xx")], "ends at byte"),
    "more headers than there are": ([record(0, tail=varint(2) + varint(1) + b"a" + varint(0))], ""),
    "2^31 headers": ([record(0, tail=varint(INT32_MAX))], ""),
    "a negative number of headers": ([record(0, tail=varint(-1))], "headers"),
    "a header without a name": ([record(0, tail=varint(1) + varint(-1) + varint(0))], "without a name"),
    "a header beyond the record": ([record(0, tail=varint(1) + varint(50) + varint(0))], ""),
    "a negative length": ([varint(-3) + GOOD[1:]], "a record of -3 bytes"),
    "a length beyond the batch": ([varint(300) + GOOD[1:]], "a record of 300 bytes"),
    "no bytes": ([varint(0) + GOOD], "a record of 0 bytes"),
    "too few bytes for any record": ([varint(5) + bytes(5), GOOD], "a record of 5 bytes"),
    "a length beyond the batch by one": ([varint(len(GOOD)) + GOOD[1:]], f"a record of {len(GOOD)} bytes"),
    "bytes behind the last record": ([GOOD, b"\0"], ": 1 bytes behind the last record"),
}


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_refused(name: str, codec: Compression) -> None:
    parts, said = BAD_RECORDS[name]
    count = max(1, sum(len(part) > 1 for part in parts))
    batch = sealed(b"".join(parts), count=count, codec=codec)
    error = refusal(lambda: validator.validate(batch, LogConfig(), NOW, where="t-0", read=True))
    assert error.code is ErrorCode.INVALID_RECORD
    assert said in error.message


@pytest.mark.parametrize(
    "name", sorted(BAD_RECORDS.keys() - {"a gap", "not from 0"})
)  # compaction leaves such batches
def test_bad_records_that_are_stored_are_not_read(name: str) -> None:
    parts, said = BAD_RECORDS[name]
    count = max(1, sum(len(part) > 1 for part in parts))
    error = refusal(lambda: list(read_records(sealed(b"".join(parts), count=count, last=9))))
    assert error.code is ErrorCode.INVALID_RECORD
    assert said in error.message


def test_a_number_may_take_five_bytes_and_no_more() -> None:
    """Even for a small value: Kafka reads five bytes of zeros as 0."""
    for count, is_read in ((4, True), (5, False)):
        body = b"\0\0" + b"\x80" * count + b"\0" + b"\x02k\x02v\0"
        batch = sealed(varint(len(body)) + body)
        for read in (scan_records, read_records):
            if is_read:
                assert len(list(read(batch))) == 1  # type: ignore[operator]
            else:
                error = refusal(lambda: list(read(batch)))  # type: ignore[operator]  # noqa: B023
                assert "a number of more than 5 bytes" in error.message


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_that_no_codec_wrote_are_refused(codec: Compression) -> None:
    good = bytearray(sealed(GOOD * 50, count=50, codec=codec))
    for length in (0, 1, 5, 20):
        damaged = good[: HEADER_SIZE + length]
        header = read_header(good)._replace(
            batch_length=len(damaged) - 12, record_count=1, last_offset_delta=0
        )
        HEADER.pack_into(damaged, 0, *header)
        struct.pack_into(">I", damaged, 17, crc32c(damaged[21:]))
        error = refusal(lambda: validator.validate(bytes(damaged), LogConfig(), NOW, where="t-0", read=True))  # noqa: B023
        assert error.code is ErrorCode.INVALID_RECORD


numbers = st.one_of(st.integers(-3, 6), st.sampled_from([63, 64, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62]))
pieces = st.one_of(
    st.binary(max_size=12),
    numbers.map(varint),
    st.builds(
        record,
        st.integers(-1, 4),
        key=st.one_of(numbers.map(varint), st.binary(max_size=3).map(lambda key: varint(len(key)) + key)),
        value=st.one_of(
            numbers.map(varint), st.binary(max_size=3).map(lambda value: varint(len(value)) + value)
        ),
        tail=st.one_of(numbers.map(varint), st.just(varint(1) + varint(1) + b"n" + varint(-1))),
    ),
)


@given(st.lists(pieces, max_size=4), st.integers(1, 4))
@settings(deadline=None, max_examples=600)
def test_a_scan_lets_in_exactly_what_can_be_read_and_counts_from_0(parts: list[bytes], count: int) -> None:
    batch = sealed(b"".join(parts), count=count)

    def outcome(read: Callable[[bytes], object]) -> object:
        try:
            return list(read(batch))  # type: ignore[call-overload]
        except ApiError as error:
            return error.code

    scanned, found = outcome(scan_records), outcome(read_records)
    if isinstance(found, list) and [one.offset for one in found] == list(range(count)):
        assert scanned == [(one.timestamp, one.key is not None) for one in found]
    else:
        assert scanned is ErrorCode.INVALID_RECORD
        assert isinstance(found, list) or found is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("offsets", [(1, 0), (0, 0), (5, 6), (0, -1)])
def test_stored_records_out_of_their_batch_are_not_read(offsets: tuple[int, int]) -> None:
    batch = sealed(record(offsets[0]) + record(offsets[1]), count=2, last=4)
    assert refusal(lambda: list(read_records(batch))).code is ErrorCode.INVALID_RECORD


# -- the number of records --------------------------------------------------------------------------------------


def test_a_plain_batch_has_no_more_records_than_bytes_for_them() -> None:
    least = record(0, key=varint(-1), value=varint(-1))
    assert len(least) == LEAST_RECORD
    for count in (1, 2, 64):
        body = b"".join(record(i, key=varint(-1), value=varint(-1)) for i in range(count))
        assert len(body) == count * LEAST_RECORD
        assert validate(sealed(body, count=count))[0].record_count == count
        for claimed in (count + 1, INT32_MAX):
            for read in (False, True):
                error = refusal(lambda: validate(sealed(body, count=claimed), read=read))  # noqa: B023
                assert error.code is ErrorCode.INVALID_RECORD
                assert not isinstance(error, HeaderRefusedError)
                assert f"{claimed} records in {len(body)} bytes" in error.message


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_that_claims_too_much_is_read_before_it_is_believed(codec: Compression) -> None:
    batch = sealed(GOOD, count=1, codec=codec)
    size = len(batch) - HEADER_SIZE
    most = size * MOST_RECORDS_A_BYTE
    assert validate(sealed(GOOD, count=most, codec=codec))
    for claimed in (most + 1, INT32_MAX):
        batch = sealed(GOOD, count=claimed, codec=codec)
        assert isinstance(refusal(lambda: validate(batch)), HeaderRefusedError)  # noqa: B023
        error = refusal(lambda: validator.validate(batch, LogConfig(), NOW, where="t-0", read=True))  # noqa: B023
        assert error.code is ErrorCode.INVALID_RECORD
        assert not isinstance(error, HeaderRefusedError)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 100, 30_000])
def test_no_honest_batch_is_read_for_its_number_of_records(codec: Compression, count: int) -> None:
    """The smallest possible records, all equal: nothing compresses better."""
    batch = build_batch([Record(None, None, NOW)] * count, compression=codec)
    assert validate(batch)[0].record_count == count
    assert count * 5 < (len(batch) - HEADER_SIZE) * MOST_RECORDS_A_BYTE


def test_a_request_cannot_have_more_offsets_than_a_segment(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    body = random.Random(1).randbytes(100_000)  # few batches, as large as may be
    packed = sealed(body, codec=Compression.GZIP)
    claimed = (len(packed) - HEADER_SIZE) * MOST_RECORDS_A_BYTE
    batch = sealed(body, count=claimed, codec=Compression.GZIP)
    request = batch * (INT32_MAX // claimed + 1)
    error = refusal(lambda: log.append(request, leader_epoch=0, now_ms=NOW))
    assert error.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert (log.log_end_offset, log.size) == (0, 0)
    log.append(build_batch([Record(b"k", b"v", NOW)]), leader_epoch=0, now_ms=NOW)


# -- follower copies --------------------------------------------------------------------------------------------


def copied(batch: bytes, end: int = 0) -> int:
    return validator.validate_copied(memoryview(batch), end)[1][-1].next_offset


def test_a_follower_takes_what_compaction_leaves() -> None:
    most = MOST_OFFSETS
    assert copied(sealed(record(3), count=1, last=most - 1)) == most
    assert copied(sealed(record(3), count=1, last=most - 1, codec=Compression.GZIP)) == most
    assert copied(sealed(GOOD, base=2**40), end=5) == 2**40 + 1
    emptied = empty_batch(read_header(build_batch([Record(b"k", b"v", NOW)] * 9)))
    assert copied(emptied) == 9
    real = build_batch([Record(None, None, NOW)] * 30_000, compression=Compression.ZSTD)
    assert copied(real) == 30_000


@pytest.mark.parametrize(
    "batch",
    [
        sealed(GOOD, count=INT32_MAX),
        sealed(GOOD, count=INT32_MAX, codec=Compression.GZIP),
        sealed(GOOD, count=1, last=MOST_OFFSETS),
        sealed(GOOD, count=1, last=INT32_MAX),
        sealed(GOOD, count=2),
        sealed(GOOD, count=2, last=0),
        sealed(GOOD, count=-1, last=0),
        sealed(GOOD, count=1, last=-1),
        sealed(GOOD) + sealed(GOOD, base=INT32_MAX + 1),
    ],
    ids=range(9),
)
def test_a_follower_takes_nothing_that_no_leader_lets_in(batch: bytes, tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    assert refusal(lambda: log.append_as_follower(batch, now_ms=NOW)).code is ErrorCode.CORRUPT_MESSAGE
    assert (log.log_end_offset, log.size) == (0, 0)
    log.append_as_follower(sealed(GOOD), now_ms=NOW)
    assert log.log_end_offset == 1
