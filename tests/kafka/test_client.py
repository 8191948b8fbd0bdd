"""The client against brokers that are scripted to misbehave: hang, lie, close, refuse, move."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.members import until
from millstream_harness.scripted_broker import ALL, Answer, ScriptedBroker
from millstream_harness.serving import serving
from millstream_harness.wire import silent_listener
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import (
    BrokerError,
    ClusterClient,
    ConnectFailed,
    Connection,
    ConnectionLost,
    MalformedResponse,
    RequestTimedOut,
    UnsupportedApi,
    parse_bootstrap,
)
from millstream_kafka.client import connection as connection_module
from millstream_kafka.protocol import api_versions, find_coordinator, heartbeat, metadata, offset_fetch
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.header import RequestHeader, decode_request_header
from millstream_kafka.protocol.schema import Struct
from millstream_process.loop import loop_factory

pytestmark = pytest.mark.process

HEARTBEAT = heartbeat.HeartbeatRequest("group", 1, "member")


async def ok(header: RequestHeader, request: Any) -> Struct:
    return heartbeat.HeartbeatResponse(error_code=27)


async def silent(header: RequestHeader, request: Any) -> None:
    await asyncio.Event().wait()


async def hang_up(header: RequestHeader, request: Any) -> None:
    return None


def frame(correlation_id: int, body: bytes) -> bytes:
    return (4 + len(body)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


# --- Connection ---


async def test_the_highest_common_version_is_spoken() -> None:
    old = [api_versions.ApiVersion(heartbeat.API.key, 0, 2)]
    async with ScriptedBroker(ok, old).listening() as broker:
        connection = await broker.open()
        assert (await connection.call(heartbeat.API, None, HEARTBEAT)).error_code == 27
        header, request = broker.seen[-1]
        assert (header.api_version, header.client_id, request.member_id) == (2, "test", "member")
        with pytest.raises(
            UnsupportedApi, match=rf"127.0.0.1:{broker.port}: the broker does not serve Metadata"
        ):
            await connection.call(metadata.API, None, metadata.MetadataRequest())
        await connection.close()


async def test_no_version_in_common_is_said() -> None:
    future = [api_versions.ApiVersion(heartbeat.API.key, 7, 9)]
    async with ScriptedBroker(ok, future).listening() as broker:
        connection = await broker.open()
        expected = "serves Heartbeat in versions 7 to 9, we speak 0 to 4"
        with pytest.raises(UnsupportedApi, match=expected):
            await connection.call(heartbeat.API, None, HEARTBEAT)
        await connection.close()


async def test_an_older_broker_is_asked_again_in_its_version() -> None:
    async def old(header: RequestHeader, request: Any) -> Struct | bytes:
        if header.api_version > 2:
            own = api_versions.ApiVersion(api_versions.API.key, 0, 2)
            refusal = api_versions.ApiVersionsResponse(int(ErrorCode.UNSUPPORTED_VERSION), [own])
            return frame(header.correlation_id, api_versions.API.encode_response(0, refusal))
        return api_versions.ApiVersionsResponse(api_keys=ALL)

    async with ScriptedBroker(old, []).listening() as broker:
        connection = await broker.open()
        assert [header.api_version for header, _ in broker.seen] == [5, 2]
        assert connection.versions[metadata.API.key] == metadata.API.versions
        await connection.close()


async def test_a_refused_connection() -> None:
    port = fixed_port()
    with pytest.raises(ConnectFailed, match=rf"127\.0\.0\.1:{port}: "):
        await Connection.open("127.0.0.1", port)
    with pytest.raises(ConnectFailed, match=r"no-such-host\.invalid:9092: "):
        await Connection.open("no-such-host.invalid", 9092)


async def test_an_address_that_does_not_answer_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the address of a lost machine."""
    monkeypatch.setattr(connection_module, "CONNECT_S", 0.2)
    with silent_listener() as address, pytest.raises(ConnectFailed, match=r"no connection within 0\.2 s"):
        await Connection.open(*address, timeout=30.0)


@pytest.mark.parametrize(
    ("answer", "limit_s", "said"),
    [
        (silent, 0.2, "no connection within 0.2 s"),
        (hang_up, 60.0, "the broker closed the connection"),
    ],
)
async def test_what_does_not_speak_the_protocol(answer: Answer, limit_s: float, said: str) -> None:
    async with ScriptedBroker(answer, []).listening() as broker:
        with pytest.raises(ConnectFailed, match=said):
            await broker.open(timeout=limit_s)


