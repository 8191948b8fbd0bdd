"""Produce requests that resemble an earlier one on their connection decode equally and get the same response bytes."""

from __future__ import annotations

import struct

import pytest

from millstream_broker.network.produce_shortcut import _MARKS, _THROTTLE_MARK, OLDEST, ProduceShortcut
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.header import RequestHeader, encode_request_header
from millstream_kafka.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

VERSIONS = range(OLDEST, produce.API.versions[1] + 1)

RECORDS = memoryview(b"x" * 100)


def request(records: bytes, *, acks: int = -1, transactional_id: str | None = None) -> ProduceRequest:
    data = [TopicProduceData("topic", partition_data=[PartitionProduceData(3, memoryview(records))])]
    return ProduceRequest(transactional_id, acks, 1234, data)


def frame(version: int, correlation_id: int, sent: ProduceRequest) -> memoryview:
    head = encode_request_header(RequestHeader(0, version, correlation_id, "client"))
    return memoryview(head + produce.API.encode_request(version, sent))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_known_request_and_response_equal_decoded_and_encoded(
    version: int, acks: int, transactional_id: str | None
) -> None:
    shortcut = ProduceShortcut()
    one = request(b"x" * 100, acks=acks, transactional_id=transactional_id)
    assert shortcut.find(frame(version, 1, one), version) is None
    shortcut.learn(frame(version, 1, one), version, "client", one)
    for size in (100, 0, 1, 126, 127, 128, 20_000):
        other = request(b"y" * size, acks=acks, transactional_id=transactional_id)
        known = shortcut.find(frame(version, 2, other), version)
        assert known is not None
        assert known.request == other
        assert (known.version, known.client_id) == (version, "client")
        for code in (0, 7):
            answers = [PartitionProduceResponse(3, code, size, 1_700_000_000_000, 5)]
            topics = [TopicProduceResponse("topic", partition_responses=answers)]
            response = ProduceResponse(topics, throttle_time_ms=size)
            encoded = known.encode(77, response)
            if code:
                assert encoded is None
                continue
            body = produce.API.encode_response(version, response)
            head = struct.pack(">i", 77) + (b"\0" if produce.API.is_flexible(version) else b"")
            assert encoded == struct.pack(">i", len(head) + len(body)) + head + body


def test_a_topic_name_of_the_marks_is_a_name_like_others() -> None:
    name = struct.pack(">qqq", *_MARKS).decode() + struct.pack(">i", _THROTTLE_MARK).decode()
    sent = ProduceRequest(
        None, 1, 1234, [TopicProduceData(name, partition_data=[PartitionProduceData(3, RECORDS)])]
    )
    shortcut = ProduceShortcut()
    bytes_sent = frame(9, 1, sent)
    shortcut.learn(bytes_sent, 9, "client", sent)
    known = shortcut.find(bytes_sent, 9)
    assert known is not None
    response = ProduceResponse(
        [TopicProduceResponse(name, partition_responses=[PartitionProduceResponse(3, 0, 1)])]
    )
    encoded = known.encode(77, response)
    assert encoded is not None
    assert encoded.endswith(produce.API.encode_response(9, response))


def test_an_unlike_request_is_decoded() -> None:
    shortcut = ProduceShortcut()
    one = request(b"x" * 100)
    shortcut.learn(frame(9, 1, one), 9, "client", one)
    assert shortcut.find(frame(8, 2, one), 8) is None
    assert shortcut.find(frame(9, 2, request(b"x" * 100, acks=1)), 9) is None
    cut = frame(9, 2, request(b"x" * 100))
    assert shortcut.find(cut[:-1], 9) is None
    assert shortcut.find(cut[:10], 9) is None
    tagged = memoryview(bytes(cut[:-1]) + b"\1\0\0")
    assert shortcut.find(tagged, 9) is None
