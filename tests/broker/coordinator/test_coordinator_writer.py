"""Writes to __consumer_offsets: one append at a time per partition; waiting writes share the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from millstream_broker.coordinator import writer as writer_module
from millstream_broker.coordinator.effects import (
    KeyValue,
    StoreMarker,
    StoreRecords,
    TransactionalProducer,
    TransactionMarker,
)
from millstream_broker.coordinator.writer import BATCH_BYTES, BATCH_RECORDS, Late, PartitionWriter
from millstream_harness.group_drivers import PATIENCE_S, until
from millstream_kafka.batch import Buffer, Record, read_records
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NONE = ErrorCode.NONE
OVERHEAD = 24
"""Counted size of a record, beside its key and value."""


class Topic:
    """An `InternalTopic` that keeps appended batches; appends wait while ``writable`` is cleared."""

    name = "__consumer_offsets"

    def __init__(self) -> None:
        self.appended: list[tuple[int, list[Record]]] = []
        self.producers: list[TransactionalProducer | None] = []
        self.markers: list[tuple[int, TransactionMarker]] = []
        """With the number of batches before it."""
        self.under_way = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.failure: Exception | None = None
        self.largest = 1 << 20
        """Its max.message.bytes."""

    def partition_count(self) -> int | None:
        return 1

    async def create(self) -> int:
        return 1

    async def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        self.markers.append((len(self.appended), marker))

    async def append(
        self,
        partition: int,
        batch: bytes,
        producer: TransactionalProducer | None = None,
        *,
        is_end: bool = False,
    ) -> None:
        self.under_way += 1
        await self.writable.wait()
        if self.failure is not None:
            raise self.failure
        if len(batch) > self.largest and not is_end:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        self.appended.append((partition, list(read_records(batch))))
        self.producers.append(producer)

    def read_all(self, partition: int) -> Iterator[Buffer]:
        return iter(())


class Writing:
    """A writer, its batches, and its replies in order."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.answers: list[tuple[list[int], ErrorCode]] = []
        self.late: list[tuple[list[int], ErrorCode]] = []
        self.writer = PartitionWriter(
            self.topic,
            lambda writes, error: self.answers.append((writes, error)),
            lambda writes, error: self.late.append((writes, error)),
            "groups",
        )

    async def begin_append(self, partition: int = 0) -> None:
        """The next append waits for ``writable``, and later writes wait for it."""
        self.topic.writable.clear()
        self.writer.write(StoreRecords(0, partition, [(b"first", b"")]))
        await until(lambda: self.topic.under_way == 1)

    async def finish(self) -> None:
        self.topic.writable.set()
        await self.writer.finish(PATIENCE_S)

    @property
    def together(self) -> list[list[int]]:
        """The writes of each batch."""
        return [writes for writes, _ in self.answers]


def record(size: int, key: bytes = b"k") -> KeyValue:
    """A record whose counted size is ``size``."""
    return key, bytes(size - OVERHEAD - len(key))


async def test_records_are_appended_as_they_are_and_answered_then() -> None:
    writing = Writing()
    began = int(time.time() * 1000)
    writing.writer.write(StoreRecords(1, 7, [(b"a", b"1"), (b"b", None)]))
    assert writing.answers == [], "it is not appended yet"
    await writing.finish()
    ((partition, records),) = writing.topic.appended
    assert (partition, [(each.key, each.value) for each in records]) == (7, [(b"a", b"1"), (b"b", None)])
    assert all(began <= each.timestamp <= int(time.time() * 1000) for each in records)
    assert writing.answers == [([1], NONE)]


async def test_what_is_written_during_an_append_goes_into_the_next_batch_together() -> None:
    writing = Writing()
    await writing.begin_append()
    for number in (1, 2, 3):
        writing.writer.write(StoreRecords(number, 0, [(b"%d" % number, b"")]))
    await writing.finish()
    assert writing.together == [[0], [1, 2, 3]]
    assert [each.key for each in writing.topic.appended[1][1]] == [b"1", b"2", b"3"]


