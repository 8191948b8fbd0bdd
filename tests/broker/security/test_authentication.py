"""Sessions of clients, and what a listener serves before a client has authenticated."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker import api, startup
from millstream_broker.broker import Broker
from millstream_broker.config.config import Listener
from millstream_broker.network.connection import ClientConnection
from millstream_broker.network.handlers import REGISTERED, RequestContext
from millstream_broker.network.server import Listening, bind
from millstream_broker.security.authentication import Authentication, Identity, Step
from millstream_broker.security.mechanisms.inter_broker import MECHANISM, BrokerAuthenticator, InterBroker
from millstream_broker.security.session import ANONYMOUS, ClientSession, PeerBroker
from millstream_harness.in_process import connected, running
from millstream_harness.members import until
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectFailed, ConnectionLost
from millstream_kafka.protocol import list_groups, metadata, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes, Struct

SECRET = b"secret of the cluster"
HOUR_S = 3600
MAX_RECEIVED = 524_288
"""The default of sasl.server.max.receive.size."""


def bind_secured(listener: Listener) -> Listening:
    bound, sock = bind(listener)
    return replace(bound, protocol="SASL_PLAINTEXT"), sock


@pytest.fixture
async def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker whose listener requires authentication, by the mechanism for brokers alone."""
    monkeypatch.setattr(startup, "bind", bind_secured)
    async with running(tmp_path) as broker:
        yield broker


def connection_of(broker: Broker) -> ClientConnection:
    (connection,) = broker.server.connections
    assert isinstance(connection, ClientConnection)
    return connection


async def as_broker(broker: Broker, secret: bytes | None = None) -> Connection:
    """A connection authenticated as broker 5."""
    (record,) = broker.replicas.metadata.state.brokers.values()
    secret = broker.coordination.secret if secret is None else secret
    return await InterBroker(5, "PLAINTEXT", secret, lambda: 7).connect(record, "test", timeout_s=10)


async def test_a_request_before_authentication_closes_the_connection(
    secured: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(secured) as client:  # ApiVersions is served
        with pytest.raises(ConnectionLost):
            await client.call(metadata.API, 9, metadata.MetadataRequest())
    assert "Metadata before authentication, which PLAINTEXT requires" in caplog.text


async def test_a_large_frame_before_authentication_closes_the_connection(
    secured: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(secured) as client:
        large = sasl_authenticate.SaslAuthenticateRequest(bytes(MAX_RECEIVED))
        with pytest.raises(ConnectionLost):
            await client.call(sasl_authenticate.API, 2, large)
    assert f"expected 8 to {MAX_RECEIVED} (before authentication)" in caplog.text


async def test_an_unknown_mechanism_is_refused_with_those_of_the_listener(secured: Broker) -> None:
    async with connected(secured) as client:
        answer = await client.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest("PLAIN"))
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [MECHANISM])


async def test_authentication_opens_all_apis_and_sizes(secured: Broker) -> None:
    client = await as_broker(secured)
    groups = ["x" * 1000] * (MAX_RECEIVED // 1000 + 1)
    await client.call(list_groups.API, 4, list_groups.ListGroupsRequest(groups))  # a large frame comes first
    assert (await client.call(metadata.API, 9, metadata.MetadataRequest())).brokers
    peer = PeerBroker(5, 7)
    expected = ClientSession("Broker:5", peer, "PLAINTEXT", "127.0.0.1", client_id="test")
    assert connection_of(secured).authentication.session == expected
    await client.close()


async def test_a_wrong_secret_opens_nothing(secured: Broker) -> None:
    with pytest.raises(ConnectFailed, match="SASL_AUTHENTICATION_FAILED"):
        await as_broker(secured, b"another")
    await until(lambda: not secured.server.connections)


async def test_a_failed_exchange_leaves_the_session() -> None:
    authentication = Authentication("PLAINTEXT", "127.0.0.1", {MECHANISM: BrokerAuthenticator(SECRET, 0)})
    before = authentication.session
    assert before == ClientSession(ANONYMOUS, None, "PLAINTEXT", "127.0.0.1")
    for message in (b"", b"x" * 44):
        authentication.begin(MECHANISM)
        assert len((await authentication.step(b"")).auth_bytes) == 32
        with pytest.raises(ApiError) as failed:
            await authentication.step(message)
        assert failed.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ApiError) as ended:
            await authentication.step(b"")
        assert ended.value.code is ErrorCode.ILLEGAL_SASL_STATE
    assert authentication.session is before


