"""Any interleaving of batches, settings, queued appends, elections: acknowledged records are stored once, in order.

Producers are idempotent and behave as clients do: up to five batches in flight; after an error they resend, in order
and as the same batches, everything from the first failed batch on. The plan alone moves the admission thread.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.coordination import PartitionRecord, TopicRecord
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.validator import Validated
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.purgatory import DelayedProduce, Purgatory
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError, ErrorCode

pytestmark = pytest.mark.once

NOW_MS = int(time.time() * 1000)
IN_FLIGHT = 5
CONFIGS = [
    LogConfig(),
    LogConfig(compression_type="gzip"),
    LogConfig(cleanup_policy="compact"),
    LogConfig(message_timestamp_type="LogAppendTime", compression_type="lz4"),
    LogConfig(message_timestamp_before_max_ms=10**12),
]
SHAPES = [(1, Compression.NONE), (5, Compression.LZ4), (200, Compression.NONE), (3, Compression.ZSTD)]


@dataclass
class Sent:
    """A batch, which may be sent more than once."""

    first: int
    count: int
    batch: bytes
    offset: int | None = None
    """Acknowledged offset."""


@dataclass
class Client:
    """An idempotent producer."""

    number: int
    sequence: int = 0
    batches: list[Sent] = field(default_factory=list)
    in_flight: list[tuple[Sent, DelayedProduce]] = field(default_factory=list)
    again: list[Sent] = field(default_factory=list)
    """Refused batches, to resend once nothing is in flight behind them."""
    is_behind_an_error: bool = False
    """The batches in flight were sent before the client knew of an error."""
    is_missing_one: bool = False
    """The batches in flight follow one that, by its error, the log does not have."""

    def next_batch(self, shape: tuple[int, Compression]) -> Sent | None:
        if self.again:
            return None if self.is_behind_an_error else self.again.pop(0)
        if len(self.in_flight) >= IN_FLIGHT:
            return None
        count, codec = shape
        records = [
            Record(b"k", b"%d-%d" % (self.number, self.sequence + index), NOW_MS) for index in range(count)
        ]
        batch = build_batch(
            records,
            producer_id=self.number,
            producer_epoch=0,
            base_sequence=self.sequence,
            compression=codec,
        )
        sent = Sent(self.sequence, count, batch)
        self.sequence += count
        self.batches.append(sent)
        return sent


class World:
    """One log and its leader; the plan moves the admission thread."""

    def __init__(self, folder: Path) -> None:
        self.topic = TopicRecord("t", uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,)),), {})
        self.log = Log.open(folder / "t-0", LogConfig(), clean=True)
        self.memory = RequestMemory(1 << 30)
        self.append_queue = AppendQueue(self.memory)
        self.partition = self.lead(None)
        self.clients = [Client(number) for number in (1, 2)]

    def lead(self, waiting: Purgatory | None) -> Partition:
        config = TopicConfig(BrokerConfig(), {})
        return Partition(self.topic, 0, self.log, config, self.append_queue, waiting=waiting)

    def send(self, client: Client, shape: tuple[int, Compression]) -> None:
        if (sent := client.next_batch(shape)) is None:
            return
        self.put(client, sent)

    def send_run(self, client: Client, shape: tuple[int, Compression]) -> None:
        """Send as many batches as may be in flight, as requests that arrive together."""
        run: list[Sent] = []
        while len(client.in_flight) + len(run) < IN_FLIGHT and (sent := client.next_batch(shape)) is not None:
            run.append(sent)
        views = [memoryview(bytearray(sent.batch)) for sent in run]
        counts = [sent.count for sent in run]
        appended = None
        if len(run) > 1:
            appended = self.partition.append_run(views, counts, NOW_MS, acks=-1, timeout_ms=None)
        if appended is None:
            for sent in run:
                self.put(client, sent)
            return
        for sent, result in zip(run, appended, strict=True):
            if isinstance(result, AppendInfo):
                answer = DelayedProduce(-1, None, result)
                answer.end()
            else:
                answer = result
            client.in_flight.append((sent, answer))

    def repeat(self, client: Client) -> None:
        """The client resends its last batch, as if the response had been lost."""
        if not client.in_flight and not client.again:
            self.put(client, client.batches[-1])

    def put(self, client: Client, sent: Sent) -> None:
        partition, view = self.partition, memoryview(bytearray(sent.batch))
        answer = DelayedProduce(-1, None)
        try:
            appended = partition.append(view, NOW_MS)
        except ApiError as error:
            answer.end(error)
        else:
            if isinstance(appended, AppendInfo):
                answer.info = appended
                answer.end()
            else:
                answer = appended
        client.in_flight.append((sent, answer))

    def receive(self) -> None:
        """Clients receive the available responses, in order."""
        for client in self.clients:
            while client.in_flight and client.in_flight[0][1].is_done:
                sent, answer = client.in_flight.pop(0)
                if (error := answer.error) is None:
                    info = answer.info
                    assert info is not None
                    assert info.last_offset - info.first_offset + 1 == sent.count
                    assert sent.offset in (None, info.first_offset), "the same batch in two places"
                    sent.offset = info.first_offset
                    assert not client.is_missing_one, "it overtook one that was refused"
                    continue
                assert error.code in (
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                )
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    assert sent.offset is None, "it was acknowledged, and now is said to be nowhere"
                if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    assert client.is_behind_an_error, "nothing before it was refused"
                if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                    client.is_missing_one = True
                client.is_behind_an_error = True
                client.again.append(sent)
                client.again.sort(key=lambda one: one.first)
            if not client.in_flight:
                client.is_behind_an_error = client.is_missing_one = False

    def elect(self) -> None:
        """This broker stops leading, and leads again."""
        waiting = self.partition.step_down()
        self.partition.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.partition = self.lead(waiting)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from(SHAPES)),
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from(SHAPES)),
    st.tuples(st.just("run"), st.integers(0, 1), st.sampled_from(SHAPES)),
    st.tuples(st.just("repeat"), st.integers(0, 1)),
    st.tuples(st.just("configure"), st.sampled_from(CONFIGS)),
    st.tuples(st.just("validate"), st.integers(1, 3)),
    st.tuples(st.just("elect")),
    st.tuples(st.just("receive")),
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=60))
def test_what_is_acknowledged_is_stored_once_in_order(steps: list[tuple[Any, ...]]) -> None:
    allowed = threading.Semaphore(0)
    validate = Log.validate

    def when_allowed(log: Log, batches: bytearray, *, now_ms: int, origin: AppendOrigin) -> Validated:
        assert allowed.acquire(timeout=60)
        return validate(log, batches, now_ms=now_ms, origin=origin)

    async def play(folder: Path) -> None:
        world = World(folder)
        for client in world.clients:  # the log knows the clients, so it accepts only the next sequence
            world.send(client, SHAPES[0])
        world.receive()
        for name, *values in steps:
            if name == "send":
                world.send(world.clients[values[0]], values[1])
            elif name == "run":
                world.send_run(world.clients[values[0]], values[1])
            elif name == "repeat":
                world.repeat(world.clients[values[0]])
            elif name == "configure":
                world.log.config = values[0]
                world.partition.configure(TopicConfig(BrokerConfig(), {}))
            elif name == "validate":
                for _ in range(values[0]):
                    allowed.release()
                for _ in range(50):
                    await asyncio.sleep(0)
            elif name == "elect":
                world.elect()
            else:
                await asyncio.sleep(0)
                world.receive()
        for _ in range(1000):
            allowed.release()
        while any(client.in_flight or client.again for client in world.clients):
            for client in world.clients:
                while client.again and not client.is_behind_an_error:
                    world.send(client, SHAPES[0])
            waiting = [one for client in world.clients for _, one in client.in_flight]
            await asyncio.gather(*(asyncio.ensure_future(one) for one in waiting), return_exceptions=True)
            world.receive()
        check(world)
        await world.append_queue.close()
        world.log.close()

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "validate", when_allowed)
        asyncio.run(play(Path(folder)))


def check(world: World) -> None:
    stored: list[bytes | None] = []
    for data in world.log.batches_from(0):
        for position, header in iter_batches(memoryview(data)):
            assert header.base_offset == len(stored)
            stored += [one.value for one in read_records(data[position : position + header.size])]
    expected: dict[int, bytes] = {}
    for client in world.clients:
        for sent in client.batches:
            assert sent.offset is not None
            for index in range(sent.count):
                expected[sent.offset + index] = b"%d-%d" % (client.number, sent.first + index)
    assert stored == [expected[offset] for offset in range(len(stored))]
    assert len(stored) == len(expected) == sum(client.sequence for client in world.clients)
    for client in world.clients:
        offsets = [sent.offset for sent in client.batches]
        assert offsets == sorted(offsets, key=lambda one: -1 if one is None else one)
    assert world.memory.held == 0
    assert world.partition._appends_at_once or world.log.config.reads_records