async def test_an_http_server_is_not_a_broker() -> None:
    async def http(header: RequestHeader, request: Any) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async with ScriptedBroker(http, []).listening() as broker:
        with pytest.raises(ConnectFailed, match="a response of 1213486160 bytes: 4 to 65536 are allowed"):
            await broker.open()


async def test_a_call_times_out_and_others_go_on() -> None:
    """The late response is discarded, and the connection stays usable."""
    release = asyncio.Event()

    async def late(header: RequestHeader, request: Any) -> Struct:
        if request.member_id == "late":
            await release.wait()
        return heartbeat.HeartbeatResponse(error_code=request.generation_id)

    async with ScriptedBroker(late).listening() as broker:
        connection = await broker.open()
        with pytest.raises(RequestTimedOut, match=r"no response to Heartbeat within 0\.05 s"):
            await connection.call(
                heartbeat.API, None, heartbeat.HeartbeatRequest("g", 1, "late"), timeout=0.05
            )
        release.set()
        answer = await connection.call(heartbeat.API, None, heartbeat.HeartbeatRequest("g", 2, "m"))
        assert answer.error_code == 2
        await connection.close()


async def test_all_who_wait_learn_that_the_connection_is_lost() -> None:
    async def third(header: RequestHeader, request: Any) -> Struct | None:
        return None if request.generation_id == 2 else heartbeat.HeartbeatResponse()

    async with ScriptedBroker(third).listening() as broker:
        connection = await broker.open()
        calls = [
            connection.call(heartbeat.API, None, heartbeat.HeartbeatRequest("g", number))
            for number in range(5)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == [
            "HeartbeatResponse",
            "HeartbeatResponse",
            "ConnectionLost",
            "ConnectionLost",
            "ConnectionLost",
        ]
        assert connection.is_closed
        with pytest.raises(ConnectionLost):
            await connection.call(heartbeat.API, None, HEARTBEAT)
        await connection.close()


async def test_closing_ends_open_calls() -> None:
    async with ScriptedBroker(silent).listening() as broker:
        connection = await broker.open()
        call = asyncio.create_task(connection.call(heartbeat.API, None, HEARTBEAT))
        await broker.asked.wait()
        await connection.close()
        with pytest.raises(ConnectionLost, match="the connection was closed here"):
            await call
        await connection.close()


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        (lambda header: frame(header.correlation_id, b"\0"), "HeartbeatResponse version 4: .* is cut off"),
        (lambda header: frame(header.correlation_id + 7, b"\0" * 7), "which nothing waits for"),
        (lambda header: b"\x7f\xff\xff\xff", "a response of 2147483647 bytes: 4 to 1000000 are allowed"),
        (lambda header: b"\xff\xff\xff\xff", "a response of -1 bytes"),
        (lambda header: b"\0\0\0\0", "a response of 0 bytes"),
    ],
)
async def test_malformed_responses(answered: Callable[[RequestHeader], bytes], said: str) -> None:
    async def answer(header: RequestHeader, request: Any) -> bytes:
        return answered(header)

    async with ScriptedBroker(answer).listening() as broker:
        connection = await broker.open(max_response_bytes=1_000_000)
        with pytest.raises(MalformedResponse, match=said) as raised:
            await connection.call(heartbeat.API, None, HEARTBEAT)
        assert (raised.value.host, raised.value.port) == ("127.0.0.1", broker.port)
        assert connection.is_closed
        await connection.close()


async def test_a_response_in_single_bytes() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            header, _ = decode_request_header(request)
            body = api_versions.API.encode_response(4, api_versions.ApiVersionsResponse(api_keys=ALL))
            for byte in frame(header.correlation_id, body):
                writer.write(bytes([byte]))
                await writer.drain()

    async with serving(drip) as port:
        connection = await Connection.open("127.0.0.1", port)
        assert len(connection.versions) == len(ALL)
        await connection.close()


async def test_a_broker_that_does_not_read_holds_the_writer_back() -> None:
    async with ScriptedBroker(silent).listening() as broker:
        connection = await broker.open()
        big = heartbeat.API.encode_request_parts(0, HEARTBEAT)
        payload = [*big, memoryview(bytes(8_000_000))]
        calls = [
            asyncio.create_task(connection.call_encoded(heartbeat.API, 0, payload, timeout=0.3))
            for _ in range(4)
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, RequestTimedOut) for error in done)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 17_000_000
        await connection.close()