async def test_partitions_do_not_wait_for_each_other() -> None:
    writing = Writing()
    await writing.begin_append(partition=0)
    writing.writer.write(StoreRecords(1, 1, [(b"k", b"")]))
    await until(lambda: writing.topic.under_way == 2)
    await writing.finish()


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        pytest.param([BATCH_BYTES - 100, 100], [[0], [1, 2]], id="exactly full"),
        pytest.param([BATCH_BYTES - 100, 101], [[0], [1], [2]], id="a byte too many"),
        pytest.param([BATCH_BYTES // 2] * 5, [[0], [1, 2], [3, 4], [5]], id="several batches"),
        pytest.param([100, BATCH_BYTES + 1, 100], [[0], [1], [2], [3]], id="a large write goes alone"),
    ],
)
async def test_a_batch_is_bounded(sizes: list[int], together: list[list[int]]) -> None:
    writing = Writing()
    await writing.begin_append()
    for number, size in enumerate(sizes, 1):
        writing.writer.write(StoreRecords(number, 0, [record(size)]))
    await writing.finish()
    assert writing.together == together


async def test_a_batch_has_few_enough_records_to_be_built_at_once() -> None:
    writing = Writing()
    await writing.begin_append()
    for number, count in enumerate((BATCH_RECORDS - 1, 1, 1, 2 * BATCH_RECORDS, 1), 1):
        writing.writer.write(StoreRecords(number, 0, [(b"k", b"")] * count))
    await writing.finish()
    assert writing.together == [[0], [1, 2], [3], [4], [5]]


async def test_writes_that_are_too_large_together_are_appended_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writing = Writing()
    await writing.begin_append()
    writing.topic.largest = 1000
    for number, size in enumerate((600, 600, 2000, 600, 2000), 1):
        writing.writer.write(StoreRecords(number, 0, [record(size, b"%d" % number)], is_end=number == 5))
    await writing.finish()
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    assert writing.answers == [
        ([0], NONE),
        ([1], NONE),
        ([2], NONE),
        ([3], too_large),
        ([4], NONE),
        ([5], NONE),
    ]
    keys = [each.key for _, records in writing.topic.appended for each in records]
    assert keys == [b"first", b"1", b"2", b"4", b"5"], "the order is kept, and an end may have any size"
    assert len(caplog.messages) == 1, "only one of them is refused"
    for number in (6, 7):
        writing.writer.write(StoreRecords(number, 0, [record(300)]))
    await writing.finish()
    assert writing.together[-1] == [6, 7], "later ones are together again"


