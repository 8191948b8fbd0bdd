"""Input that violates the protocol: its connection is closed or its request refused; others continue."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.messages import messages
from millstream_harness.protocol import APIS
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, fetch_request, produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import api_versions, fetch, metadata, produce
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    config = {"socket.request.max.bytes": "2000000", "auto.create.topics.enable": "true"}
    with InProcessBroker(tmp_path_factory.mktemp("bad-input"), config) as one:
        yield one
        assert "Traceback" not in one.said()


@pytest.fixture
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as one:
        yield one


def request_bytes(key: int, version: int, body: bytes = b"", size: int | None = None) -> bytes:
    head = struct.pack(">hhih", key, version, 1, -1)
    return struct.pack(">i", len(head + body) if size is None else size) + head + body


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "it sends HTTP (GET), and the listener PLAINTEXT speaks Kafka's protocol",
        ),
        (struct.pack(">i", -1) + b"x" * 20, "a request of -1 bytes"),
        (struct.pack(">i", 0), "a request of 0 bytes"),
        (
            struct.pack(">i", 2_000_001),
            "a request of 2000001 bytes: expected 8 to 2000000 (socket.request.max.bytes)",
        ),
        (request_bytes(999, 0), "a request of the unknown API 999 (version 0)"),
        (request_bytes(-1, 0), "a request of the unknown API -1 (version 0)"),
        (request_bytes(3, 99), "a request of Metadata in version 99: expected 0 to 13"),
        (request_bytes(0, 2), "a request of Produce in version 2: expected 3 to 13"),
        (request_bytes(3, 4, b"\0\0\0\5"), "a request that cannot be read: "),
        (request_bytes(3, 4), "a request that cannot be read: "),
        (request_bytes(1, 12, b"\xff" * 40), "a request that cannot be read: "),
        (request_bytes(11, 7, b"\0" + b"\x7f" * 9), "a request that cannot be read: "),
    ],
)
def test_it_closes_the_connection_and_says_why(broker: InProcessBroker, sent: bytes, said: str) -> None:
    before = len(broker.said())
    with Wire(broker.bootstrap) as wire, Wire(broker.bootstrap) as other:
        wire.socket.sendall(sent)
        assert wire.is_closed()
        peer = f":{wire.socket.getsockname()[1]} "
        (line,) = (line for line in broker.said()[before:].splitlines() if peer in line)
        assert said in line
        other.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b"))


def test_half_a_request_harms_nobody(broker: InProcessBroker, wire: Wire) -> None:
    with Wire(broker.bootstrap) as half:
        half.socket.sendall(half.frame(metadata.API, 12, metadata.MetadataRequest(None))[:-3])
        wire.create("other")
        half.socket.shutdown(socket.SHUT_WR)
        assert half.is_closed()
    wire.create("other-2")


def test_a_request_may_come_byte_by_byte(wire: Wire) -> None:
    wire.create("slowly")
    for byte in wire.frame(produce.API, 9, produce_request("slowly", build_batch([record("a")]))):
        wire.socket.sendall(bytes((byte,)))
    assert wire.receive().responses[0].partition_responses[0].error_code == 0


def test_api_versions_of_an_unknown_version_is_answered_in_v0(wire: Wire) -> None:
    wire.socket.sendall(request_bytes(18, 77, b"\x07garbage"))
    answer = api_versions.API.decode_response(0, wire.receive_frame(), 4)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert 18 in {key.api_key for key in answer.api_keys}
    assert wire.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b")).error_code == 0


def test_api_versions_lists_what_the_protocol_page_promises(wire: Wire) -> None:
    answer = wire.call(api_versions.API, 4, api_versions.ApiVersionsRequest("test", "1"))
    listed = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    assert listed == {key: api.versions for key, api in APIS.items()}
    assert listed[0][0] == 0, "or older librdkafka stops compressing"


def corrupted(offset: int, value: bytes) -> bytes:
    batch = bytearray(build_batch([record("a"), record("b")]))
    batch[offset : offset + len(value)] = value
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (corrupted(17, b"\0\0\0\0"), ErrorCode.CORRUPT_MESSAGE),
        (corrupted(70, b"\xff"), ErrorCode.CORRUPT_MESSAGE),
        (corrupted(8, struct.pack(">i", 10)), ErrorCode.CORRUPT_MESSAGE),
        (corrupted(8, struct.pack(">i", 10_000)), ErrorCode.INVALID_RECORD),
        (corrupted(16, b"\1"), ErrorCode.INVALID_RECORD),
        (corrupted(16, b"\3"), ErrorCode.CORRUPT_MESSAGE),
        (build_batch([record("a")])[:40], ErrorCode.INVALID_RECORD),
        (build_batch([record("a")], base_offset=5), ErrorCode.INVALID_RECORD),
        (build_batch([record("a")], last_offset=7), ErrorCode.INVALID_RECORD),
        (build_batch([record(b"x" * 1_100_000)]), ErrorCode.MESSAGE_TOO_LARGE),
        (b"", ErrorCode.INVALID_RECORD),
    ],
)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after-a-good-one"])
def test_bad_batches_are_refused(wire: Wire, batch: bytes, error: ErrorCode, warm: bool) -> None:
    topic = f"refusing-{'warm' if warm else 'cold'}"
    wire.create(topic)
    if warm:
        assert wire.produce(topic, [record("good")]).error_code == 0
    end = wire.end_offset(topic)
    response = wire.produce(topic, batch)
    assert (ErrorCode.of(response.error_code), response.base_offset) == (error, -1)
    assert response.error_message
    assert wire.end_offset(topic) == end


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (produce_request("absent", b""), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (produce_request("there", b"", partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (produce_request("there", b"", partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (produce_request("there", None), ErrorCode.INVALID_RECORD),
        (produce_request("there", build_batch([record("a")]), acks=2), ErrorCode.INVALID_REQUIRED_ACKS),
    ],
)
def test_bad_produce_requests_are_refused_each_time(
    wire: Wire, request_: produce.ProduceRequest, error: ErrorCode
) -> None:
    wire.create("there")
    for _ in range(3):
        answer = wire.call(produce.API, 9, request_)
        assert answer.responses[0].partition_responses[0].error_code == error
    assert wire.end_offset("there") == 0


def test_an_error_with_acks_0_closes_the_connection(wire: Wire) -> None:
    wire.create("fire-and-forget")
    wire.send(produce.API, 9, produce_request("fire-and-forget", build_batch([record("a")]), acks=0))
    wire._sent.clear()
    assert wire.end_offset("fire-and-forget") == 1
    wire.send(produce.API, 9, produce_request("absent", build_batch([record("a")]), acks=0))
    assert wire.is_closed()


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "ümlaut", "x" * 250, "a/b", "a\0b"])
def test_illegal_topic_names_are_refused(wire: Wire, name: str) -> None:
    asked = [metadata.MetadataRequestTopic(name=name)]
    answer = wire.call(metadata.API, 12, metadata.MetadataRequest(asked))
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_fetch_session_nobody_began_is_refused(wire: Wire) -> None:
    request = fetch_request("t", 0)
    request.session_id, request.session_epoch = 77, 3
    assert wire.call(fetch.API, 12, request).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_and_mutilated_frames_leave_the_broker_serving(
    broker: InProcessBroker, data: st.DataObject
) -> None:
    """Frames that start as a real request of any API, then lose or change bytes; and frames of noise."""
    api = data.draw(st.sampled_from(list(APIS.values())))
    version = data.draw(st.integers(*api.served))
    if data.draw(st.booleans()):
        with_header = Wire.__new__(Wire)
        with_header._number, with_header._sent, with_header.client_id = 0, [], "fuzz"
        frame = bytearray(with_header.frame(api, version, data.draw(messages(api.request, version))))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(12, len(frame) - 1))
            frame[at] = data.draw(st.integers(0, 255))
        body = bytes(frame[4 : data.draw(st.integers(12, len(frame)))])
    else:
        body = struct.pack(">hh", api.key, version) + data.draw(st.binary(min_size=4, max_size=200))
    with Wire(broker.bootstrap) as wire:
        wire.socket.sendall(struct.pack(">i", len(body)) + body)
    with Wire(broker.bootstrap) as wire:
        assert wire.call(api_versions.API, 3, api_versions.ApiVersionsRequest("a", "b")).error_code == 0


def test_too_many_connections_are_refused(start_broker: StartBroker) -> None:
    broker = start_broker({"max.connections.per.ip": "3"})
    kept = [Wire(broker.bootstrap) for _ in range(3)]
    for wire in kept:
        wire.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
    with Wire(broker.bootstrap) as refused:
        assert refused.is_closed()
    assert "refused a connection from 127.0.0.1: max.connections.per.ip=3 is reached" in broker.said()
    kept.pop().socket.close()

    def connects() -> bool:
        with Wire(broker.bootstrap) as wire:
            try:
                wire.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
            except (EOFError, OSError):
                return False
            return True

    eventually(connects, bool, "a place became free")
    for wire in kept:
        wire.socket.close()


def test_idle_connections_are_closed(start_broker: StartBroker) -> None:
    broker = start_broker({"connections.max.idle.ms": "300"})

    def answered() -> Wire | None:
        """A connection with a response: one that was slower than the limit has been closed."""
        wire = Wire(broker.bootstrap)
        try:
            wire.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
        except (EOFError, OSError):
            wire.socket.close()
            return None
        return wire

    wire = eventually(answered, bool, "a connection is fast enough")
    assert wire is not None
    with wire:
        assert wire.is_closed()


def test_nothing_was_written_where_it_should_not(broker: InProcessBroker) -> None:
    assert {path.name for path in Path(broker.folder).iterdir()} == {"data", "broker.log"}