async def test_requests_leave_in_the_order_of_their_calls_after_back_pressure() -> None:
    async with ScriptedBroker(ok).listening() as broker:
        connection = await broker.open()

        def call(number: int) -> asyncio.Task[heartbeat.HeartbeatResponse]:
            request = heartbeat.HeartbeatRequest("group", number, "member")
            return asyncio.create_task(connection.call(heartbeat.API, 0, request))

        connection.pause_writing()
        calls = [call(0), call(1)]
        await asyncio.sleep(0)  # both wait
        calls.append(call(2))  # starts in the same turn of the loop in which the others may continue
        connection.resume_writing()
        await asyncio.gather(*calls)
        sent = [
            request.generation_id for header, request in broker.seen if header.api_key == heartbeat.API.key
        ]
        assert sent == [0, 1, 2]
        await connection.close()


# --- ClusterClient ---


class ScriptedCluster:
    """Two brokers that agree on all leaders."""

    def __init__(self) -> None:
        self.brokers = [ScriptedBroker(self.answer), ScriptedBroker(self.answer)]
        self.leader = 0
        self.electing = 0
        self.coordinator_errors = [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]

    async def answer(self, header: RequestHeader, request: Any) -> Struct:
        if header.api_key == metadata.API.key:
            leader = -1 if self.electing else self.leader
            self.electing = max(0, self.electing - 1)
            partition = metadata.MetadataResponsePartition(leader_id=leader)
            return metadata.MetadataResponse(
                cluster_id="scripted",
                controller_id=1,
                brokers=[
                    metadata.MetadataResponseBroker(node, "127.0.0.1", broker.port)
                    for node, broker in enumerate(self.brokers)
                ],
                topics=[metadata.MetadataResponseTopic(name="flights", partitions=[partition])],
            )
        if header.api_key == find_coordinator.API.key:
            if self.coordinator_errors:
                error = find_coordinator.Coordinator("group", error_code=self.coordinator_errors.pop())
                return find_coordinator.FindCoordinatorResponse(coordinators=[error])
            found = find_coordinator.Coordinator("group", 1, "127.0.0.1", self.brokers[1].port)
            return find_coordinator.FindCoordinatorResponse(coordinators=[found])
        return heartbeat.HeartbeatResponse()

    def heartbeats(self) -> list[int]:
        return [
            sum(header.api_key == heartbeat.API.key for header, _ in broker.seen) for broker in self.brokers
        ]


async def test_calls_go_to_leader_coordinator_and_controller() -> None:
    script = ScriptedCluster()
    script.electing = 2
    async with (
        script.brokers[0].listening() as first,
        script.brokers[1].listening(),
        ClusterClient(f"127.0.0.1:{first.port}", retry_backoff=0.001) as client,
    ):
        await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT)
        assert script.heartbeats() == [1, 0]
        script.leader = 1
        await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT)
        assert script.heartbeats() == [2, 0]
        client.forget_leaders("flights")
        await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT)
        assert script.heartbeats() == [2, 1]
        await client.call_coordinator("group", heartbeat.API, HEARTBEAT)
        await client.call_controller(heartbeat.API, HEARTBEAT)
        assert script.heartbeats() == [2, 3]
        assert client.cluster_id == "scripted"
        assert [broker.connections for broker in script.brokers] == [1, 1]
        with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: flights-7 does not exist"):
            await client.leader("flights", 7)


