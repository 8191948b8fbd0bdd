"""The record batch codec, compared in both directions with two independent implementations; and damaged input."""

from __future__ import annotations

import contextlib
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from millstream_broker.log import validator
from millstream_broker.log.config import LogConfig
from millstream_kafka.appendable import MOST_BATCHES, validate
from millstream_kafka.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    LEAST_RECORD,
    TRANSACTIONAL,
    Record,
    build_batch,
    crc_matches,
    empty_batch,
    iter_batches,
    read_header,
    read_records,
    scan_records,
    stamp_append_time,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000

record_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=8)), max_size=3)
records = st.builds(
    Record,
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=300),
    timestamp=st.integers(0, 2**42),
    headers=record_headers.map(tuple),
    offset=st.just(-1),
)
record_lists = st.lists(records, min_size=1, max_size=20)
codecs = st.sampled_from(Compression)


def fields(record: Record) -> tuple[object, ...]:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@given(record_lists, codecs)
@settings(deadline=None)
def test_what_we_write_aiokafka_reads(written: list[Record], codec: Compression) -> None:
    batch = DefaultRecordBatch(build_batch(written, base_offset=7, compression=codec))
    assert batch.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert read == [fields(r._replace(offset=7 + i)) for i, r in enumerate(written)]


@given(record_lists, codecs)
@settings(deadline=None)
def test_what_aiokafka_writes_we_read(written: list[Record], codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(
        2, codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
    )
    for offset, record in enumerate(written):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    (header,) = validate(batch)
    # Some clients leave incompressible records uncompressed; the header says so.
    assert header.compression in (codec, Compression.NONE)
    assert header.record_count == len(written)
    assert list(read_records(batch)) == [r._replace(offset=i) for i, r in enumerate(written)]


@given(record_lists, st.sampled_from([Compression.NONE, Compression.GZIP, Compression.ZSTD]))
@settings(deadline=None)
def test_kafka_python_agrees_both_ways(written: list[Record], codec: Compression) -> None:
    ours = build_batch(written, compression=codec, producer_id=5, producer_epoch=1, base_sequence=9)
    theirs = MemoryRecordsBuilder(
        magic=2, compression_type=codec, batch_size=1 << 20, producer_id=5, producer_epoch=1, base_sequence=9
    )
    for record in written:
        theirs.append(record.timestamp, record.key, record.value, list(record.headers))
    theirs.close()
    if codec is Compression.NONE:
        # kafka-python leaves the base offset and the leader epoch (-1 for us) to the broker.
        assert ours[16:] == bytes(theirs.buffer())[16:]
    batch = MemoryRecords(ours).next_batch()
    assert batch.validate_crc()
    assert [(r.key, r.value, r.timestamp) for r in batch] == [(r.key, r.value, r.timestamp) for r in written]
    assert [r._replace(offset=-1) for r in read_records(theirs.buffer())] == written


def one(**kwargs: object) -> bytes:
    return build_batch([Record(b"k", b"v", NOW)], **kwargs)  # type: ignore[arg-type]


def resealed(batch: bytes, **changes: int) -> bytes:
    """The batch with changed header fields and a correct CRC."""
    header = read_header(batch)._replace(**changes)
    data = bytearray(batch)
    HEADER.pack_into(data, 0, *header)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\x00" * 10, ErrorCode.INVALID_RECORD),
        (one()[:-1], ErrorCode.INVALID_RECORD),
        (one() + b"\x00", ErrorCode.INVALID_RECORD),
        (one() + one()[:-1], ErrorCode.INVALID_RECORD),
        (one()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (resealed(one(), batch_length=10), ErrorCode.CORRUPT_MESSAGE),
        (resealed(one(), batch_length=-5), ErrorCode.CORRUPT_MESSAGE),
        (resealed(one(), batch_length=2**31 - 1), ErrorCode.INVALID_RECORD),
        (resealed(one(), magic=3), ErrorCode.CORRUPT_MESSAGE),
        (resealed(one(), magic=-1), ErrorCode.CORRUPT_MESSAGE),
        (resealed(one(), magic=1), ErrorCode.INVALID_RECORD),
        (struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, NOW, -1, -1), ErrorCode.INVALID_RECORD),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1), ErrorCode.INVALID_RECORD),
        (resealed(one(), record_count=2), ErrorCode.INVALID_RECORD),
        (resealed(one(), record_count=0), ErrorCode.INVALID_RECORD),
        (resealed(one(), record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (resealed(one(), last_offset_delta=4), ErrorCode.INVALID_RECORD),
        (resealed(one(), base_offset=4), ErrorCode.INVALID_RECORD),
        (resealed(one(), attributes=5), ErrorCode.INVALID_RECORD),
        (resealed(one(), attributes=CONTROL), ErrorCode.INVALID_RECORD),
        (resealed(one(), attributes=DELETE_HORIZON), ErrorCode.INVALID_RECORD),
        (resealed(one(), attributes=TRANSACTIONAL), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (resealed(one(), producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (resealed(one(), producer_id=1, producer_epoch=-1, base_sequence=0), ErrorCode.INVALID_RECORD),
    ],
)
def test_bad_batches_are_refused(batch: bytes, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        validate(batch)
    assert caught.value.code is code


def test_a_refusal_says_how_much_of_a_batch_came() -> None:
    old = bytes(16) + b"\x01" + b"\x00" * 10
    empty = empty_batch(read_header(one()))
    for data, message in (
        (old[:16], "16 bytes where a batch has at least 61"),
        (old[:17], "message format 1: only format 2 is stored"),
        (old, "message format 1: only format 2 is stored"),
        (one() + old, "message format 1: only format 2 is stored"),
        (empty, "0 records with a last offset delta of 0"),
        (empty[:-1], "60 bytes where a batch has at least 61"),
        (resealed(one(), batch_length=48), "60 bytes where a batch has at least 61"),
        (resealed(one(), batch_length=14), "26 bytes where a batch has at least 61"),
        (
            resealed(one(), batch_length=13),
            "Record size 13 is less than the minimum record overhead (14)",
        ),
        (one()[:-1], f"a batch of {len(one())} bytes in {len(one()) - 1} bytes"),
    ):
        with pytest.raises(ApiError) as caught:
            validate(data)
        assert caught.value.message == message


def test_the_limit_is_on_each_batch() -> None:
    batch = one()
    assert len(validate(batch + batch, len(batch))) == 2
    with pytest.raises(ApiError) as caught:
        validate(batch, len(batch) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert int(caught.value.code) == 10
    assert f"max.message.bytes={len(batch) - 1}" in caught.value.message


def test_a_partition_takes_as_many_batches_as_a_mebibyte_has() -> None:
    """A mirror sends at once what it has fetched at once; more would hold the loop, and take memory."""
    batch = build_batch([Record(None, b"", NOW)])
    assert len(validate(batch * MOST_BATCHES)) == MOST_BATCHES > (1 << 20) // HEADER_SIZE
    with pytest.raises(ApiError, match="more than 20000 batches for a partition") as caught:
        validate(batch * (MOST_BATCHES + 1))
    assert caught.value.code is ErrorCode.INVALID_RECORD


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_api_errors(data: bytes) -> None:
    with pytest.raises(ApiError):
        validate(data)


@given(record_lists, st.data())
@settings(deadline=None)
def test_a_flipped_bit_is_found(written: list[Record], data: st.DataObject) -> None:
    batch = bytearray(build_batch(written))
    # The broker sets base offset and leader epoch; the CRC does not cover them.
    position = data.draw(st.sampled_from([*range(8, 12), *range(16, len(batch))]))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ApiError):
        validate(batch)


@given(record_lists, codecs, st.data())
@settings(deadline=None)
def test_damaged_records_raise_nothing_but_api_errors(
    written: list[Record], codec: Compression, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(written, compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ApiError):
        list(read_records(batch))


@pytest.mark.parametrize("producer", [0, 1])
def test_a_producer_begins_with_epoch_0_and_sequence_0(producer: int) -> None:
    assert validate(one(producer_id=producer, producer_epoch=0, base_sequence=0))
    for epoch, sequence in ((-1, 0), (0, -1)):
        with pytest.raises(ApiError) as caught:
            validate(one(producer_id=producer, producer_epoch=epoch, base_sequence=sequence))
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert caught.value.message == f"producer {producer} with epoch {epoch}, sequence {sequence}"
    assert validate(one(producer_id=-1, producer_epoch=-1, base_sequence=-1))


@pytest.mark.parametrize("timestamp", [0, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)])
def test_any_timestamp_of_64_bits_is_read_as_it_was_written(timestamp: int) -> None:
    written = [
        Record(b"k", None, time, (), offset)
        for offset, time in enumerate((timestamp, 0, timestamp, 2**63 - 1, -(2**63)))
    ]
    for horizon in (None, 0, 2**63 - 1):
        batch = build_batch(written, delete_horizon=horizon)
        assert list(read_records(batch)) == written
        assert [time for time, _ in scan_records(batch)] == [record.timestamp for record in written]


@pytest.mark.parametrize(
    ("delta", "size"),
    [(0, 1), (63, 1), (-64, 1), (64, 2), (-65, 2), (8191, 2), (-8192, 2), (8192, 3), (-8193, 3)],
)
def test_a_number_takes_no_more_bytes_than_it_needs(delta: int, size: int) -> None:
    records = [Record(None, None, NOW), Record(None, None, NOW + delta)]
    assert len(build_batch(records)) == HEADER_SIZE + 2 * LEAST_RECORD + size - 1


def test_several_batches_in_one_buffer() -> None:
    batches = [build_batch([Record(None, bytes([i]))] * i, base_offset=10 * i) for i in range(1, 4)]
    found = list(iter_batches(b"".join(batches) + batches[0][:30]))
    assert [header.base_offset for _, header in found] == [10, 20, 30]
    assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0]) + len(batches[1])]


def test_offsets_may_have_gaps_and_batches_be_empty() -> None:
    batch = build_batch(
        [Record(b"a", None, NOW, (), 5), Record(b"b", b"", NOW, (), 9)], base_offset=3, last_offset=12
    )
    assert read_header(batch).last_offset == 12
    assert [(r.offset, r.value) for r in read_records(batch)] == [(5, None), (9, b"")]
    with pytest.raises(ValueError, match="record offset 4 after 4"):
        build_batch([Record(b"a", b"", NOW, (), 4)] * 2, base_offset=3)
    with pytest.raises(ValueError, match="record offset 0 after 2"):
        build_batch([Record(b"a", b"", NOW, (), 0)], base_offset=3)
    empty = build_batch([], base_offset=3, last_offset=12)
    assert list(read_records(empty)) == []
    assert (read_header(empty).base_timestamp, read_header(empty).max_timestamp) == (-1, -1)
    assert read_header(empty).next_offset == 13


def test_a_batch_that_has_not_arrived_whole_is_passed_over() -> None:
    batch = one()
    for length in (len(batch) - 1, HEADER_SIZE, HEADER_SIZE - 1, 0):
        found = list(iter_batches(batch + batch[:length]))
        assert found == [(0, read_header(batch))]
    assert [position for position, _ in iter_batches(batch + batch)] == [0, len(batch)]


def test_what_compaction_leaves_of_a_batch_is_its_header() -> None:
    """A batch that compaction empties keeps timestamp and timestamp type, but neither codec nor delete horizon."""
    batch = build_batch(
        [Record(b"k", None, NOW), Record(b"l", None, NOW)],
        base_offset=7,
        leader_epoch=3,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        compression=Compression.ZSTD,
        transactional=True,
        append_time=NOW + 1,
        delete_horizon=NOW + 2,
    )
    empty = empty_batch(read_header(batch))
    assert crc_matches(empty)
    assert empty == build_batch(
        [],
        base_offset=7,
        last_offset=8,
        leader_epoch=3,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        transactional=True,
        append_time=NOW + 1,
    )
    marker = read_header(build_batch([Record(b"", b"", NOW)], control=True))
    assert read_header(empty_batch(marker)).is_control


def test_control_batch() -> None:
    marker = Record(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7), NOW)
    batch = build_batch([marker], control=True, transactional=True, producer_id=4, producer_epoch=2)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert list(read_records(batch)) == [marker._replace(offset=0)]


