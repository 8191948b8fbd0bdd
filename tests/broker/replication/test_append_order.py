"""Batches of a partition keep their order: on whatever path, none overtakes one that waits.

The broker runs in process, so that tests can hold the admission thread while the next batches arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.coordinator.internal_topic import BrokerInternalTopic
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.log import Log
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.in_process import HeldAdmission, configure, connected, create, delete, running
from millstream_harness.wire import produce_request
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.client.connection import Connection
from millstream_kafka.compression import Compression
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = int(time.time() * 1000)
HOUR_MS = 3_600_000
TOO_LATE = NOW + 24 * HOUR_MS
"""Further ahead than a broker accepts (one hour), however long the tests before this one take."""
Response = produce.PartitionProduceResponse


def batch(
    sequence: int, count: int = 1, *, codec: Compression = Compression.NONE, timestamp: int = NOW
) -> bytes:
    """Records of the idempotent producer 9; each value is the record's sequence."""
    records = [Record(b"k", b"%d" % (sequence + index), timestamp) for index in range(count)]
    return build_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence, compression=codec)


async def send(client: Connection, topic: str, records: bytes, acks: int = -1) -> Response:
    response = await client.call(produce.API, 9, produce_request(topic, records, acks=acks))
    return response.responses[0].partition_responses[0]


def begin(client: Connection, topic: str, records: bytes, acks: int = -1) -> asyncio.Task[Response]:
    return asyncio.create_task(send(client, topic, records, acks))


@contextlib.asynccontextmanager
async def arriving(broker: Broker, *batches: bytes) -> AsyncIterator[None]:
    """Wait, after the block, until the broker has received these batches, and so has handled them."""
    before = broker.stats.bytes_in
    yield
    while broker.stats.bytes_in - before <= sum(len(each) for each in batches):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def stored(partition: Partition) -> list[bytes | None]:
    """The values in the log, in order."""
    found: list[bytes | None] = []
    for data in partition.log.batches_from(0):
        for position, header in iter_batches(memoryview(data)):
            found += [one.value for one in read_records(data[position : position + header.size])]
    return found


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


FIRST = {
    "compressed anew": ({"compression_type": "gzip"}, batch(0, 100, codec=Compression.LZ4)),
    "large, of a compacted topic": ({"cleanup_policy": "compact"}, batch(0, 1000)),
    "bounded in the past": ({"message_timestamp_before_max_ms": "1000000000"}, batch(0, 1000)),
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("second", ["first of its kind", "like one before it"])
async def test_a_batch_waits_behind_one_that_is_read_although_the_topic_is_not_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, acks: int, second: str
) -> None:
    config, waits = FIRST[first]
    count = 100 if "gzip" in config.values() else 1000
    async with running(tmp_path) as broker, connected(broker) as one, connected(broker) as other:
        await create(one, "t")
        await create(one, "warm")
        sequence = 0
        if second == "like one before it":  # the connection's shortcut recognises the request
            assert (await send(other, "t", build_batch([Record(b"k", b"warm", NOW)]), acks)).error_code == 0
            sequence = 1
        await configure(one, "t", **config)
        held = HeldAdmission(monkeypatch)
        before = begin(one, "t", waits, acks)
        await held.entered()
        async with connected(broker) as admin:
            await configure(admin, "t")
        partition = broker.replicas.partition("t", 0)
        async with arriving(broker, batch(count), batch(count + 1)):
            after = begin(other, "t", batch(count), acks)
            last = begin(other, "t", batch(count + 1), acks)
        assert partition.log.log_end_offset == sequence, "one overtook the batch that is being read"
        held.release()
        answers = [await before, await after, await last]
        offsets = [sequence, sequence + count, sequence + count + 1]
        assert [(one.error_code, one.base_offset) for one in answers] == [(0, at) for at in offsets]
        assert stored(partition)[sequence:] == values(count + 2)
        # With an empty queue, nothing is copied.
        assert isinstance(partition.append(memoryview(bytearray(batch(count + 2))), NOW), AppendInfo)
        assert broker.request_memory.held == 0