async def test_a_coordinator_error_that_stays_is_raised() -> None:
    script = ScriptedCluster()
    script.coordinator_errors = [int(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
    async with (
        script.brokers[0].listening() as first,
        script.brokers[1].listening(),
        ClusterClient(f"127.0.0.1:{first.port}") as client,
    ):
        with pytest.raises(ApiError, match="GROUP_AUTHORIZATION_FAILED"):
            await client.coordinator("group")


def up_to(api: Api[Any, Any], version: int) -> list[api_versions.ApiVersion]:
    """The versions of a broker that serves this API in older ones only."""
    others = [served for served in ALL if served.api_key != api.key]
    return [*others, api_versions.ApiVersion(api.key, 0, version)]


@pytest.mark.parametrize(("version", "requests"), [(4, 1), (3, 3)])
async def test_coordinators_of_several_groups_take_one_request_if_the_broker_can(
    version: int, requests: int
) -> None:
    async def answer(header: RequestHeader, request: Any) -> Struct:
        host, port = "127.0.0.1", broker.port
        if header.api_version < 4:
            return find_coordinator.FindCoordinatorResponse(node_id=1, host=host, port=port)
        return find_coordinator.FindCoordinatorResponse(
            coordinators=[
                find_coordinator.Coordinator(key, node, host, port)
                for node, key in reversed(list(enumerate(request.coordinator_keys)))
            ]
        )

    broker = ScriptedBroker(answer, up_to(find_coordinator.API, version))
    async with broker.listening(), ClusterClient(f"127.0.0.1:{broker.port}") as client:
        found = await client.coordinators(["a", "b", "c"])
        assert found == ({"a": 0, "b": 1, "c": 2} if version >= 4 else dict.fromkeys("abc", 1))
        assert await client.coordinators(["c", "a"]) == {key: found[key] for key in "ca"}
        assert len(broker.seen) == requests + 1  # and ApiVersions


@pytest.mark.parametrize(("version", "requests"), [(8, 1), (7, 2)])
async def test_committed_offsets_of_several_groups_take_one_request_if_the_coordinator_can(
    version: int, requests: int
) -> None:
    fetches: list[Any] = []

    async def answer(header: RequestHeader, request: Any) -> Struct:
        if header.api_key == find_coordinator.API.key:
            return find_coordinator.FindCoordinatorResponse(
                coordinators=[
                    find_coordinator.Coordinator(key, 0, "127.0.0.1", broker.port)
                    for key in request.coordinator_keys
                ]
            )
        fetches.append(request)
        entry = offset_fetch.OffsetFetchResponsePartition(0, 5, -1, "note")
        none = offset_fetch.OffsetFetchResponsePartition(1, -1, -1, "")
        if header.api_version < 8:
            return offset_fetch.OffsetFetchResponse(
                topics=[offset_fetch.OffsetFetchResponseTopic("flights", [entry, none])]
            )
        return offset_fetch.OffsetFetchResponse(
            groups=[
                offset_fetch.OffsetFetchResponseGroup(
                    group.group_id,
                    [offset_fetch.OffsetFetchResponseTopics("flights", partitions=[entry, none])],
                )
                for group in request.groups
            ]
        )

    broker = ScriptedBroker(answer, up_to(offset_fetch.API, version))
    async with broker.listening(), ClusterClient(f"127.0.0.1:{broker.port}") as client:
        found = await AdminClient(client).committed({"a": None, "b": [("flights", 0)]})
        assert found == {key: {("flights", 0): (5, "note")} for key in "ab"}
    assert len(fetches) == requests


async def test_request_that_may_not_be_sent_is_not_sent() -> None:
    def refuse(api: Api[Any, Any]) -> None:
        if api is heartbeat.API:
            raise PermissionError("not the leader")

    broker = ScriptedBroker(ok)
    async with broker.listening(), ClusterClient(f"127.0.0.1:{broker.port}", before_request=refuse) as client:
        with pytest.raises(PermissionError, match="not the leader"):
            await client.call_any(heartbeat.API, HEARTBEAT)
        assert [header.api_key for header, _ in broker.seen] == [api_versions.API.key]


async def test_without_retries_a_refused_connection_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[ClusterClient] = []
    attempt = ClusterClient._open

    async def counted(client: ClusterClient, address: tuple[str, int]) -> Connection:
        attempts.append(client)
        return await attempt(client, address)

    monkeypatch.setattr(ClusterClient, "_open", counted)
    async with ClusterClient("127.0.0.1:1", retry_timeout=0) as client:
        with pytest.raises(ConnectFailed):
            await client.metadata([])
    assert len(attempts) == 1


async def test_fixed_brokers_stay_whatever_metadata_and_coordinators_say() -> None:
    script = ScriptedCluster()
    script.coordinator_errors = []
    async with script.brokers[0].listening() as first, script.brokers[1].listening() as second:
        fixed = {7: ("127.0.0.1", first.port), 8: ("127.0.0.1", second.port), 9: ("127.0.0.1", 1)}
        async with ClusterClient(fixed, retry_timeout=0) as client:
            await client.call_node(7, heartbeat.API, HEARTBEAT)
            await client.metadata([])
            await client.coordinator("group")
            for _ in range(2):
                with pytest.raises(ConnectFailed, match=r"^127\.0\.0\.1:1: "):
                    await client.call_node(9, heartbeat.API, HEARTBEAT)
            with pytest.raises(ConnectFailed, match="the cluster has no broker 1 at the moment"):
                await client.call_node(1, heartbeat.API, HEARTBEAT)
            await client.call_node(8, heartbeat.API, HEARTBEAT)
            assert client.brokers == fixed
    assert script.heartbeats() == [1, 1]
    asked = [header.api_key for broker in script.brokers for header, _ in broker.seen]
    assert asked.count(metadata.API.key) == 1  # not for the unknown broker


async def test_it_reconnects_and_connects_once_for_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[ClusterClient] = []
    attempt = ClusterClient._open

    async def counted(client: ClusterClient, address: tuple[str, int]) -> Connection:
        try:
            return await attempt(client, address)
        finally:
            attempts.append(client)

    monkeypatch.setattr(ClusterClient, "_open", counted)
    script = ScriptedCluster()
    broker = script.brokers[0]
    async with script.brokers[1].listening():
        port = fixed_port()
        async with broker.listening(port):
            client = ClusterClient(f"127.0.0.1:{port}", retry_backoff=0.001, timeout=60)
            await asyncio.gather(*(client.call_node(0, heartbeat.API, HEARTBEAT) for _ in range(20)))
            assert broker.connections == 1
            before = await client.connection(0)
        # The broker is down: a call fails at once or waits for it, and never hangs.
        await before.closed()
        refused = len(attempts)
        waiting = asyncio.create_task(client.connection(0))
        await until(lambda: len(attempts) > refused)
        async with broker.listening(port):
            await waiting
            await client.call_node(0, heartbeat.API, HEARTBEAT)
            assert broker.connections == 2
            await client.close()


async def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    port = fixed_port()
    async with ClusterClient([f"127.0.0.1:{port}"], timeout=0.1) as client:
        with pytest.raises(ConnectFailed, match=rf"127\.0\.0\.1:{port}: "):
            await client.metadata(None)
        with pytest.raises(BrokerError):
            await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT)


async def test_a_broker_that_hangs_is_connected_to_anew() -> None:
    script = ScriptedCluster()
    hanging = True

    async def answer(header: RequestHeader, request: Any) -> Struct | None:
        if hanging and header.api_key == heartbeat.API.key:
            await asyncio.Event().wait()
        return await script.answer(header, request)

    script.brokers[0].answer = answer
    async with (
        script.brokers[0].listening() as first,
        script.brokers[1].listening(),
        ClusterClient(f"127.0.0.1:{first.port}") as client,
    ):
        with pytest.raises(RequestTimedOut):
            await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT, timeout=0.05)
        hanging = False
        await client.call_leader("flights", 0, heartbeat.API, HEARTBEAT)
        assert first.connections == 2


