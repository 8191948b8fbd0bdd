"""When another broker's process counts as ended: on real sockets, closed one by one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream_broker.cluster import liveness
from millstream_broker.cluster.liveness import Watches, is_refused
from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord
from millstream_broker.security.authentication import Authentication
from millstream_broker.security.mechanisms.inter_broker import MECHANISM, BrokerAuthenticator, InterBroker
from millstream_harness.members import until
from millstream_harness.protocol import APIS, encode_response_header
from millstream_kafka.protocol import api_versions, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.header import decode_request_header
from millstream_kafka.protocol.schema import Struct
from millstream_process.loop import loop_factory

pytestmark = pytest.mark.process

SECRET = b"of the cluster"
OURS, THEIRS = 1, 2
ALL = [api_versions.ApiVersion(api.key, *api.versions) for api in APIS.values()]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a broker waits for a refusal."""
    monkeypatch.setattr(liveness, "PROBE_S", 60.0)


class Process:
    """The sockets of a broker's process: a listener and connections. It lets brokers prove themselves."""

    def __init__(self, broker_id: int = THEIRS, host: str = "127.0.0.1", port: int = 0) -> None:
        self.broker_id = broker_id
        self.ended = 0
        """Number of connections that have ended."""
        self.reached = 0
        """Number of connections that have proven to be a broker's."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None

    async def listen(self) -> Process:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def end(self) -> None:
        self.stop_listening()
        self.hang_up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        authentication = Authentication(
            "PLAINTEXT", "127.0.0.1", {MECHANISM: BrokerAuthenticator(SECRET, self.broker_id)}
        )
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header, offset = decode_request_header(frame)
                api = APIS[header.api_key]
                request = api.decode_request(header.api_version, frame, offset)
                body = api.encode_response(header.api_version, await self._answer(authentication, request))
                flexible = api.has_flexible_response_header(header.api_version)
                response = encode_response_header(header.correlation_id, flexible) + body
                writer.write(len(response).to_bytes(4, "big") + response)
                await writer.drain()
                self.reached += authentication.session.peer_broker is not None
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            self.ended += 1
            writer.close()

    async def _answer(self, authentication: Authentication, request: Any) -> Struct:
        if isinstance(request, api_versions.ApiVersionsRequest):
            return api_versions.ApiVersionsResponse(api_keys=ALL)
        if isinstance(request, sasl_handshake.SaslHandshakeRequest):
            authentication.begin(request.mechanism)
            return sasl_handshake.SaslHandshakeResponse(0, [MECHANISM])
        try:
            answer = await authentication.step(request.auth_bytes)
        except ApiError as error:
            return sasl_authenticate.SaslAuthenticateResponse(error.code, error.message, b"", 0)
        return sasl_authenticate.SaslAuthenticateResponse(0, None, answer.auth_bytes, 0)


def record(port: int, epoch: int = 1) -> BrokerRecord:
    return BrokerRecord(THEIRS, (Listener("PLAINTEXT", "127.0.0.1", port),), epoch=epoch)


@asynccontextmanager
async def watching(*brokers: BrokerRecord) -> AsyncIterator[tuple[Watches, list[BrokerRecord]]]:
    ended: list[BrokerRecord] = []
    watches = Watches(InterBroker(OURS, "PLAINTEXT", SECRET, lambda: 7), ended.append)
    watches.watch(brokers)
    try:
        yield watches, ended
    finally:
        await watches.close()


async def a_process_ends() -> None:
    process = await Process().listen()
    async with watching(record(process.port)) as (_, ended):
        await until(lambda: process.reached)
        process.end()
        await until(lambda: ended)
        assert ended == [record(process.port)]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, loop_factory()])
def test_a_process_has_ended_when_its_connection_broke_and_its_address_refuses(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    run(a_process_ends(), make_loop)


def run(work: Coroutine[Any, Any, None], make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(work)


async def test_a_refusal_before_the_process_was_ever_reached_is_no_proof() -> None:
    """A broker registers before it listens."""
    process = Process()
    async with watching(record(process.port)) as (_, ended):
        assert await is_refused("127.0.0.1", process.port, (socket.AF_INET, ("127.0.0.1", process.port)))
        await process.listen()
        await until(lambda: process.reached)
        assert not ended
        process.end()
        await until(lambda: ended)


async def test_a_connection_that_breaks_is_no_proof() -> None:
    process = await Process().listen()
    async with watching(record(process.port)) as (_, ended):
        for times in (1, 2, 3):
            await until(lambda times=times: process.reached == times)  # type: ignore[misc]
            assert not ended
            process.hang_up()
        await until(lambda: process.reached == 4)
        process.end()
        await until(lambda: ended)


async def test_a_closed_listener_is_no_proof_while_the_connection_lasts() -> None:
    process = await Process().listen()
    async with watching(record(process.port)) as (_, ended):
        await until(lambda: process.reached)
        process.stop_listening()
        assert await is_refused("127.0.0.1", process.port, (socket.AF_INET, ("127.0.0.1", process.port)))
        assert not ended
        process.hang_up()
        await until(lambda: ended)


async def test_who_took_over_the_address_speaks_for_nobody_else() -> None:
    """Another broker listens there now. The earlier one may live elsewhere, because no connection is refused."""
    process = await Process().listen()
    async with watching(record(process.port)) as (_, ended):
        await until(lambda: process.reached)
        process.stop_listening()
        other = await Process(broker_id=3, port=process.port).listen()
        process.hang_up()
        await until(lambda: other.ended)
        assert not other.reached
        assert not ended
        other.end()
        await until(lambda: ended)


async def test_an_incarnation_ends_not_a_broker() -> None:
    process = await Process().listen()
    old, new = record(process.port, 1), record(process.port, 2)
    async with watching(old) as (watches, ended):
        await until(lambda: process.reached == 1)
        watches.watch([new])
        await until(lambda: process.reached == 2)
        watches.watch([new])
        process.end()
        await until(lambda: ended)
        assert ended == [new]
        watches.watch([])
        assert not watches._tasks


async def test_silence_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full socket queue drops packets, as a broken network does."""
    monkeypatch.setattr(liveness, "PROBE_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = silent.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        try:
            assert not await is_refused("127.0.0.1", address[1], (socket.AF_INET, address))
        finally:
            for one in waiting:
                one.close()


async def test_every_address_has_to_refuse() -> None:
    process = await Process(host="127.0.0.2").listen()
    reached = (socket.AF_INET, ("127.0.0.2", process.port))
    assert not await is_refused("127.0.0.1", process.port, reached), "only the host's address refuses"
    assert not await is_refused("127.0.0.2", process.port, (socket.AF_INET, ("127.0.0.1", process.port)))
    process.end()
    assert await is_refused("127.0.0.1", process.port, reached)
    assert not await is_refused("no.such.host.invalid", process.port, reached), "who knows where it listens"