def test_a_mechanism_of_no_listener_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        Authentication("PLAINTEXT", "127.0.0.1").begin(MECHANISM)
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE


class Token:
    """A mechanism that knows a user by a token, which it looks up elsewhere; the token lives for an hour."""

    def begin(self) -> Token:
        return self

    def guesses(self, auth_bytes: Bytes) -> str:
        return ""

    async def step(self, auth_bytes: Bytes) -> Step:
        await asyncio.sleep(0)
        if bytes(auth_bytes) != b"token of alice":
            raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "unknown token")
        ends = asyncio.get_running_loop().time() + HOUR_S
        return Step(b"welcome", Identity("User:alice", expires_at=ends))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ClientSession]:
    """The sessions of the ListGroups requests that a broker handles, which starts after this."""
    seen: list[ClientSession] = []

    def note(context: RequestContext, request: list_groups.ListGroupsRequest) -> Struct:
        seen.append(context.session)
        return list_groups.ListGroupsResponse()

    api.load()
    registration = replace(REGISTERED[list_groups.API.key], function=note, needs=())
    monkeypatch.setitem(REGISTERED, list_groups.API.key, registration)
    return seen


async def test_another_mechanism_begins_a_session(seen: list[ClientSession], secured: Broker) -> None:
    secured.server._mechanisms = {"PLAINTEXT": {"TOKEN": Token()}}
    async with connected(secured) as client:
        await client.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest("TOKEN"))
        request = sasl_authenticate.SaslAuthenticateRequest(b"token of alice")
        answer = await client.call(sasl_authenticate.API, 2, request)
        assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b"welcome")
        assert answer.session_lifetime_ms > HOUR_S * 1000 - 60_000
        for _ in range(2):
            await client.call(list_groups.API, 4, list_groups.ListGroupsRequest())
    first, second = seen
    assert first is second
    assert first[:4] == ("User:alice", None, "PLAINTEXT", "127.0.0.1")
    assert first.expires_at is not None


class Refusing(Token):
    """A mechanism that hides from the client why it is refused, as OAUTHBEARER does."""

    async def step(self, auth_bytes: Bytes) -> Step:
        if bytes(auth_bytes) == b"acknowledged":
            raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "refused")
        return Step(b"refused", problem="its token is of yesterday")


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize("version", [0, 1])
async def test_the_log_has_the_reason_that_a_client_does_not_get(
    secured: Broker, caplog: pytest.LogCaptureFixture, version: int, acknowledges: bool
) -> None:
    caplog.set_level(logging.INFO)
    secured.server._mechanisms = {"PLAINTEXT": {"TOKEN": Refusing()}}
    (record,) = secured.replicas.metadata.state.brokers.values()
    reader, writer = await asyncio.open_connection("127.0.0.1", record.listeners[0].port)
    frames = [struct.pack(">hhihh", 17, version, 1, -1, 5) + b"TOKEN"]
    for token in (b"token", b"acknowledged")[: 2 if acknowledges else 1]:
        request = struct.pack(">hhihi", 36, 0, 1, -1, len(token)) + token
        frames.append(request if version else token)
    writer.write(b"".join(struct.pack(">i", len(each)) + each for each in frames))
    if acknowledges:
        await reader.read()
    else:  # as aiokafka
        await reader.readuntil(b"refused")
    writer.close()
    await until(lambda: not secured.server.connections)
    assert caplog.text.count("on listener PLAINTEXT: authentication failed: its token is of yesterday") == 1


async def test_a_failed_exchange_closes_the_connection(
    secured: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secured.server._mechanisms = {"PLAINTEXT": {"TOKEN": Token()}}
    async with connected(secured) as client:
        await client.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest("TOKEN"))
        request = sasl_authenticate.SaslAuthenticateRequest(b"another")
        answer = await client.call(sasl_authenticate.API, 2, request)
        assert (answer.error_code, answer.error_message) == (58, "unknown token")
        await until(lambda: not secured.server.connections)
    assert "on listener PLAINTEXT: authentication failed: unknown token" in caplog.text
