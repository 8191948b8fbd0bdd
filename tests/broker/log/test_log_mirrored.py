"""Batches of a mirror's source: which ones a replica stores, and what it tells of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.validator import validate_mirrored
from millstream_broker.topic_rules.mirrored_topics import LARGEST_EPOCH, LARGEST_OFFSET
from millstream_harness.replica import NOW_MS, batch, open_log
from millstream_kafka.batch import HEADER_SIZE, Record, build_batch, empty_batch, read_header
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError, ErrorCode


def of_source(records: int = 1, *, offset: int = 5, epoch: int = 3, **how: Any) -> memoryview:
    found = [Record(b"\0\0\0\0", b"value", NOW_MS)] * records
    return memoryview(build_batch(found, base_offset=offset, leader_epoch=epoch, **how))


def code(*batches: memoryview, latest_epoch: int = 3) -> ErrorCode:
    data = memoryview(b"".join(batches))
    try:
        view, headers, append_time, origin = validate_mirrored(data, 5, latest_epoch)
    except ApiError as error:
        return error.code
    assert view is data
    assert len(headers) == len(batches)
    assert (append_time, origin) == (-1, AppendOrigin.MIRROR)
    return ErrorCode.NONE


PRODUCER = {"producer_id": 0, "producer_epoch": 0}


@pytest.mark.parametrize(
    ("which", "is_stored"),
    [
        (of_source(), True),
        (of_source(**PRODUCER, base_sequence=0), True),
        (of_source(2, **PRODUCER, transactional=True), True),
        (of_source(2, **PRODUCER, transactional=True, compression=Compression.GZIP), True),
        (of_source(transactional=True), False),
        (of_source(producer_id=7, transactional=True), False),
        (of_source(producer_epoch=0, transactional=True), False),
        (of_source(**PRODUCER, transactional=True, control=True), True),
        (of_source(**PRODUCER, control=True), False),
        (of_source(2, **PRODUCER, transactional=True, control=True), False),
        (of_source(**PRODUCER, transactional=True, control=True, compression=Compression.GZIP), False),
    ],
)
def test_batches_of_transactions_are_those_that_a_broker_writes(which: memoryview, is_stored: bool) -> None:
    assert code(which) is (ErrorCode.NONE if is_stored else ErrorCode.INVALID_RECORD)


def test_a_marker_may_have_been_emptied_by_compaction() -> None:
    marker = of_source(**PRODUCER, transactional=True, control=True)
    assert code(memoryview(empty_batch(read_header(marker)))) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, ErrorCode.INVALID_RECORD),
        (0, ErrorCode.NONE),
        (LARGEST_EPOCH, ErrorCode.NONE),
        (LARGEST_EPOCH + 1, ErrorCode.INVALID_RECORD),
    ],
)
def test_epochs_are_those_of_a_source(epoch: int, expected: ErrorCode) -> None:
    assert code(of_source(epoch=epoch), latest_epoch=-1) is expected


@pytest.mark.parametrize("over", [0, 1])
def test_offsets_are_those_of_a_source(over: int) -> None:
    last = of_source(offset=LARGEST_OFFSET + over)
    assert code(last) is (ErrorCode.INVALID_RECORD if over else ErrorCode.NONE)


def test_epochs_do_not_fall() -> None:
    assert (
        code(of_source(epoch=3), of_source(offset=6, epoch=4), of_source(offset=7, epoch=4)) is ErrorCode.NONE
    )
    assert code(of_source(epoch=2)) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(of_source(epoch=5), of_source(offset=6, epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH


def test_offsets_within_batches_and_the_last_header(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    assert log.last_header() is None
    log = open_log(tmp_path / "u-0", batch("a", "b"), batch("c", offset=2), batch("d", offset=3))
    assert [log.is_within_batch(offset) for offset in range(6)] == [
        *(False, True),
        False,
        False,
        *(False, False),
    ]
    header = log.last_header()
    assert header is not None
    assert len(header) == HEADER_SIZE
    assert int.from_bytes(header[:8], "big") == 3
    log.delete_records_before(4)
    assert log.last_header() is None
