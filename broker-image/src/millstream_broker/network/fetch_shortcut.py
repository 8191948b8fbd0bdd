"""Faster decoding and encoding of Fetch requests that resemble an earlier one on their connection.

Most requests of a consumer name one partition, and differ from the previous one for it in three places only:

    api_key, version | correlation_id | client_id ... session_id | session_epoch | topic ... | fetch_offset | the rest
                       differs          the same                   differs         the same    differs        the same

So the bytes between these numbers are looked up instead of decoded, and a response with records, and nothing unusual,
reuses the bytes of an earlier one with its numbers filled in. `protocol.fetch` decodes and encodes everything else.
This module decides nothing: the handler gets an equal request either way, a new one each time, because a session keeps
its parts.
"""

from __future__ import annotations

import struct
from typing import Any

from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.compiler import write_varint
from millstream_kafka.protocol.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from millstream_kafka.protocol.schema import changed

from ..log.files import FileSlice

AFTER_CORRELATION_ID = 8
MOST_KNOWN = 64
MOST_FRAME_BYTES = 512
MOST_LAYOUTS = 8
LEAST_FOUND = 16
"""Beyond the first MOST_KNOWN, so many requests are found for each one learned, which costs ten times a decoding."""
OLDEST = 7
"""The first version with sessions."""

_EPOCH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_SIZE_BYTES = 4

Layout = tuple[int, int, int]
"""Size of the frame; positions of the session epoch and of the fetch offset."""


class KnownFetch:
    """An earlier request, decoded, and its responses around their numbers."""

    __slots__ = ("_flexible", "_forms", "_partition", "_request", "_topic", "client_id", "version")

    def __init__(self, version: int, client_id: str | None, request: FetchRequest) -> None:
        self.version = version
        self.client_id = client_id
        self._flexible = fetch.API.is_flexible(version)
        self._request = changed(request)  # handlers change theirs
        (self._topic,) = request.topics
        (self._partition,) = self._topic.partitions
        self._forms: dict[bool, _Form] = {}
        """The form of a response, by whether its aborted transactions are null."""

    def request(self, session_epoch: int, fetch_offset: int) -> FetchRequest:
        """The request with these numbers."""
        request, topic, partition = self._request, self._topic, self._partition
        return FetchRequest(
            request.cluster_id,
            request.replica_id,
            request.replica_state,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            session_epoch,
            [
                FetchTopic(
                    topic.topic,
                    topic.topic_id,
                    [
                        FetchPartition(
                            partition.partition,
                            partition.current_leader_epoch,
                            fetch_offset,
                            partition.last_fetched_epoch,
                            partition.log_start_offset,
                            partition.partition_max_bytes,
                            partition.replica_directory_id,
                            partition.high_watermark,
                        )
                    ],
                )
            ],
            [],
            request.rack_id,
        )

    def encode(self, correlation_id: int, response: object) -> list[Any] | None:
        """The parts of the whole response; None unless it has records of the partition, and nothing unusual."""
        if not isinstance(response, FetchResponse) or len(response.responses) != 1:
            return None
        (topic,) = response.responses
        if len(topic.partitions) != 1:
            return None
        (data,) = topic.partitions
        records, aborted = data.records, data.aborted_transactions
        if (
            data.error_code
            or aborted
            or type(records) is not FileSlice
            or not records.length
            or data.preferred_read_replica != -1
            or data.partition_index != self._partition.partition
            or topic.topic != self._topic.topic
            or topic.topic_id != self._topic.topic_id
            or response.error_code
            or response.session_id != self._request.session_id
            or response.node_endpoints
            or data.diverging_epoch is not None
            or data.current_leader is not None
            or data.snapshot_id is not None
        ):
            return None
        if (form := self._forms.get(aborted is None)) is None:
            form = self._forms[aborted is None] = _Form(self.version, self._flexible, response, data)
        return form.fill(correlation_id, response.throttle_time_ms, data, records)


