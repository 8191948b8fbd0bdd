"""`queued.max.request.bytes` holds whatever clients announce, hold back or wait for; all others keep working."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import struct
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.coordination import PartitionRecord, TopicRecord
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.in_process import connected, create, running
from millstream_harness.process import forget_peak, peak_mb
from millstream_harness.scenario import eventually
from millstream_harness.wire import TIMEOUT_S, Wire, produce_request, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.errors import ApiError

pytestmark = pytest.mark.soak

StartBrokerProcess = Callable[..., BrokerProcess]
MIB = 1 << 20
ANNOUNCED = struct.pack(">ihhi", 100_000_000, produce.API.key, 9, 1)
"""The beginning of a Produce request of 100 MB."""


@contextlib.contextmanager
def uploads(broker: BrokerProcess, count: int, sent: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent the first `sent` bytes of Produce requests of 100 MB."""
    host, port = broker.bootstrap.split(":")
    with contextlib.ExitStack() as opened:
        sockets = []
        for _ in range(count):
            one = opened.enter_context(socket.create_connection((host, int(port)), timeout=60))
            one.settimeout(0.5)
            with contextlib.suppress(TimeoutError, ConnectionError):
                one.sendall(ANNOUNCED + bytes(sent - len(ANNOUNCED)))
            sockets.append(one)
        yield sockets


def send_cut_off(wire: Wire, topic: str, value: bytes) -> None:
    """Send a request in two pieces: the broker reads the first before the second is sent."""
    frame = wire.frame(produce.API, 9, produce_request(topic, build_batch([record(value)])))
    wire.socket.sendall(frame[:100])
    time.sleep(0.01)  # if this is too short, the test is easier and still valid
    wire.socket.sendall(frame[100:])


def produce_cut_off(broker: BrokerProcess, topic: str, count: int, size: int = 1_000_000) -> None:
    with Wire(broker.bootstrap) as wire:
        for _ in range(count):
            send_cut_off(wire, topic, b"y" * size)
            assert wire.receive().responses[0].partition_responses[0].error_code == 0


def warm_up(broker: BrokerProcess, topic: str) -> float:
    """Load everything that first requests load; return the peak resident memory, in MB."""
    with Wire(broker.bootstrap) as wire:
        wire.create(topic)
    produce_cut_off(broker, topic, 3)
    forget_peak(broker.pid)
    return peak_mb(broker.pid)


def test_announced_sizes_keep_nobody_from_sending(start_broker_process: StartBrokerProcess) -> None:
    """Three clients announce 100 MB each and send almost nothing; the limit is 64 MiB."""
    broker = start_broker_process({"queued.max.request.bytes": str(64 * MIB)})
    before = warm_up(broker, "t")
    with uploads(broker, 3, sent=20):
        produce_cut_off(broker, "t", 3)
        assert peak_mb(broker.pid) - before < 10
    assert "cut off" not in broker.said()


def test_many_that_announce_much_and_send_little(start_broker_process: StartBrokerProcess) -> None:
    broker = start_broker_process({"queued.max.request.bytes": str(16 * MIB)})
    before = warm_up(broker, "t")
    with uploads(broker, 500, sent=20):
        produce_cut_off(broker, "t", 5)
        assert peak_mb(broker.pid) - before < 16
    assert "cut off" not in broker.said()


def test_those_that_hold_the_memory_and_are_silent(tmp_path: Path) -> None:
    """Eight clients send 8 MiB each; the limit is 16 MiB. The broker reads no more of them; others keep working."""
    with BrokerProcess(tmp_path, {"queued.max.request.bytes": str(16 * MIB)}) as broker:
        before = warm_up(broker, "t")
        with uploads(broker, 8, sent=8 * MIB):
            produce_cut_off(broker, "t", 5)
            grown = peak_mb(broker.pid) - before
        print(f"8 × 8 MiB of 100 MB, 16 MiB allowed: {grown:+.1f} MB")
        assert grown < 16 + 8 + 8 * 0.27 + 4


