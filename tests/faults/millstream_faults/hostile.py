"""One malicious client: it sends odd batches, and requests in the name of brokers.

Odd batches go to a topic of their own, which only brokers read (it is compacted). Batches that every broker
must refuse also go to the other topics, where one that got in would be a foreign record or a gap. Forged
requests go to every listener; the client cannot prove to be a broker.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from crc32c import crc32c

from millstream_kafka.batch import (
    CRC_OFFSET,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    read_header,
)
from millstream_kafka.client import Connection
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.compression import Compression
from millstream_kafka.kafka_uuid import uuid_from
from millstream_kafka.protocol import controlled_shutdown, fetch, produce, stop_replica, update_metadata
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode

from .topics import ANEW, COMPACTED, ODD, PLANS, STEADY

OFFSETS_TOPIC = "__consumer_offsets"
PAUSE_S = 0.02
TIMEOUT_S = 2.0
INT32_MAX = 0x7FFFFFFF
INT64_MAX = 0x7FFFFFFFFFFFFFFF
Change = Callable[[BatchHeader], BatchHeader]
REFUSED: list[Change] = [
    lambda header: header._replace(record_count=INT32_MAX, last_offset_delta=INT32_MAX - 1),
    lambda header: header._replace(record_count=1_000_000, last_offset_delta=999_999),
    lambda header: header._replace(record_count=0, last_offset_delta=-1),
    lambda header: header._replace(record_count=-1),
    lambda header: header._replace(last_offset_delta=INT32_MAX),
    lambda header: header._replace(magic=1),
    lambda header: header._replace(attributes=0x20),
    lambda header: header._replace(attributes=0x07),
    lambda header: header._replace(batch_length=header.batch_length + 100),
    lambda header: header._replace(batch_length=-1),
    lambda header: header._replace(base_offset=17),
    lambda header: header._replace(producer_id=1, producer_epoch=-1, base_sequence=-1),
]
"""Headers that every broker must refuse."""
ODD_HEADERS: list[Change] = [
    *REFUSED,
    lambda header: header,
    lambda header: header._replace(base_timestamp=INT64_MAX, max_timestamp=INT64_MAX),
    lambda header: header._replace(base_timestamp=-1, max_timestamp=-1),
    lambda header: header._replace(max_timestamp=-(1 << 62)),
    lambda header: header._replace(attributes=0x01),
    lambda header: header._replace(attributes=0x40, base_timestamp=1),
    lambda header: header._replace(producer_id=INT64_MAX, producer_epoch=1, base_sequence=INT32_MAX),
    lambda header: header._replace(producer_id=0, producer_epoch=0x7FFF, base_sequence=0),
]


class Hostile:
    """Attacks; equal seeds give equal ones, apart from the time. Each method reports the answers it got."""

    def __init__(self, addresses: Sequence[str], seed: int) -> None:
        """``addresses`` are all listeners of the cluster, including those for brokers."""
        self._addresses = addresses
        self._drawn = random.Random(seed)

    def send_odd_batches(self, seconds: float) -> Counter[str]:
        return self._attack(seconds, self._send_odd_batch)

    def forge(self, seconds: float) -> Counter[str]:
        return self._attack(seconds, self._forge)

    def _attack(self, seconds: float, attempt: Callable[[Connection], Any]) -> Counter[str]:
        answers: Counter[str] = Counter()

        async def attack() -> None:
            end = time.monotonic() + seconds
            connection: Connection | None = None
            while time.monotonic() < end:
                try:
                    if connection is None or connection.is_closed:
                        host, _, port = self._drawn.choice(self._addresses).rpartition(":")
                        connection = await Connection.open(host, int(port), "hostile", timeout=TIMEOUT_S)
                    answers[await attempt(connection)] += 1
                except BrokerError as error:
                    answers[type(error).__name__] += 1
                    if connection is not None:
                        await connection.close()
                await asyncio.sleep(PAUSE_S)
            if connection is not None:
                await connection.close()

        asyncio.run(attack())
        return answers

    async def _send_odd_batch(self, connection: Connection) -> str:
        topic = self._drawn.choice((ODD, ODD, STEADY, ANEW, COMPACTED, OFFSETS_TOPIC))
        partition = self._drawn.randrange(PLANS[topic].partitions if topic in PLANS else 4)
        batch = self._odd_batch() if topic == ODD else self._refused_batch()
        data = [
            produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(partition, batch)])
        ]
        acks = self._drawn.choice((1, -1))
        answer = await connection.call(produce.API, 9, produce.ProduceRequest(None, acks, 1000, data))
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code).name

    def _refused_batch(self) -> bytes:
        return changed(build_batch(self._records()), self._drawn.choice(REFUSED))

    def _odd_batch(self) -> bytes:
        if self._drawn.random() < 0.4:
            return renumbered(self._drawn.choice(([1, 0], [0, 0], [5, 3], [0, 60], [-1, 0], [1, 2])), 3000)
        compression = self._drawn.choice(list(Compression))
        return changed(build_batch(self._records(), compression=compression), self._drawn.choice(ODD_HEADERS))

    def _records(self) -> list[Record]:
        keys = self._drawn.choice(([b"a", b"b"], [b"", b"a"], [None, b"a"], [b"k" * 5000, b"a"]))
        value = self._drawn.choice((None, b"", b"v", b"v" * 4096))
        return [Record(key, value, self._drawn.choice((-1, 0, 1 << 40))) for key in keys]

    async def _forge(self, connection: Connection) -> str:
        forged: tuple[Api[Any, Any], int, Any] = self._drawn.choice(
            (self._stop_replica, self._update_metadata, self._controlled_shutdown, self._fetch)
        )()
        answer = await connection.call(*forged)
        return f"{forged[0].name} {ErrorCode.of(answer.error_code).name}"

    def _epochs(self) -> tuple[int, int, int]:
        """The controller with its epoch, and a broker's epoch."""
        epochs = (
            self._drawn.choice((INT32_MAX, 1, 2, 3, 5, 9)),
            self._drawn.choice((INT64_MAX, -1, 1 << 33)),
        )
        return (self._drawn.randint(1, 3), *epochs)

    def _stop_replica(self) -> tuple[Api[Any, Any], int, Any]:
        epoch = self._drawn.choice((-2, -1, INT32_MAX))
        states = [
            stop_replica.StopReplicaTopicState(
                name,
                [stop_replica.StopReplicaPartitionState(index, epoch, True) for index in range(count)],
            )
            for name, count in self._targets()
        ]
        return stop_replica.API, 3, stop_replica.StopReplicaRequest(*self._epochs(), states)

    def _update_metadata(self) -> tuple[Api[Any, Any], int, Any]:
        leader = self._drawn.choice((-2, 1, 2, 3))
        states = [
            update_metadata.UpdateMetadataTopicState(
                name,
                uuid_from("A" * 22),
                [
                    update_metadata.UpdateMetadataPartitionState(
                        index, INT32_MAX, leader, INT32_MAX, [leader], INT32_MAX, [leader], []
                    )
                    for index in range(count)
                ],
            )
            for name, count in self._targets()
        ]
        return update_metadata.API, 7, update_metadata.UpdateMetadataRequest(*self._epochs(), states, [])

    def _controlled_shutdown(self) -> tuple[Api[Any, Any], int, Any]:
        controller, _, epoch = self._epochs()
        request = controlled_shutdown.ControlledShutdownRequest(controller, epoch)
        return controlled_shutdown.API, 3, request

    def _fetch(self) -> tuple[Api[Any, Any], int, Any]:
        """Fetch as a follower that already has every record."""
        topics = [
            fetch.FetchTopic(
                name,
                partitions=[
                    fetch.FetchPartition(
                        index, -1, self._drawn.choice((0, 1 << 40)), partition_max_bytes=1000
                    )
                    for index in range(count)
                ],
            )
            for name, count in self._targets()
        ]
        replica = self._drawn.choice((1, 2, 3, 99, INT32_MAX))
        request = fetch.FetchRequest(
            replica_id=replica,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=10_000,
            session_epoch=self._drawn.choice((0, -1)),
            topics=topics,
        )
        return fetch.API, 12, request

    def _targets(self) -> list[tuple[str, int]]:
        return [(STEADY, 6), (ANEW, 3), (COMPACTED, 3), (OFFSETS_TOPIC, 4)]


def changed(batch: bytes, change: Change) -> bytes:
    """The batch with another header and a matching CRC."""
    header = change(read_header(batch))
    return _sealed(bytearray(HEADER.pack(*header) + batch[HEADER_SIZE:]))


def _sealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def renumbered(deltas: list[int], size: int) -> bytes:
    """Records with these offset deltas (-64 to 63) under a header that matches only their number."""
    whole = bytearray(build_batch([Record(b"k", b"v" * size, 1) for _ in deltas]))
    position = HEADER_SIZE
    for delta in deltas:
        after_length, length = _varint(whole, position)
        whole[after_length + 2] = 2 * delta if delta >= 0 else -2 * delta - 1
        position = after_length + length
    return _sealed(whole)


def _varint(data: bytearray, position: int) -> tuple[int, int]:
    """The position after a varint, and its value (zigzag)."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position, (value >> 1) ^ -(value & 1)
