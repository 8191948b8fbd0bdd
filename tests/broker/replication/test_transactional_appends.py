"""Produce requests with a transactional id: what the coordinator is asked, in which order records are appended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.transactional_appends import (
    RequestingProducer,
    TransactionalAppends,
    refusal,
    transactional_header,
)
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_harness.clients import request_context
from millstream_harness.group_drivers import until
from millstream_harness.in_process import connected, create, running
from millstream_harness.transactions import finish
from millstream_harness.wire import record
from millstream_kafka.batch import HEADER_SIZE, build_batch, iter_batches
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream_kafka.topic_partition import TopicPartition

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Coordinator:
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.strangers: dict[str, ErrorCode] = {}
        """What it answers at once, by transactional id."""
        self.error_of_second = ErrorCode.NONE
        """What it answers to the second question."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        if len(self.asked) == 2 and self.error_of_second:
            return dict.fromkeys(partitions, self.error_of_second)
        if transactional_id in self.strangers:
            return dict.fromkeys(partitions, self.strangers[transactional_id])
        await self.may_answer.wait()
        return {key: self.errors.get(key, ErrorCode.NONE) for key in partitions}


class Served:
    def __init__(self, broker: Broker, coordinator: Coordinator) -> None:
        self.broker = broker
        self.coordinator = coordinator

    def partition(self, index: int = 0) -> Partition:
        return self.broker.replicas.partition("t", index)

    def begin(
        self,
        *batches: memoryview,
        version: int = 12,
        transactional_id: str | None = "tx",
        indexes: Collection[int] = (0,),
        acks: int = -1,
    ) -> asyncio.Future[ProduceResponse]:
        """Start to handle a request, which others may follow."""
        data = [PartitionProduceData(index, batch) for index, batch in zip(indexes, batches, strict=True)]
        request = ProduceRequest(transactional_id, acks, 10_000, [TopicProduceData("t", partition_data=data)])
        answer = self.broker.handlers[produce.API.key].handle(request_context(version), request)
        for batch in batches:  # the frame's buffer is used again
            batch[:] = bytes(len(batch))
        if not isinstance(answer, asyncio.Future):
            done: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()
            done.set_result(answer)  # type: ignore[arg-type]
            return done
        return answer

    async def send(self, *batches: memoryview, **options: object) -> list[tuple[int, int]]:
        """Error code and base offset of each partition."""
        response = await asyncio.wait_for(self.begin(*batches, **options), 60)  # type: ignore[arg-type]
        (topic,) = response.responses
        return [(each.error_code, each.base_offset) for each in topic.partition_responses]