def test_many_that_hold_a_part_each_and_go_on_byte_by_byte(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"queued.max.request.bytes": str(MIB)}) as broker:
        before = warm_up(broker, "t")
        with uploads(broker, 40, sent=300_000) as many:
            for one in many:
                one.setblocking(False)

            def trickle() -> None:
                for one in many:
                    with contextlib.suppress(OSError):
                        one.send(b"\0")

            with Wire(broker.bootstrap) as wire:
                for _ in range(3):
                    send_cut_off(wire, "t", b"y" * 900_000)
                    wire.socket.settimeout(0.05)
                    deadline = time.monotonic() + 60
                    while True:
                        trickle()
                        with contextlib.suppress(TimeoutError):
                            wire.socket.recv(1, socket.MSG_PEEK)
                            break
                        assert time.monotonic() < deadline
                    wire.socket.settimeout(TIMEOUT_S)
                    assert wire.receive().responses[0].partition_responses[0].error_code == 0
            grown = peak_mb(broker.pid) - before
        print(f"40 × 300 KB of 100 MB, byte by byte, 1 MiB allowed: {grown:+.1f} MB")
        assert grown < 1 + 40 * 0.31 + 4
        assert "Traceback" not in broker.said()


def test_honest_requests_that_fill_the_memory_together_all_get_on(
    start_broker_process: StartBrokerProcess,
) -> None:
    """Thirty half-sent requests of 1 MB, of which four would fit: no connection is closed."""
    broker = start_broker_process({"queued.max.request.bytes": str(4 * MIB)})
    before = warm_up(broker, "t")
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(broker.bootstrap)) for _ in range(30)]
        rest = []
        for wire in wires:
            frame = wire.frame(produce.API, 9, produce_request("t", build_batch([record(b"x" * 1_000_000)])))
            wire.socket.setblocking(False)
            sent = wire.socket.send(frame[:500_000])
            wire.socket.setblocking(True)
            wire.socket.settimeout(60)
            rest.append(frame[sent:])
        for number in random.Random(1).sample(range(30), 30):
            wires[number].socket.setblocking(False)
        unsent = {wire: memoryview(data) for wire, data in zip(wires, rest, strict=True)}
        deadline = time.monotonic() + 60
        while any(unsent.values()):
            assert time.monotonic() < deadline
            for wire, data in unsent.items():
                with contextlib.suppress(BlockingIOError):
                    unsent[wire] = data[wire.socket.send(data) :] if data else data
        for wire in wires:
            wire.socket.setblocking(True)
            wire.socket.settimeout(60)
            assert wire.receive().responses[0].partition_responses[0].error_code == 0
    grown = peak_mb(broker.pid) - before
    print(f"30 requests of 1 MB, 4 MiB allowed: {grown:+.1f} MB")
    assert grown < 4 + 30 * 0.27 + 4
    assert "closed the connection" not in broker.said()


def test_requests_that_wait_for_followers_do_not_keep_their_frames(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """170 MB of records wait for a stopped follower; the limit for requests is 16 MiB."""
    config = {
        "queued.max.request.bytes": str(16 * MIB),
        "zookeeper.session.timeout.ms": "120000",
        "replica.lag.time.max.ms": "120000",
        "min.insync.replicas": "1",
        "auto.create.topics.enable": "true",
        "num.partitions": "2",
    }
    with ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper) as cluster:
        with Wire(cluster.bootstrap) as wire:
            wire.create("t")
        cluster.await_in_sync("t", 2)
        leader = cluster.leader("t")
        (follower,) = (one for one in cluster.brokers.values() if one is not leader)
        for _ in range(3):
            with Wire(leader.bootstrap) as wire:
                assert wire.produce("t", [record(b"x" * 900_000)], acks=-1).error_code == 0
        forget_peak(leader.pid)
        before = peak_mb(leader.pid)
        os.kill(follower.pid, signal.SIGSTOP)
        try:
            with contextlib.ExitStack() as opened:
                wires = [opened.enter_context(Wire(leader.bootstrap)) for _ in range(17)]
                batch, small = build_batch([record(b"x" * 1_000_000)]), build_batch([record("x")])
                data = [produce.PartitionProduceData(0, batch), produce.PartitionProduceData(1, small)]
                request = produce.ProduceRequest(
                    None, -1, 100_000, [produce.TopicProduceData("t", partition_data=data)]
                )
                for wire in wires:
                    for number in range(10):  # half of the requests repeat earlier ones
                        alike = produce_request("t", batch, acks=-1, timeout_ms=100_000)
                        wire.send(produce.API, 9, alike if number % 2 else request)
                with Wire(leader.bootstrap) as wire:
                    eventually(
                        lambda: wire.produce("t", [record("last")]).base_offset,
                        lambda offset: offset >= 3 + 170,
                        "all was appended",
                        100,
                    )
                grown = peak_mb(leader.pid) - before
                print(f"170 MB that wait for a follower, 16 MiB allowed: {grown:+.1f} MB")
                assert grown < 16 + 17 * 0.27 + 8
                os.kill(follower.pid, signal.SIGCONT)
                for wire in wires:
                    for _ in range(10):
                        assert wire.receive().responses[0].partition_responses[0].error_code == 0
        finally:
            os.kill(follower.pid, signal.SIGCONT)