async def test_close_while_opening() -> None:
    async with ScriptedBroker(silent, []).listening() as broker:
        client = ClusterClient(f"127.0.0.1:{broker.port}")
        asking = asyncio.create_task(client.metadata([]))
        await broker.asked.wait()
        await client.close()
        with pytest.raises(ConnectFailed, match="the client is closed"):
            await asking


@pytest.mark.parametrize(
    "bootstrap", ["", "localhost", "localhost:", ":9092", "a:0", "a:65536", "a:1,b", "a:x"]
)
def test_a_bootstrap_that_is_wrong_is_named(bootstrap: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap: .* is not HOST:PORT"):
        parse_bootstrap(bootstrap)


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, b:2") == [("a", 1), ("b", 2)]
    assert parse_bootstrap(["[::1]:9092"]) == [("::1", 9092)]
    with pytest.raises(ValueError, match=r"no HOST:PORT is given"):
        parse_bootstrap([])


@pytest.mark.parametrize("factory", [None, loop_factory()], ids=["asyncio", "uvloop"])
def test_opening_that_is_cancelled_at_its_last_step_ends(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection exists, but the loop has not handed it over: uvloop then never reports its end."""

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        opening = asyncio.ensure_future(Connection.open("127.0.0.1", listener.getsockname()[1]))
        made = Connection.connection_made

        def cancel(connection: Connection, transport: asyncio.BaseTransport) -> None:
            made(connection, transport)
            opening.cancel()

        monkeypatch.setattr(Connection, "connection_made", cancel)
        await asyncio.wait({opening}, timeout=60)
        assert opening.cancelled()
        listener.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