def batch(
    sequence: int = 0, count: int = 1, *, producer: int = 7, epoch: int = 0, transactional: bool = True
) -> memoryview:
    data = build_batch(
        [record("v")] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return memoryview(bytearray(data))


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    async with running(folder) as broker, connected(broker) as client:
        await create(client, "t", 2)
        coordinator = Coordinator()
        broker.transactional_appends.verifier = coordinator
        yield Served(broker, coordinator)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_coordinator_is_asked_once_for_each_transaction(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert await it.send(batch(0, 2)) == [(0, 0)]
        assert await it.send(batch(2)) == [(0, 2)]
        assert it.coordinator.asked == [("tx", 7, 0, [("t", 0)], True)]
        await finish(it.partition(), 7, committed=True)
        assert await it.send(batch(3), version=11) == [(0, 4)]
        assert it.coordinator.asked[1:] == [("tx", 7, 0, [("t", 0)], False)]


async def test_coordinator_is_asked_for_partitions_without_an_open_transaction(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.send(batch())
        assert await it.send(batch(1), batch(0), indexes=(0, 1)) == [(0, 1), (0, 0)]
        assert it.coordinator.asked[1:] == [("tx", 7, 0, [("t", 1)], True)]


async def test_refused_partition_leaves_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.coordinator.errors["t", 1] = ErrorCode.INVALID_PRODUCER_EPOCH
        found = await it.send(batch(), batch(), indexes=(0, 1))
        assert found == [(0, 0), (ErrorCode.INVALID_PRODUCER_EPOCH, -1)]
        assert it.partition(1).log.log_end_offset == 0


async def test_unknown_partition_is_not_asked_for(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        found = await it.send(batch(), batch(), indexes=(0, 9))
        assert found == [(0, 0), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert [asked[3] for asked in it.coordinator.asked] == [[("t", 0)]]


async def test_answer_waits_as_long_as_the_append() -> None:
    appends = TransactionalAppends(RequestMemory(1 << 20), Coordinator())
    appended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = appends.in_turn(RequestingProducer("tx", 7, 0, 12), dict, lambda refused: appended, 1)
    await settle()
    assert not waiting.done()
    appended.set_result("answer")
    assert await waiting == "answer"


@pytest.mark.parametrize("length", [None, 0, HEADER_SIZE - 1, HEADER_SIZE])
def test_header_of_less_than_a_header(length: int | None) -> None:
    header = transactional_header(None if length is None else batch()[:length])
    assert (header is not None) == (length == HEADER_SIZE)


async def test_marker_has_the_time_of_its_append(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.send(batch())
        before = time.time() * 1000
        await finish(it.partition(), 7, committed=True)
        (file,) = Path(str(it.partition().log.directory)).glob("*.log")
        *_, (_, marker) = iter_batches(file.read_bytes())
        assert marker.is_control
        assert before - 1 <= marker.max_timestamp <= time.time() * 1000


async def test_plain_records_need_no_coordinator(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert await it.send(batch(transactional=False)) == [(0, 0)]
        assert it.coordinator.asked == []


async def test_transactional_records_without_an_id_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert await it.send(batch(), transactional_id=None) == [(REFUSED, -1)]
        assert it.coordinator.asked == []


async def test_records_of_two_producers_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        for other in (batch(producer=8), batch(epoch=1)):
            found = await it.send(batch(), other, indexes=(0, 1))
            assert found == [(code, -1), (code, -1)]
        assert it.coordinator.asked == []


async def test_requests_of_a_producer_keep_their_order(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.coordinator.may_answer.clear()
        first = it.begin(batch(0))
        second = it.begin(batch(1))
        third = it.begin(batch(2))
        other = it.begin(batch(0, producer=8))
        await settle()
        assert [asked[1] for asked in it.coordinator.asked] == [7, 8]
        assert it.broker.request_memory.held > 0
        it.coordinator.may_answer.set()
        answers = await asyncio.gather(first, second, third, other)
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
        assert (offsets[0] < offsets[1] < offsets[2], sorted(offsets)) == (True, [0, 1, 2, 3])
        assert len(it.coordinator.asked) == 2
        assert it.broker.request_memory.held == 0
        assert not it.broker.transactional_appends.is_waiting("tx", 7)


async def test_coordinator_is_not_asked_about_an_epoch_that_has_ended(tmp_path: Path) -> None:
    """Whoever names it: the log has a later one, so no answer would let the records in."""
    async with served(tmp_path) as it:
        await finish(it.partition(0), 7, committed=False, epoch=1)
        found = await it.send(batch(), batch(), indexes=(0, 1))
        assert found == [(ErrorCode.INVALID_PRODUCER_EPOCH, -1), (0, 0)]
        assert [asked[3] for asked in it.coordinator.asked] == [[("t", 1)]]
        assert await it.send(batch(1)) == [(ErrorCode.INVALID_PRODUCER_EPOCH, -1)]
        assert len(it.coordinator.asked) == 1
        assert await it.send(batch(epoch=1)) == [(0, 1)]


async def test_nobody_else_holds_up_a_producer_or_removes_its_guard(tmp_path: Path) -> None:
    """Whoever may read and write the topic may name it, with his own transactional id."""
    async with served(tmp_path) as it:
        it.coordinator.may_answer.clear()
        own = it.begin(batch(epoch=1))
        for epoch in (0, 1, 2):
            it.coordinator.strangers[f"mine-{epoch}"] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        others = [it.begin(batch(epoch=epoch), transactional_id=f"mine-{epoch}") for epoch in (0, 1, 2)]
        for other in others:
            (answer,) = (await other).responses[0].partition_responses
            assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        it.coordinator.may_answer.set()
        (answer,) = (await own).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert [asked[0] for asked in it.coordinator.asked].count("tx") == 1, "its answer counted"


@pytest.mark.parametrize("is_open", [True, False], ids=["next transaction", "ended"])
async def test_marker_during_the_question_repeats_it(tmp_path: Path, is_open: bool) -> None:
    """The marker may end the last transaction, or this one: only the coordinator knows."""
    async with served(tmp_path) as it:
        it.coordinator.may_answer.clear()
        waiting = it.begin(batch())
        await settle()
        await finish(it.partition(), 7, committed=False)
        it.coordinator.may_answer.set()
        if not is_open:
            it.coordinator.error_of_second = ErrorCode.INVALID_TXN_STATE
        response = await waiting
        assert len(it.coordinator.asked) == 2
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == (ErrorCode.NONE if is_open else ErrorCode.INVALID_TXN_STATE)
        assert it.partition().log.log_end_offset == (2 if is_open else 1)


async def test_question_is_repeated_while_the_last_transaction_is_completed(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.coordinator.errors["t", 0] = ErrorCode.CONCURRENT_TRANSACTIONS
        waiting = it.begin(batch())
        await until(lambda: len(it.coordinator.asked) >= 3)
        del it.coordinator.errors["t", 0]
        response = await waiting
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_first_request_that_fails_does_not_let_the_next_begin(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.coordinator.errors["t", 0] = ErrorCode.NOT_COORDINATOR
        assert await it.send(batch(0)) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        it.coordinator.errors.clear()
        assert await it.send(batch(1)) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
        assert await it.send(batch(0)) == [(0, 0)]
        assert await it.send(batch(1)) == [(0, 1)]


async def test_failing_coordinator_fails_its_request_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.coordinator.may_answer.clear()
        waiting = it.begin(batch())
        await settle()
        waiting.cancel()
        it.coordinator.may_answer.set()
        assert await it.send(batch()) == [(0, 0)]
        assert it.broker.request_memory.held == 0


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.NONE, 12, None),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NETWORK_EXCEPTION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_error_of_the_coordinator(code: ErrorCode, version: int, expected: ErrorCode | None) -> None:
    error = refusal(code, version)
    assert (None if error is None else error.code) is expected