async def test_the_records_of_a_write_count_together_with_their_keys() -> None:
    writing = Writing()
    await writing.begin_append()
    half = BATCH_BYTES // 2
    writing.writer.write(StoreRecords(1, 0, [record(half, b"key"), (bytes(half - OVERHEAD - 100), None)]))
    writing.writer.write(StoreRecords(2, 0, [record(100)]))
    writing.writer.write(StoreRecords(3, 0, [record(OVERHEAD + 1)]))
    await writing.finish()
    assert writing.together == [[0], [1, 2], [3]]


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (ApiError(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.NOT_ENOUGH_REPLICAS),
        (KeyError("a defect"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_failed_append_fails_its_writes_and_the_next_is_tried(
    failure: Exception, answer: ErrorCode
) -> None:
    writing = Writing()
    writing.topic.failure = failure
    writing.writer.write(StoreRecords(1, 0, [(b"k", b"")]))
    await writing.finish()
    writing.topic.failure = None
    writing.writer.write(StoreRecords(2, 0, [(b"k", b"")]))
    await writing.finish()
    assert writing.answers == [([1], answer), ([2], NONE)]


async def test_refused_appends_are_logged_once_until_one_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millstream_broker.coordinator.writer")
    writing = Writing()
    for code in (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        None,
    ):
        writing.topic.failure = None if code is None else ApiError(code)
        before = len(writing.answers)
        writing.writer.write(StoreRecords(0, 0, [(b"k", b"v")]))
        await until(lambda before=before: len(writing.answers) > before)
    await writing.finish()
    logged = [record.getMessage().partition(": ")[2].partition(": ") for record in caplog.records]
    assert [(what, error.split(":")[0]) for what, _, error in logged] == [
        ("cannot append", "NOT_ENOUGH_REPLICAS"),
        ("cannot append", "KAFKA_STORAGE_ERROR"),
        ("appends again", ""),
    ]


async def test_what_waits_in_a_partition_that_is_given_up_is_not_appended() -> None:
    writing = Writing()
    await writing.begin_append()
    writing.writer.write(StoreRecords(1, 0, [(b"k", b"")]))
    writing.writer.give_up(0)
    writing.writer.give_up(1)  # nothing was ever written there
    writing.writer.write(StoreRecords(2, 0, [(b"k", b"")]))
    await writing.finish()
    assert writing.together == [[0], [2]]


async def test_finishing_gives_up_appends_that_do_not_end() -> None:
    writing = Writing()
    await writing.begin_append()
    async with asyncio.timeout(PATIENCE_S):
        await writing.writer.finish(0.001)
    writing.topic.writable.set()
    await asyncio.sleep(0)
    assert (writing.topic.appended, writing.answers) == ([], [])


async def test_a_late_batch_holds_up_no_other_and_is_stored_when_it_is_committed() -> None:
    writing, committed = Writing(), asyncio.get_running_loop().create_future()
    writing.topic.failure = Late(ApiError(ErrorCode.REQUEST_TIMED_OUT), committed)
    writing.writer.write(StoreRecords(1, 0, [(b"a", b"")]))
    await until(lambda: writing.late == [([1], ErrorCode.REQUEST_TIMED_OUT)])
    writing.topic.failure = None
    writing.writer.write(StoreRecords(2, 0, [(b"b", b"")]))
    await until(lambda: writing.answers == [([2], NONE)])
    committed.set_result(True)
    await until(lambda: writing.answers == [([2], NONE), ([1], NONE)])
    await writing.finish()


async def test_a_late_batch_of_a_former_leadership_is_no_longer_waited_for() -> None:
    writing, committed = Writing(), asyncio.get_running_loop().create_future()
    writing.topic.failure = Late(ApiError(ErrorCode.REQUEST_TIMED_OUT), committed)
    writing.writer.write(StoreRecords(1, 0, [(b"a", b"")]))
    await until(lambda: bool(writing.late))
    committed.set_result(False)
    await writing.finish()
    assert writing.answers == []


async def test_a_writer_that_ends_waits_for_no_late_batch() -> None:
    writing, committed = Writing(), asyncio.get_running_loop().create_future()
    writing.topic.failure = Late(ApiError(ErrorCode.REQUEST_TIMED_OUT), committed)
    writing.writer.write(StoreRecords(1, 0, [(b"a", b"")]))
    await until(lambda: bool(writing.late))
    await writing.finish()
    assert writing.answers == []


async def test_writes_beyond_the_limit_of_late_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MOST_LATE", 2)
    writing, committed = Writing(), asyncio.get_running_loop().create_future()
    writing.topic.failure = Late(ApiError(ErrorCode.REQUEST_TIMED_OUT), committed)
    for number in (1, 2):
        writing.writer.write(StoreRecords(number, 0, [(b"a", b"")]))
    await until(lambda: len(writing.late) == 1)
    writing.writer.write(StoreRecords(3, 0, [(b"a", b"")]))
    await until(lambda: writing.answers == [([3], ErrorCode.NOT_ENOUGH_REPLICAS)])
    assert writing.topic.under_way == 1, "it is not in the log"
    writing.writer.write(StoreRecords(4, 1, [(b"a", b"")]))
    await until(lambda: len(writing.late) == 2)
    committed.set_result(True)
    await until(lambda: ([1, 2], NONE) in writing.answers)
    writing.topic.failure = None
    writing.writer.write(StoreRecords(5, 0, [(b"a", b"")]))
    await until(lambda: ([5], NONE) in writing.answers)
    await writing.finish()


async def test_records_of_a_transaction_and_markers_keep_their_place_and_have_batches_of_their_own() -> None:
    writing = Writing()
    await writing.begin_append()
    producer = TransactionalProducer(5, 0)
    marker = TransactionMarker(5, 1, 0, True, 2)
    writing.writer.write(StoreRecords(1, 0, [(b"a", b"")]))
    writing.writer.write(StoreRecords(2, 0, [(b"b", b"")]))
    writing.writer.write(StoreRecords(3, 0, [(b"c", b"")], producer))
    writing.writer.write(StoreMarker(4, 0, marker))
    writing.writer.write(StoreRecords(5, 0, [(b"d", b"")]))
    await writing.finish()
    assert writing.answers == [(writes, NONE) for writes in ([0], [1, 2], [3], [4], [5])]
    keys = [[record.key for record in records] for _, records in writing.topic.appended]
    assert keys == [[b"first"], [b"a", b"b"], [b"c"], [b"d"]]
    assert writing.topic.markers == [(3, marker)]
    assert writing.topic.producers == [None, None, producer, None]