async def test_a_batch_waits_behind_one_whose_records_are_read_to_refuse_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header shows that a timestamp is late; the thread finds out which. The next batch continues the sequence."""
    async with running(tmp_path) as broker, connected(broker) as one, connected(broker) as other:
        await create(one, "t")
        held = HeldAdmission(monkeypatch)
        late = begin(one, "t", batch(0, 3, timestamp=TOO_LATE))
        await held.entered()
        # A new setting allows the timestamp before the batch's turn, so it is stored before the next batch.
        async with connected(broker) as admin:
            await configure(admin, "t", message_timestamp_after_max_ms=str(48 * HOUR_MS))
        async with arriving(broker, batch(3)):
            next_one = begin(other, "t", batch(3))
        held.release()
        answers = [await late, await next_one]
        assert [(one.error_code, one.base_offset) for one in answers] == [(0, 0), (0, 3)]
        assert stored(broker.replicas.partition("t", 0)) == values(4)


async def test_a_refusal_by_the_header_names_the_records(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        for _ in range(2):  # the second takes the shortcut
            assert (await send(client, "t", build_batch([Record(b"k", b"v", NOW)]))).error_code == 0
        records = [Record(b"k", b"0", NOW), Record(b"k", b"1", TOO_LATE)]
        answer = await send(client, "t", build_batch(records))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in answer.record_errors] == [1]


async def test_the_coordinators_own_appends_wait_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(tmp_path, {"offsets.topic.num.partitions": "1"}) as broker,
        connected(broker),
    ):
        await broker.groups.ensure_topic()
        partition = broker.replicas.partition(OFFSETS_TOPIC, 0)
        held = HeldAdmission(monkeypatch)
        first = partition.append(memoryview(bytearray(batch(0, 1000))), NOW)
        assert isinstance(first, DelayedProduce)
        own = asyncio.create_task(
            BrokerInternalTopic(
                OFFSETS_TOPIC, broker.replicas, broker.topic_administrator, timeout_ms=5000
            ).append(0, batch(1000))
        )
        await held.entered()
        for _ in range(5):
            await asyncio.sleep(0)
        assert partition.log.log_end_offset == 0
        held.release()
        await own
        await first
        assert first.info == AppendInfo(0, 999, -1, 0)
        assert stored(partition) == values(1001)
        # With an empty queue, the thread does not read them, whatever their size.
        records = memoryview(bytearray(batch(1001, 1000)))
        assert isinstance(partition.append(records, NOW, origin=AppendOrigin.COORDINATOR), AppendInfo)


async def test_what_waits_for_a_deleted_topic_is_not_in_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, connected(broker) as one, connected(broker) as admin:
        await create(one, "t", compression_type="gzip")
        held = HeldAdmission(monkeypatch)
        in_thread = begin(one, "t", batch(0, 100, codec=Compression.LZ4))
        await held.entered()
        async with connected(broker) as other:
            async with arriving(broker, batch(100)):
                queued = begin(other, "t", batch(100))
            await delete(admin, "t")
            await create(admin, "t", compression_type="gzip")
            successor = broker.replicas.partition("t", 0)
            held.release()
            for answer in (await in_thread, await queued):
                assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert successor.log.log_end_offset == 0
        assert (await send(admin, "t", batch(0, 100, codec=Compression.LZ4))).base_offset == 0


async def queue_one(client: Connection, held: HeldAdmission, records: bytes) -> asyncio.Task[Response]:
    waiting = begin(client, "t", records)
    await held.entered()
    return waiting


async def test_what_waits_when_the_leader_steps_down_is_in_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", compression_type="gzip")
        held = HeldAdmission(monkeypatch)
        waiting = await queue_one(client, held, batch(0, 100, codec=Compression.LZ4))
        partition = broker.replicas.partition("t", 0)
        partition.step_down()
        held.release()
        assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.log_end_offset == 0
        with pytest.raises(ApiError, match="NOT_LEADER_OR_FOLLOWER"):
            partition.append(memoryview(bytearray(batch(0))), NOW)


async def test_a_repetition_that_waits_when_the_leader_steps_down_is_not_said_to_be_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After NOT_LEADER_OR_FOLLOWER, librdkafka would put the records into other batches, and write them twice."""
    sent = batch(0, 100, codec=Compression.LZ4)
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", compression_type="gzip")
        assert (await send(client, "t", sent)).error_code == 0
        held = HeldAdmission(monkeypatch)
        waiting = await queue_one(client, held, sent)
        broker.replicas.partition("t", 0).step_down()
        held.release()
        assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_an_append_from_the_queue_is_waited_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader steps down in the turn in which it appended the batch; the producer still gets its response."""
    append = Log.append_validated
    partitions: list[Partition] = []

    def appended_and_over(log: Log, *args: object, **more: object) -> object:
        info = append(log, *args, **more)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(partitions[0].release, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return info

    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", compression_type="gzip", flush_messages="1")
        partitions.append(broker.replicas.partition("t", 0))
        monkeypatch.setattr(Log, "append_validated", appended_and_over)
        monkeypatch.setattr(Log, "flush", lambda log: time.sleep(0.2) or 0)
        answer = await asyncio.wait_for(send(client, "t", batch(0, 100, codec=Compression.LZ4), 1), 60)
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_an_isr_that_shrinks_while_a_batch_waits_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", compression_type="gzip")
        held = HeldAdmission(monkeypatch)
        waiting = await queue_one(client, held, batch(0, 100, codec=Compression.LZ4))
        partition = broker.replicas.partition("t", 0)
        partition.min_insync_replicas = 2
        held.release()
        assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.log_end_offset == 0


async def test_a_configuration_that_changes_in_mid_admission_does_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is stored by one configuration, the one at its turn."""
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", message_timestamp_type="LogAppendTime", compression_type="gzip")
        validate = Log.validate
        changed: list[Callable[[], Awaitable[None]]] = []

        async def change() -> None:
            async with connected(broker) as admin:
                await configure(admin, "t")

        loop = asyncio.get_running_loop()

        def changing(log: Log, batches: bytearray, *, now_ms: int, origin: AppendOrigin) -> object:
            validated = validate(log, batches, now_ms=now_ms, origin=origin)
            if not changed:
                changed.append(change)
                asyncio.run_coroutine_threadsafe(change(), loop).result(60)
            return validated

        monkeypatch.setattr(Log, "validate", changing)
        first = await send(client, "t", batch(0, 100, codec=Compression.LZ4))
        assert first.error_code == 0
        assert first.log_append_time_ms >= NOW
        partition = broker.replicas.partition("t", 0)
        (data,) = partition.log.batches_from(0)
        ((_, header),) = iter_batches(memoryview(data))
        assert (header.compression, header.is_log_append_time) == (Compression.GZIP, True)
        assert header.max_timestamp == first.log_append_time_ms
        assert (await send(client, "t", batch(100))).log_append_time_ms == -1