async def test_a_refused_batch_is_not_kept_by_its_refusal(tmp_path: Path) -> None:
    """The request may wait much longer for its other partitions, and nothing takes the error meanwhile."""
    memory = RequestMemory(MIB)
    queue = AppendQueue(memory)
    config = {"compression.type": "gzip"}
    topic = TopicRecord("t", uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,)),), config)
    log = Log.open(tmp_path / "t-0", LogConfig(compression_type="gzip"), clean=True)
    partition = Partition(topic, 0, log, TopicConfig(BrokerConfig(), config), queue)
    tracemalloc.start()
    try:
        refused = partition.append(memoryview(bytearray(8 * MIB)), 0)
        assert isinstance(refused, DelayedProduce)
        with pytest.raises(ApiError):
            await asyncio.wait_for(refused, 60)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    assert memory.held == 0
    await queue.close()


@pytest.mark.parametrize("limit", [1, 100_000, 256 * MIB])
@pytest.mark.parametrize("seed", range(3))
async def test_frames_in_any_pieces(tmp_path: Path, limit: int, seed: int) -> None:
    """Wherever frames are split, and however full the memory: each record is stored once, as it was sent."""
    chance = random.Random(seed)
    sent: list[bytes] = []
    async with running(tmp_path, {"queued.max.request.bytes": str(limit)}) as broker:
        async with connected(broker) as client:
            await create(client, "t", 4, max_message_bytes=str(8 * MIB))
        (listener, *_) = broker.replicas.metadata.state.brokers[broker.replicas.broker_id].listeners
        encoder = Wire.__new__(Wire)
        encoder.client_id, encoder._number, encoder._sent = "pieces", 0, []

        async def send(partition: int) -> None:
            reader, writer = await asyncio.open_connection(listener.host, listener.port)
            stream, count = b"", 0
            for size in chance.choices([1, 100, 60_000, 262_144, 900_000, 2_200_000], k=6):
                value = chance.randbytes(size)
                sent.append(value)
                batch = build_batch([Record(b"%d" % partition, value, 1)])
                stream += encoder.frame(produce.API, 9, produce_request("t", batch, partition=partition))
                count += 1
            while stream:
                piece = chance.choice([1, 3, 10, 1000, 70_000, 300_000, 1_500_000])
                writer.write(stream[:piece])
                await writer.drain()
                stream = stream[piece:]
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
            for _ in range(count):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
            writer.close()
            await writer.wait_closed()

        await asyncio.wait_for(asyncio.gather(*(send(partition) for partition in range(4))), 100)
        stored = []
        for partition in range(4):
            for data in broker.replicas.partition("t", partition).log.batches_from(0):
                for position, header in iter_batches(memoryview(data)):
                    stored += [one.value for one in read_records(data[position : position + header.size])]
        assert sorted(stored, key=str) == sorted(sent, key=str)
        assert broker.request_memory.held == 0
