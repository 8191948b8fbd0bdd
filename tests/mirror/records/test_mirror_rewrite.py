"""From fetched batches to batches to produce: fields that change, fields that must not, and omitted records."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_kafka.appendable import validate
from millstream_kafka.batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    INT32_MAX,
    Record,
    build_batch,
    crc_matches,
    read_header,
    read_records,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.fetch import AbortedTransaction
from millstream_mirror.records.rewrite import Rewritten, UnusableBatch, joined, rewrite

NOW = 1_700_000_000_000
COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def batch(offset: int, count: int, **options: object) -> bytes:
    records = [Record(b"k%d" % number, b"v%d" % (offset + number), NOW + number) for number in range(count)]
    return build_batch(records, base_offset=offset, **options)  # type: ignore[arg-type]


def run(
    *batches: bytes, position: int = 0, sequence: int = 0, aborted: Sequence[AbortedTransaction] = ()
) -> Rewritten:
    fetched = memoryview(bytearray(b"".join(batches)))
    work = rewrite(
        fetched, position=position, producer_id=7, producer_epoch=2, sequence=sequence, aborted=aborted
    )
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("codec", list(Compression))
def test_rewrite_changes_header_only(codec: Compression) -> None:
    fetched = batch(100, 3, compression=codec, leader_epoch=5)
    (out,) = run(fetched, position=100, sequence=40).batches
    assert bytes(out.data[HEADER_SIZE:]) == fetched[HEADER_SIZE:]
    before, after = read_header(fetched), read_header(out.data)
    assert after == before._replace(
        base_offset=0,
        partition_leader_epoch=-1,
        crc=after.crc,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
    )
    assert crc_matches(out.data)
    assert (out.base_sequence, out.next_sequence, out.next_offset, out.records) == (40, 43, 103, 3)
    assert [header.base_sequence for header in validate(bytes(out.data))] == [40]


def test_batches_of_any_producer_are_numbered_in_order() -> None:
    fetched = [batch(0, 2, producer_id=1, producer_epoch=0, base_sequence=9), batch(2, 1), batch(3, 4)]
    done = run(*fetched, sequence=INT32_MAX - 1)
    assert [(one.base_sequence, one.next_sequence) for one in done.batches] == [
        (INT32_MAX - 1, 0),
        (0, 1),
        (1, 5),
    ]
    assert done.position == 7
    whole = memoryview(bytearray(b"".join(fetched)))
    assert len(joined(whole, done.batches)) == len(whole)


def test_records_before_position_are_omitted() -> None:
    done = run(batch(0, 2), batch(2, 2), batch(4, 2), position=4)
    assert [one.next_offset for one in done.batches] == [6]


def test_start_inside_batch_keeps_its_rest() -> None:
    (out,) = run(batch(0, 5, compression=Compression.GZIP), position=3).batches
    assert [(record.value, record.timestamp) for record in read_records(out.data)] == [
        (b"v3", NOW + 3),
        (b"v4", NOW + 4),
    ]
    assert read_header(out.data).compression is Compression.GZIP
    assert (out.records, out.next_offset, out.start) == (2, 5, -1)
    validate(bytes(out.data))


def test_holes_of_compaction_are_closed() -> None:
    survivors = [Record(b"a", b"1", NOW, offset=11), Record(b"b", b"2", NOW, offset=14)]
    compacted = build_batch(survivors, base_offset=10, last_offset=19)
    horizon = build_batch([Record(b"c", None, NOW, offset=30)], base_offset=30, delete_horizon=NOW + 5)
    empty = build_batch([], base_offset=20, last_offset=29)
    done = run(compacted, empty, horizon, position=10)
    assert done.position == 31
    assert [one.records for one in done.batches] == [2, 1]
    headers = validate(b"".join(one.data for one in done.batches))
    assert not any(header.attributes & DELETE_HORIZON for header in headers)
    assert [record.timestamp for one in done.batches for record in read_records(one.data)] == [NOW] * 3


def test_log_append_time_is_kept() -> None:
    """But a producer may not say that a broker has set it."""
    (out,) = run(batch(0, 2, append_time=NOW + 99)).batches
    (header,) = validate(out.data)
    assert not header.is_log_append_time
    assert [record.timestamp for record in read_records(out.data)] == [NOW + 99] * 2


def transaction(offset: int, producer: int) -> bytes:
    return batch(offset, 2, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(offset: int, producer: int, kind: bytes) -> bytes:
    record = Record(kind, struct.pack(">hi", 0, 0), NOW)
    return build_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


def test_aborted_transactions_and_markers_are_omitted() -> None:
    done = run(
        transaction(0, 1),  # aborted
        transaction(2, 2),  # committed
        transaction(4, 1),
        marker(6, 1, ABORT),
        transaction(7, 1),  # the same producer's next one, committed
        marker(9, 2, COMMIT),
        marker(10, 1, COMMIT),
        aborted=[AbortedTransaction(1, 0)],
    )
    assert [one.next_offset for one in done.batches] == [4, 9]
    assert done.position == 11
    assert done.last is not None
    assert done.last.offset == 10, "what is left out counts, too: the source may lose it"
    headers = validate(b"".join(one.data for one in done.batches))
    assert not any(header.is_transactional for header in headers)


def test_corrupt_batch_gets_no_valid_crc() -> None:
    damaged = bytearray(batch(0, 2))
    damaged[-1] ^= 1
    with pytest.raises(UnusableBatch, match="offset 0: the CRC does not match"):
        run(bytes(damaged))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, INT32_MAX), st.data())
def test_numbers_are_independent_of_start(sizes: list[int], sequence: int, data: st.DataObject) -> None:
    """The basis of exactly-once: from any batch with its number on, all records get the same numbers as before."""
    batches, offset = [], 0
    for size in sizes:
        batches.append(batch(offset, size))
        offset += size
    whole = run(*batches, sequence=sequence).batches
    start = data.draw(st.integers(0, len(sizes) - 1))
    again = run(
        *batches[start:],
        position=whole[start].next_offset - sizes[start],
        sequence=whole[start].base_sequence,
    ).batches
    assert [bytes(one.data) for one in again] == [bytes(one.data) for one in whole[start:]]


def test_rebuilt_batch_knows_source_offsets() -> None:
    compacted = build_batch(
        [Record(b"k", b"v", NOW, offset=offset) for offset in (12, 13, 17)], base_offset=12
    )
    (out,) = run(compacted, position=13).batches
    assert (out.records, out.next_offset, out.runs) == (2, 18, (range(13, 14), range(17, 18)))
    (whole,) = run(batch(20, 3), position=20).batches
    assert whole.runs == ()