def test_append_time_replaces_timestamps() -> None:
    batch = bytearray(build_batch([Record(b"k", b"v", 5), Record(b"k", b"v", 9)]))
    header = stamp_append_time(batch, read_header(batch), NOW)
    assert crc_matches(batch)
    assert read_header(batch) == header
    assert {record.timestamp for record in read_records(batch)} == {NOW}
    assert {r.timestamp_type for r in MemoryRecords(bytes(batch)).next_batch()} == {1}


@given(record_lists, codecs, codecs)
@settings(deadline=None)
def test_recompression_changes_nothing_else(
    written: list[Record], before: Compression, after: Compression
) -> None:
    batch = build_batch(written, compression=before, producer_id=3, producer_epoch=1, base_sequence=8)
    name = "uncompressed" if after is Compression.NONE else after.name.lower()
    config = LogConfig(
        compression_type=name, message_timestamp_after_max_ms=2**62, max_message_bytes=INT32_MAX
    )
    changed = bytes(validator.validate(batch, config, NOW, where="/logs/t-0")[0])
    assert list(read_records(changed)) == list(read_records(batch))
    old, new = read_header(batch), read_header(changed)
    assert new.compression is after
    assert old._replace(batch_length=0, crc=0, attributes=0) == new._replace(
        batch_length=0, crc=0, attributes=0
    )


@given(record_lists, codecs)
@settings(deadline=None)
def test_a_scan_agrees_with_reading(written: list[Record], codec: Compression) -> None:
    batch = build_batch(written, compression=codec)
    assert list(scan_records(batch)) == [(r.timestamp, r.key is not None) for r in read_records(batch)]


@given(st.binary(max_size=40), st.integers(1, 3))
@settings(deadline=None)
def test_records_that_cannot_be_read_are_refused(body: bytes, count: int) -> None:
    batch = resealed(
        one()[:HEADER_SIZE] + body,
        batch_length=HEADER_SIZE - 12 + len(body),
        record_count=count,
        last_offset_delta=count - 1,
    )
    for read in (scan_records, read_records):
        with contextlib.suppress(ApiError):
            assert len(list(read(batch))) == count  # type: ignore[operator]
