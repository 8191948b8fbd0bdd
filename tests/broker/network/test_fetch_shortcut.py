"""Fetch requests that resemble an earlier one on their connection decode equally and get the same response bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.log.files import FileSlice, OpenFile
from millstream_broker.network.fetch_shortcut import MOST_KNOWN, OLDEST, FetchShortcut
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from millstream_kafka.protocol.header import RequestHeader, encode_request_header
from millstream_kafka.protocol.schema import changed

VERSIONS = range(OLDEST, fetch.API.versions[1] + 1)
TOPIC_ID = UUID(int=0x1234)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def request(version: int, *, epoch: int = 1, offset: int = 0, **more: Any) -> FetchRequest:
    """As the broker decodes it."""
    names: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= fetch.IDS_SINCE else {"topic": "topic"}
    partitions = [FetchPartition(3, 5, offset, partition_max_bytes=1 << 20)]
    topics = [FetchTopic(**names, partitions=partitions)]
    given: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "session_id": 77, "topics": topics, **more}
    return decoded(version, frame(version, 0, FetchRequest(session_epoch=epoch, **given)))


def frame(version: int, correlation_id: int, sent: FetchRequest) -> memoryview:
    head = encode_request_header(RequestHeader(1, version, correlation_id, "client"))
    return memoryview(head + fetch.API.encode_request(version, sent))


def body_of(version: int) -> int:
    return len(encode_request_header(RequestHeader(1, version, 0, "client")))


def decoded(version: int, sent: memoryview) -> FetchRequest:
    return fetch.API.decode_request(version, sent, body_of(version))


def learned(version: int, sent: FetchRequest) -> FetchShortcut:
    shortcut = FetchShortcut()
    learn(shortcut, version, sent)
    return shortcut


def learn(shortcut: FetchShortcut, version: int, sent: FetchRequest) -> None:
    shortcut.learn(frame(version, 1, sent), body_of(version), version, "client", sent)


def records(tmp_path: Path, size: int) -> FileSlice:
    return FileSlice(OpenFile(str(tmp_path / "log"), create=True), 0, size)


def whole(version: int, correlation_id: int, response: FetchResponse) -> list[Any]:
    """The response as `requests` sends it without the shortcut."""
    parts = fetch.API.encode_response_parts(version, response)
    head = struct.pack(">i", correlation_id) + (b"\0" if fetch.API.is_flexible(version) else b"")
    parts[0] = struct.pack(">i", len(head) + sum(map(len, parts))) + head + parts[0]
    return parts


@pytest.mark.parametrize("version", VERSIONS)
@given(epoch=INT32, offset=INT64, correlation_id=INT32)
def test_a_known_request_equals_the_decoded_one(
    version: int, epoch: int, offset: int, correlation_id: int
) -> None:
    shortcut = learned(version, request(version))
    sent = frame(version, correlation_id, request(version, epoch=epoch, offset=offset))
    found = shortcut.find(sent, version)
    assert found is not None
    assert (found[0].version, found[0].client_id) == (version, "client")
    assert found[1] == decoded(version, sent)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, []], ids=["all", "committed"])
def test_a_response_has_the_same_bytes(version: int, aborted: list[Any] | None, tmp_path: Path) -> None:
    sent = request(version)
    found = learned(version, sent).find(frame(version, 2, sent), version)
    assert found is not None
    (topic,) = sent.topics
    for size in (1, 126, 127, 128, 20_000, 1 << 20, 2**31 - 1000):
        for throttle, watermark, stable, start in ((0, 7, 7, 0), (-1, -1, -1, -1), (5, 1 << 62, 3, 0)):
            data = PartitionData(
                3, 0, watermark, stable, start, aborted_transactions=aborted, records=records(tmp_path, size)
            )
            topics = [FetchableTopicResponse(topic.topic, topic.topic_id, [data])]
            response = FetchResponse(throttle, 0, 77, topics)
            assert found[0].encode(size, response) == whole(version, size, response)


def unusual(version: int, data: PartitionData) -> dict[str, FetchResponse]:
    """Responses that differ in more than the numbers."""
    names: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= fetch.IDS_SINCE else {"topic": "topic"}

    def of(*partitions: PartitionData, **more: Any) -> FetchResponse:
        given = {"session_id": 77, "responses": [FetchableTopicResponse(**names, partitions=[*partitions])]}
        return FetchResponse(**{**given, **more})

    plain = of(data)
    return {
        "no topics": of(data, responses=[]),
        "two topics": of(data, responses=plain.responses * 2),
        "two partitions": of(data, data),
        "another topic": of(data, responses=[FetchableTopicResponse("other", UUID(int=9), [data])]),
        "another partition": of(changed(data, partition_index=4)),
        "another session": of(data, session_id=0),
        "an error": of(data, error_code=70),
        "a partition's error": of(changed(data, error_code=6)),
        "aborted transactions": of(changed(data, aborted_transactions=[AbortedTransaction(1, 2)])),
        "a replica": of(changed(data, preferred_read_replica=2)),
        "no records": of(changed(data, records=b"")),
        "an empty range": of(changed(data, records=FileSlice(data.records.file, 0, 0))),  # type: ignore[union-attr]
        "a divergence": of(changed(data, diverging_epoch=EpochEndOffset(1, 2))),
        "a leader": of(changed(data, current_leader=LeaderIdAndEpoch(1, 2))),
        "endpoints": of(data, node_endpoints=[NodeEndpoint(1, "host", 2)]),
    }


@pytest.mark.parametrize("version", [12, 16])
def test_an_unusual_response_is_encoded(version: int, tmp_path: Path) -> None:
    sent = request(version)
    found = learned(version, sent).find(frame(version, 2, sent), version)
    assert found is not None
    data = PartitionData(3, 0, 7, 7, 0, records=records(tmp_path, 5))
    for name, response in unusual(version, data).items():
        assert found[0].encode(1, response) is None, name


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unlike_request_is_decoded(version: int) -> None:
    one = request(version)
    shortcut = learned(version, one)
    sent = frame(version, 2, one)
    assert shortcut.find(sent, version) is not None
    assert shortcut.find(sent, version - 1) is None
    assert shortcut.find(sent[:-1], version) is None
    assert shortcut.find(memoryview(bytes(sent) + b"\0"), version) is None
    for other in (
        request(version, session_id=78),
        request(version, max_bytes=1),
        request(version, min_bytes=2),
        request(version, isolation_level=1),
        request(version, topics=[]),
    ):
        assert shortcut.find(frame(version, 2, other), version) is None


@pytest.mark.parametrize("version", [12, 17])
def test_requests_that_are_not_learned(version: int) -> None:
    names: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= fetch.IDS_SINCE else {"topic": "topic"}
    two = FetchTopic(**names, partitions=[FetchPartition(0), FetchPartition(1)])
    for sent in (
        request(version, topics=[]),
        request(version, topics=[two]),
        request(version, topics=[FetchTopic(**names, partitions=[FetchPartition(0)])] * 2),
        request(version, forgotten_topics_data=[ForgottenTopic(**names, partitions=[1])]),
        request(version, rack_id="r" * 600),
    ):
        assert learned(version, sent).find(frame(version, 2, sent), version) is None
    # a tagged field that the decoder skips
    sent = request(version)
    tagged = memoryview(bytes(frame(version, 1, sent)[:-1]) + b"\1\x50\1x")
    shortcut = FetchShortcut()
    shortcut.learn(tagged, body_of(version), version, "client", decoded(version, tagged))
    assert shortcut.find(tagged, version) is None


def test_handlers_may_change_the_learned_and_the_found_request() -> None:
    one = request(17, replica_state=ReplicaState(2, 3))
    shortcut = learned(17, one)
    sent = frame(17, 2, one)
    for _ in range(2):
        one.replica_id, one.max_bytes = 2, 1
        found = shortcut.find(sent, 17)
        assert found is not None
        assert found[1] == decoded(17, sent)
        one = found[1]


def test_few_requests_are_known_and_most_of_them_are_found() -> None:
    """A client whose requests are all different gets no slower."""
    shortcut = FetchShortcut()
    many = [request(12, session_id=number) for number in range(1, 2 * MOST_KNOWN)]
    for sent in many:
        learn(shortcut, 12, sent)
    known = [sent for sent in many if shortcut.find(frame(12, 2, sent), 12) is not None]
    assert known == many[:MOST_KNOWN]
    for _ in range(100):
        shortcut.find(frame(12, 2, many[0]), 12)
    for _ in range(20):
        for sent in known:
            shortcut.find(frame(12, 2, sent), 12)
    learn(shortcut, 12, many[-1])
    assert shortcut.find(frame(12, 2, many[-1]), 12) is not None
    assert shortcut.find(frame(12, 2, many[0]), 12) is None
