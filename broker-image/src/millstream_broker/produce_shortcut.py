"""A short way for Produce requests that are like one before them on their connection.

Most requests of a producer are for one partition, and differ from the last one for it in two places only:

    api_key, version | correlation_id | client_id, acks, timeout, topic, index | size | records | no tags
                       differs          the same: looked up                          differs

So those bytes in the middle are looked up instead of decoded, and the response is the bytes of an earlier one with
three numbers filled in; where followers have to have the records first, it is ready but waits for them. Whatever is
not exactly so (another shape, acks=0, a partition whose acknowledgements wait for the disk, or a batch that cannot be
appended at once) takes the slow path, through `protocol.produce` and `api.produce`, and gets the same answer there.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from .internal_topics import is_internal
from .protocol import produce
from .protocol.errors import ApiError
from .protocol.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse

if TYPE_CHECKING:
    from .broker import Broker

AFTER_CORRELATION_ID = 8
NO_TAGS = b"\0\0\0"
"""Behind the records: the tagged fields of the partition, of the topic and of the request."""
MOST_KNOWN = 1024
MOST_KEY_BYTES = 512
MOST_LAYOUTS = 4

_HEAD = struct.Struct(">ii")
_MARKS = (0x7B7C7D7E01020304, 0x7B7C7D7E05060708, 0x7B7C7D7E090A0B0C)


@dataclass(frozen=True, slots=True)
class Known:
    """A request that was answered before: what it asked for, and its response around the three numbers."""

    version: int
    flexible: bool
    partition: tuple[str, int]
    acks: int
    timeout_ms: int
    before: bytes
    numbers: struct.Struct
    after: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A response that may go out when every replica in sync has the records."""

    response: bytes
    numbers: tuple[int, int, int]
    safe: asyncio.Future[None]
    known: Known
    correlation_id: int
    broker: Broker

    def outcome(self) -> bytes:
        """When `safe` is done. CancelledError where it was cancelled."""
        try:
            self.safe.result()
        except ApiError as error:
            self.broker.stats.records_refused += 1
            failed = PartitionProduceResponse(self.known.partition[1], error.code, *self.numbers)
            return _encoded(self.known, self.correlation_id, failed)
        return self.response


class ProduceShortcut:
    """What one connection has asked for before."""

    __slots__ = ("_broker", "_known", "_layouts")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[bytes, Known] = {}
        self._layouts: list[int] = []
        """Where the size of the records stands in requests that were learned."""

    def learn(self, frame: memoryview, version: int, request: ProduceRequest) -> None:
        """Remember a request that was answered; `frame` is whole."""
        if (
            version < produce.ZSTD_SINCE
            or request.acks not in (-1, 1)
            or request.transactional_id is not None
        ):
            return
        if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        topic, data = request.topic_data[0], request.topic_data[0].partition_data[0]
        if data.records is None or len(self._known) >= MOST_KNOWN:
            return
        if (topic.name, data.index) not in self._broker.partitions or is_internal(topic.name):
            return  # what is refused must not be answered here
        flexible = produce.API.is_flexible(version)
        size = len(data.records)
        at = len(frame) - size - (len(NO_TAGS) + _varint_size(size + 1) if flexible else 4)
        if _records(frame, at, flexible) is None:
            return
        if at not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                return
            self._layouts.append(at)
        key = bytes(frame[AFTER_CORRELATION_ID:at])
        if len(key) > MOST_KEY_BYTES:
            return
        self._known[key] = _known(version, flexible, (topic.name, data.index), request)

    def answer(self, frame: memoryview, version: int) -> bytes | Prepared | None:
        """Do what the request says and return its whole response; None where it has to go the long way."""
        for at in self._layouts:
            known = self._known.get(bytes(frame[AFTER_CORRELATION_ID:at]))
            if known is not None and known.version == version:
                return self._answer(frame, at, known)
        return None

    def _answer(self, frame: memoryview, at: int, known: Known) -> bytes | Prepared | None:
        partition = self._broker.partitions.get(known.partition)
        if partition is None or not partition.answers_at_once:
            return None
        records = _records(frame, at, known.flexible)
        if records is None:
            return None
        (correlation_id,) = _HEAD.unpack_from(frame, 0)[1:]
        try:
            info = partition.append_at_once(records, int(time() * 1000), acks=known.acks)
        except ApiError as error:
            self._broker.stats.records_refused += 1
            return _refused(known, correlation_id, error)
        if info is None:
            return None
        if not info.duplicate:
            self._broker.stats.records_in += info.last_offset - info.first_offset + 1
        numbers = (info.first_offset, info.log_append_time, info.log_start_offset)
        response = b"".join(
            (
                _HEAD.pack(known.size, correlation_id),
                known.before,
                known.numbers.pack(*numbers[: len(known.numbers.format) - 1]),
                known.after,
            )
        )
        if partition.isr is None or known.acks != -1:
            return response
        safe = partition.acknowledged(info, timeout_ms=known.timeout_ms)
        if safe is None:
            return response
        return Prepared(response, numbers, safe, known, correlation_id, self._broker)


def _records(frame: memoryview, at: int, flexible: bool) -> memoryview | None:
    """The records whose size stands at `at`; None unless they end where they should."""
    try:
        if not flexible:
            start = at + 4
            return frame[start:] if int.from_bytes(frame[at:start], "big") == len(frame) - start else None
        size = shift = 0
        while (byte := frame[at]) & 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
    except IndexError:
        return None
    start = at + 1
    end = start + (size | byte << shift) - 1
    if end + len(NO_TAGS) != len(frame) or end < start or frame[end:] != NO_TAGS:
        return None
    return frame[start:end]


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _known(version: int, flexible: bool, partition: tuple[str, int], request: ProduceRequest) -> Known:
    topic, index = partition
    numbers = struct.Struct(">qqq" if version >= 5 else ">qq")
    marked = ProduceResponse([TopicProduceResponse(topic, [PartitionProduceResponse(index, 0, *_MARKS)])])
    body = produce.API.encode_response(version, marked)
    before, after = body.split(numbers.pack(*_MARKS[: len(numbers.format) - 1]))
    if flexible:
        before = b"\0" + before
    size = 4 + len(before) + numbers.size + len(after)
    return Known(version, flexible, partition, request.acks, request.timeout_ms, before, numbers, after, size)


def _refused(known: Known, correlation_id: int, error: ApiError) -> bytes:
    failed = PartitionProduceResponse(known.partition[1], error.code, -1, error_message=error.message)
    return _encoded(known, correlation_id, failed)


def _encoded(known: Known, correlation_id: int, answer: PartitionProduceResponse) -> bytes:
    response = ProduceResponse([TopicProduceResponse(known.partition[0], [answer])])
    body = produce.API.encode_response(known.version, response)
    if known.flexible:
        body = b"\0" + body
    return _HEAD.pack(4 + len(body), correlation_id) + body
