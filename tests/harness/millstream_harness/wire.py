"""A small blocking Kafka client on our own codec, for tests that control each byte on the wire."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar
from uuid import UUID

from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import fetch, list_offsets, metadata, produce
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.header import RequestHeader, encode_request_header
from millstream_kafka.protocol.schema import ZERO_UUID, Struct

Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)

TIMEOUT_S = LEADER_S = 60.0


class Wire:
    """One connection. ``call`` sends a request and waits; ``send`` and ``receive`` do each half, for pipelines."""

    def __init__(self, bootstrap: str, client_id: str = "wire", source: str = "") -> None:
        """`source`: the address to connect from, such as 127.0.0.2; by default, the system's choice."""
        host, port = bootstrap.split(",")[0].split("://")[-1].rsplit(":", 1)
        self.socket = socket.create_connection(
            (host.strip("[]"), int(port)), timeout=TIMEOUT_S, source_address=(source, 0) if source else None
        )
        self.client_id = client_id
        self._number = 0
        self._sent: list[tuple[Api[Any, Any], int, int]] = []

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, api: Api[Req, Any], version: int, request: Req) -> bytes:
        self._number += 1
        self._sent.append((api, version, self._number))
        head = encode_request_header(RequestHeader(api.key, version, self._number, self.client_id))
        body = head + api.encode_request(version, request)
        return struct.pack(">i", len(body)) + body

    def send(self, api: Api[Req, Any], version: int, request: Req) -> None:
        self.socket.sendall(self.frame(api, version, request))

    def receive(self) -> Any:
        """The response to the oldest open request; EOFError if the broker closes the connection."""
        api, version, number = self._sent.pop(0)
        body = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", body)
        assert correlation_id == number
        return api.decode_response(version, body, 5 if api.has_flexible_response_header(version) else 4)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def is_closed(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def call(self, api: Api[Req, Res], version: int, request: Req) -> Res:
        self.send(api, version, request)
        response: Res = self.receive()
        return response

    # The calls that most tests need

    def create(self, *topics: str) -> None:
        """Create topics by a Metadata request."""
        asked = [metadata.MetadataRequestTopic(name=name) for name in topics]
        answer = self.call(metadata.API, 12, metadata.MetadataRequest(asked))
        assert [topic.error_code for topic in answer.topics] == [0] * len(topics)

    def produce(
        self,
        topic: str,
        records: Iterable[Record] | bytes,
        *,
        partition: int = 0,
        acks: int = 1,
        version: int = 9,
        timeout_ms: int = 10_000,
        topic_id: UUID = ZERO_UUID,
    ) -> produce.PartitionProduceResponse:
        batch = records if isinstance(records, bytes) else build_batch(records)
        request = produce_request(
            topic, batch, partition=partition, acks=acks, timeout_ms=timeout_ms, topic_id=topic_id
        )
        self.send(produce.API, version, request)
        answer: produce.ProduceResponse = self.receive()
        return answer.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        wait_ms: int = 0,
        version: int = 12,
        **limits: int,
    ) -> fetch.PartitionData:
        answer = self.call(fetch.API, version, fetch_request(topic, offset, partition, wait_ms, **limits))
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    def end_offset(self, topic: str, partition: int = 0) -> int:
        found = self._end(topic, partition)
        assert found.error_code == 0
        return found.offset

    def await_leader(self, topic: str, partition: int = 0) -> None:
        """Wait until this broker leads: after an older copy of coordination it compares logs first."""
        end = time.monotonic() + LEADER_S
        while (code := self._end(topic, partition).error_code) != 0:
            assert time.monotonic() < end, f"{topic}-{partition}: {ErrorCode.of(code).name}"
            time.sleep(0.02)

    def _end(self, topic: str, partition: int) -> list_offsets.ListOffsetsPartitionResponse:
        asked = list_offsets.ListOffsetsPartition(partition, -1, -1)
        request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic(topic, [asked])])
        return self.call(list_offsets.API, 7, request).topics[0].partitions[0]


def produce_request(
    topic: str,
    batch: bytes | None,
    *,
    partition: int = 0,
    acks: int = 1,
    transactional_id: str | None = None,
    timeout_ms: int = 10_000,
    topic_id: UUID = ZERO_UUID,
) -> produce.ProduceRequest:
    """``topic_id``: for versions that carry it instead of the name."""
    data = produce.PartitionProduceData(partition, batch)
    topics = [produce.TopicProduceData(topic, topic_id, [data])]
    return produce.ProduceRequest(transactional_id, acks, timeout_ms, topics)


def fetch_request(
    topic: str,
    offset: int,
    partition: int = 0,
    wait_ms: int = 0,
    *,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 50_000_000,
    epoch: int = -1,
) -> fetch.FetchRequest:
    asked = fetch.FetchPartition(partition, epoch, offset, partition_max_bytes=partition_max_bytes)
    return fetch.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[fetch.FetchTopic(topic, partitions=[asked])],
    )


def record(value: bytes | str, key: bytes | None = None, timestamp: int | None = None) -> Record:
    value = value.encode() if isinstance(value, str) else value
    return Record(key, value, int(time.time() * 1000) if timestamp is None else timestamp)


@contextlib.contextmanager
def silent_listener() -> Iterator[tuple[str, int]]:
    """The address of a listener with a full queue: the kernel drops connections, neither accepted nor refused."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()
