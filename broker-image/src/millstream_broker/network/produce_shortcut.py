"""Faster decoding and encoding of Produce requests that resemble an earlier one on their connection.

Most requests of a producer are for one partition, and differ from the previous one for it in two places only:

    api_key, version | correlation_id | client_id, acks, timeout, topic, index | size | records | no tags
                       differs          the same: looked up                          differs

So the bytes in the middle are looked up instead of decoded, and a response without an error reuses the bytes of an
earlier one with its numbers filled in. `protocol.produce` decodes and encodes everything else. This module decides
nothing: the handler gets the same request either way. It knows requests only, not who sends them: each request has the
context of its connection at that time.
"""

from __future__ import annotations

import struct

from millstream_kafka.protocol import produce
from millstream_kafka.protocol.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

AFTER_CORRELATION_ID = 8
NO_TAGS = b"\0\0\0"
"""The bytes after the records: the tagged fields of the partition, of the topic and of the request."""
MOST_KNOWN = 1024
MOST_KEY_BYTES = 512
MOST_LAYOUTS = 4
OLDEST = 5
"""The first version whose responses have all the numbers."""

_SIZE = struct.Struct(">i")
_NUMBERS = struct.Struct(">qqq")
_MARKS = (0x7B7C7D7E01020304, 0x7B7C7D7E05060708, 0x7B7C7D7E090A0B0C)
_THROTTLE_MARK = 0x7B7C7D7E


class Known:
    """An earlier request, decoded, and its response around the numbers: offsets, times, and the throttle time."""

    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_size",
        "_whole",
        "client_id",
        "data",
        "flexible",
        "request",
        "version",
    )

    def __init__(self, version: int, client_id: str | None, request: ProduceRequest) -> None:
        self.version = version
        self.client_id = client_id
        self.request = request
        self.flexible = produce.API.is_flexible(version)
        (topic,) = request.topic_data
        (self.data,) = topic.partition_data
        """The present request's records: views of the receive buffer, which must not be kept."""
        self.data.records = None
        marked = PartitionProduceResponse(self.data.index, 0, *_MARKS)
        body = produce.API.encode_response(
            version,
            ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, [marked])], _THROTTLE_MARK),
        )
        before, rest = body.rsplit(_NUMBERS.pack(*_MARKS), 1)  # names may contain the marks
        self._between, self._after = rest.split(_SIZE.pack(_THROTTLE_MARK))
        self._before = (b"\0" if self.flexible else b"") + before
        self._whole = struct.Struct(f">ii{len(self._before)}sqqq{len(self._between)}si{len(self._after)}s")
        self._size = self._whole.size - _SIZE.size

    def encode(self, correlation_id: int, response: object) -> bytes | None:
        """The whole response; None if it differs in more than the numbers."""
        if not isinstance(response, ProduceResponse):
            return None
        answer = response.responses[0].partition_responses[0]
        if answer.error_code:
            return None
        return self._whole.pack(
            self._size,
            correlation_id,
            self._before,
            answer.base_offset,
            answer.log_append_time_ms,
            answer.log_start_offset,
            self._between,
            response.throttle_time_ms,
            self._after,
        )


class ProduceShortcut:
    """The earlier requests of one connection."""

    __slots__ = ("_known", "_layouts")

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._layouts: list[int] = []
        """Position of the records' size in the learned requests."""

    def learn(self, frame: memoryview, version: int, client_id: str | None, request: ProduceRequest) -> None:
        """Learn a request that was handled; `frame` is whole."""
        if version < OLDEST or len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        records = request.topic_data[0].partition_data[0].records
        if records is None:
            return
        flexible = produce.API.is_flexible(version)
        size = len(records)
        at = len(frame) - size - (len(NO_TAGS) + _varint_size(size + 1) if flexible else 4)
        if not AFTER_CORRELATION_ID <= at <= AFTER_CORRELATION_ID + MOST_KEY_BYTES:
            return
        if records_of(frame, at, flexible) is None:
            return
        if at not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                return
            self._layouts.append(at)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[bytes(frame[AFTER_CORRELATION_ID:at])] = Known(version, client_id, request)

    def shape_of(self, frame: memoryview, version: int) -> tuple[bytes, Known, int] | None:
        """The bytes between correlation id and records, the known request, and the position of the records' size."""
        for at in self._layouts:
            shape = bytes(frame[AFTER_CORRELATION_ID:at])
            known = self._known.get(shape)
            if known is not None and known.version == version:
                return shape, known, at
        return None

    def find(self, frame: memoryview, version: int) -> Known | None:
        """The request with the records of this frame; None if it must be decoded."""
        if (found := self.shape_of(frame, version)) is None:
            return None
        _, known, at = found
        known.data.records = records = records_of(frame, at, known.flexible)
        return None if records is None else known


def records_of(frame: memoryview, at: int, flexible: bool) -> memoryview | None:
    """The records whose size is at `at`; None unless they end where they should."""
    try:
        if not flexible:
            start = at + _SIZE.size
            return frame[start:] if _SIZE.unpack_from(frame, at)[0] == len(frame) - start else None
        size = shift = 0
        while (byte := frame[at]) & 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
    except (IndexError, struct.error):
        return None
    start = at + 1
    end = start + (size | byte << shift) - 1
    if end + len(NO_TAGS) != len(frame) or end < start or frame[end:] != NO_TAGS:
        return None
    return frame[start:end]


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