class _Form:
    """The bytes of a response around its numbers.

    The numbers are where the bytes differ once all numbers are others; only the size of the records differs in length.
    """

    __slots__ = ("_after", "_around", "_flexible", "_whole")

    def __init__(self, version: int, flexible: bool, response: FetchResponse, data: PartitionData) -> None:
        (topic,) = response.responses
        zeros, ones = (
            fetch.API.encode_response(
                version,
                changed(
                    response,
                    throttle_time_ms=number,
                    responses=[
                        FetchableTopicResponse(
                            topic.topic,
                            topic.topic_id,
                            [
                                changed(
                                    data,
                                    high_watermark=number,
                                    last_stable_offset=number,
                                    log_start_offset=number,
                                    records=b"",
                                )
                            ],
                        )
                    ],
                ),
            )
            for number in (0, -1)
        )
        self._flexible = flexible
        self._after = b"\0\0\0" if flexible else b""
        """The tagged fields of the partition, of the topic and of the response."""
        end = len(zeros) - len(self._after) - (1 if flexible else 4)
        at = next(position for position in range(4, end) if zeros[position] != ones[position])
        # The throttle time begins the response, and the three offsets follow each other.
        header = b"\0" if flexible else b""
        before, between = zeros[4:at], zeros[at + 24 : end]
        self._around = before, between
        self._whole = struct.Struct(f">ii{len(header)}xi{len(before)}sqqq{len(between)}s")

    def fill(
        self, correlation_id: int, throttle_time_ms: int, data: PartitionData, records: FileSlice
    ) -> list[Any]:
        size, (before, between) = records.length, self._around
        counted = write_varint(size + 1) if self._flexible else _EPOCH.pack(size)
        whole, after = self._whole, self._after
        head = whole.pack(
            whole.size - _SIZE_BYTES + len(counted) + size + len(after),
            correlation_id,
            throttle_time_ms,
            before,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            between,
        )
        return [head + counted, records, after] if after else [head + counted, records]


class FetchShortcut:
    """The earlier requests of one connection."""

    __slots__ = ("_found", "_known", "_layouts", "_learned")

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes, bytes], KnownFetch] = {}
        """By the bytes around the numbers, from the client id on."""
        self._layouts: list[Layout] = []
        self._found = self._learned = 0

    def learn(
        self, frame: memoryview, body: int, version: int, client_id: str | None, request: FetchRequest
    ) -> None:
        """Learn a request that has been decoded from `frame`, whose body begins at `body`."""
        if (
            version < OLDEST
            or len(frame) > MOST_FRAME_BYTES
            or request.forgotten_topics_data
            or len(request.topics) != 1
            or len(request.topics[0].partitions) != 1
        ):
            return
        if self._learned >= MOST_KNOWN and self._found < LEAST_FOUND * self._learned:
            return
        self._learned += 1
        zeros, ones = _with_numbers(version, request, 0), _with_numbers(version, request, -1)
        differing = [at for at, (zero, one) in enumerate(zip(zeros, ones, strict=True)) if zero != one]
        layout = len(frame), body + differing[0], body + differing[_EPOCH.size]
        if _without_numbers(frame, layout) != _without_numbers(
            memoryview(bytes(frame[:body]) + zeros), layout
        ):
            return  # it has bytes that the decoder has skipped
        if len(self._known) >= MOST_KNOWN or (
            layout not in self._layouts and len(self._layouts) >= MOST_LAYOUTS
        ):
            self._known.clear()
            self._layouts.clear()
        if layout not in self._layouts:
            self._layouts.append(layout)
        self._known[_without_numbers(frame, layout)] = KnownFetch(version, client_id, request)

    def find(self, frame: memoryview, version: int) -> tuple[KnownFetch, FetchRequest] | None:
        """The known request, and the one in this frame; None if it must be decoded."""
        for layout in self._layouts:
            if layout[0] != len(frame):
                continue
            known = self._known.get(_without_numbers(frame, layout))
            if known is not None and known.version == version:
                self._found += 1
                (epoch,) = _EPOCH.unpack_from(frame, layout[1])
                (offset,) = _OFFSET.unpack_from(frame, layout[2])
                return known, known.request(epoch, offset)
        return None


def _without_numbers(frame: memoryview, layout: Layout) -> tuple[bytes, bytes, bytes]:
    _, epoch, offset = layout
    return (
        bytes(frame[AFTER_CORRELATION_ID:epoch]),
        bytes(frame[epoch + _EPOCH.size : offset]),
        bytes(frame[offset + _OFFSET.size :]),
    )


def _with_numbers(version: int, request: FetchRequest, number: int) -> bytes:
    (topic,) = request.topics
    (partition,) = topic.partitions
    partition = changed(partition, fetch_offset=number)
    request = changed(request, session_epoch=number, topics=[changed(topic, partitions=[partition])])
    return fetch.API.encode_request(version, request)
