"""A minimal client: the shortest path to an acknowledged record, with the same few bytes for both brokers.

Metadata v4 and Produce v7 by hand (Kafka's protocol guide; KIP-98 for the record batch), blocking, no
threads, so that measurements show the broker and not a client.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

import crc32c

from millstream_kafka.compression import Compression, compress

CLIENT_ID = b"bench"
METADATA, PRODUCE, LIST_OFFSETS, FIND_COORDINATOR = (3, 4), (0, 7), (2, 1), (10, 0)
RETRY_S = 0.002
NOT_YET = (3, 5, 6)  # UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER
COORDINATOR_NOT_AVAILABLE = 15
TIMEOUT_S = 60.0


def address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def connect(bootstrap: str) -> socket.socket:
    sock = socket.create_connection(address(bootstrap), timeout=TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frame(api: tuple[int, int], body: bytes) -> bytes:
    """A request: length, header v1 (key, version, correlation id, client id), body."""
    header = struct.pack(">hhih", *api, 1, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def metadata_request(topic: str) -> bytes:
    """Metadata of one topic, which is created if it does not exist."""
    return frame(METADATA, struct.pack(">i", 1) + text(topic) + b"\x01")


class Partition(NamedTuple):
    """One partition; its leader is -1 if there is none."""

    leader: int
    in_sync: tuple[int, ...]


class Metadata(NamedTuple):
    """A broker's view of its cluster, and of a requested topic's partitions."""

    brokers: frozenset[int]
    controller: int
    partitions: tuple[Partition, ...]


def metadata(sock: socket.socket, topic: str | None = None) -> Metadata:
    request = frame(METADATA, struct.pack(">ib", 0, 0)) if topic is None else metadata_request(topic)
    return parsed_metadata(call(sock, request))


def parsed_metadata(response: bytes) -> Metadata:
    """The body of a Metadata v4 response of at most one topic."""
    (count,) = struct.unpack_from(">i", response, 4)
    at, brokers = 8, set()
    for _ in range(count):
        (number,) = struct.unpack_from(">i", response, at)
        brokers.add(number)
        at = _after_text(response, _after_text(response, at + 4) + 4)  # host, port, rack
    at = _after_text(response, at)  # the cluster's id
    controller, topics = struct.unpack_from(">ii", response, at)
    at += 8
    partitions: dict[int, Partition] = {}
    if topics:
        at = _after_text(response, at + 2) + 1
        (count,) = struct.unpack_from(">i", response, at)
        at += 4
        for _ in range(count):
            _, index, leader = struct.unpack_from(">hii", response, at)
            _, at = _numbers(response, at + 10)
            in_sync, at = _numbers(response, at)
            partitions[index] = Partition(leader, in_sync)
    return Metadata(frozenset(brokers), controller, tuple(partitions[index] for index in sorted(partitions)))


def _after_text(response: bytes, at: int) -> int:
    length: int
    (length,) = struct.unpack_from(">h", response, at)
    return at + 2 + max(0, length)  # -1 means none


def _numbers(response: bytes, at: int) -> tuple[tuple[int, ...], int]:
    (count,) = struct.unpack_from(">i", response, at)
    return struct.unpack_from(f">{count}i", response, at + 4), at + 4 + 4 * count


def produce_request(topic: str, batch: bytes, acks: int = 1) -> bytes:
    """One record batch to partition 0."""
    data = struct.pack(">ii", 0, len(batch)) + batch
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", 1) + data
    return frame(PRODUCE, struct.pack(">hhi", -1, acks, 30_000) + topics)


def record_batch(value: bytes, count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    """A batch of ``count`` equal records without key or headers, format 2."""
    now = int(time.time() * 1000)
    records = compress(codec, b"".join(_record(number, value) for number in range(count)))
    counted = struct.pack(">hiqqqhii", codec, count - 1, now, now, -1, -1, -1, count) + records
    crc = crc32c.crc32c(counted)
    return struct.pack(">qiibI", 0, 9 + len(counted), -1, 2, crc) + counted


def _record(offset_delta: int, value: bytes) -> bytes:
    body = (
        b"\x00" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    )
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def receive(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(count - len(parts))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts += part
    return bytes(parts)


def call(sock: socket.socket, request: bytes) -> bytes:
    """Send one request; return the response's body."""
    sock.sendall(request)
    (length,) = struct.unpack(">i", receive(sock, 4))
    return receive(sock, length)[4:]


def produce_error(response: bytes, topic: str) -> int:
    """The error code of the one partition in a Produce v7 response."""
    (code,) = struct.unpack_from(">h", response, 4 + 2 + len(topic.encode()) + 4 + 4)
    return int(code)


def produce_until_taken(sock: socket.socket, request: bytes, topic: str) -> bytes:
    """The response to a produce request, repeated until all brokers know a new topic."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        response = call(sock, request)
        code = produce_error(response, topic)
        if code == 0:
            return response
        if code not in NOT_YET or time.monotonic() > deadline:
            raise RuntimeError(f"the broker answered a produce request with error {code}")
        time.sleep(RETRY_S)


def end_offsets(sock: socket.socket, topic: str, partitions: int) -> list[int]:
    """The offset after the last record of each partition, 0 without records or a topic."""
    asked = b"".join(struct.pack(">iq", number, -1) for number in range(partitions))
    request = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">i", partitions) + asked
    response = call(sock, frame(LIST_OFFSETS, request))
    at = _after_text(response, 4) + 4
    rows = (struct.unpack_from(">ihqq", response, at + 22 * place) for place in range(partitions))
    ends = {partition: 0 if error else offset for partition, error, _, offset in rows}
    return [ends[number] for number in range(partitions)]


def await_coordinator(bootstrap: str) -> None:
    """Wait until a group has a coordinator: the first request creates __consumer_offsets."""
    request = frame(FIND_COORDINATOR, text("started"))
    deadline = time.monotonic() + TIMEOUT_S
    with connect(bootstrap) as sock:
        while code := struct.unpack_from(">h", call(sock, request))[0]:
            if code != COORDINATOR_NOT_AVAILABLE or time.monotonic() > deadline:
                raise RuntimeError(f"the broker answered a look for a coordinator with error {code}")
            time.sleep(RETRY_S)


def first_acknowledgement(
    bootstrap: str, topic: str, alive: Callable[[], None] = lambda: None, timeout: float = TIMEOUT_S
) -> None:
    """Retry until the broker acknowledges a record: connect, request the topic (which creates it), produce."""
    request, batch = metadata_request(topic), record_batch(b"first")
    deadline = time.monotonic() + timeout
    while True:
        try:
            with connect(bootstrap) as sock:
                while True:
                    call(sock, request)
                    if produce_error(call(sock, produce_request(topic, batch)), topic) == 0:
                        return
                    time.sleep(RETRY_S)
                    if time.monotonic() > deadline:
                        break
        except (ConnectionError, TimeoutError):
            pass
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record was acknowledged by {bootstrap} in {timeout} s")
        time.sleep(RETRY_S)
