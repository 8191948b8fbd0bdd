"""Connections of a listener that requires authentication: limits before it, and sessions that end."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker
from millstream_broker.network import admission, connection, shared
from millstream_harness.in_process import running
from millstream_harness.members import until
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectionLost
from millstream_kafka.protocol import list_groups, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.errors import ErrorCode

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORD = "the password of alice"
CONFIG = {
    "listeners": "CLEAR://127.0.0.1:0,INTERNAL://127.0.0.1:0",
    "listener.security.protocol.map": "CLEAR:SASL_PLAINTEXT,INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "listener.name.clear.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clear.plain.sasl.jaas.config": f'{MODULE} required user_alice="{PASSWORD}" user_bob="b";',
    "connection.failed.authentication.delay.ms": "0",
}
RIGHT = f"\0alice\0{PASSWORD}".encode()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, CONFIG) as broker:
        yield broker


def port(broker: Broker) -> int:
    (record,) = broker.replicas.metadata.state.brokers.values()
    return next(listener.port for listener in record.listeners if listener.name == "CLEAR")


async def connect(broker: Broker) -> Connection:
    return await Connection.open("127.0.0.1", port(broker))


async def handshake(client: Connection, mechanism: str = "PLAIN") -> Any:
    return await client.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest(mechanism))


async def token(client: Connection, value: bytes = RIGHT) -> Any:
    return await client.call(sasl_authenticate.API, 2, sasl_authenticate.SaslAuthenticateRequest(value))


async def groups(client: Connection) -> Any:
    return await client.call(list_groups.API, 4, list_groups.ListGroupsRequest())


async def test_the_mechanism_of_brokers_is_on_their_listener_alone(broker: Broker) -> None:
    client = await connect(broker)
    assert (await handshake(client)).mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    await client.close()
    client = await connect(broker)
    refused = await handshake(client, "MILLSTREAM-BROKER")
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    await client.close()


async def test_mechanisms_change_at_run_time(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    key = "listener.name.clear.sasl.enabled.mechanisms"
    await broker.coordination.set_broker_config(broker.replicas.broker_id, {key: "SCRAM-SHA-512,OAUTHBEARER"})
    client = await connect(broker)
    assert (await handshake(client, "PLAIN")).mechanisms == ["SCRAM-SHA-512"]
    await client.close()
    assert caplog.text.count("listener CLEAR cannot serve OAUTHBEARER") == 1


async def test_passwords_are_in_no_log_and_no_description(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for value in (RIGHT, RIGHT + b"!"):
        client = await connect(broker)
        await handshake(client)
        await token(client, value)
        await client.close()
    assert PASSWORD not in caplog.text
    shown = [entry for entry in broker.config.describe() if "jaas" in entry.key.name]
    assert shown
    assert PASSWORD not in repr(shown)


async def test_a_client_that_does_not_authenticate_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(admission, "AUTHENTICATION_S", 0.05)
    silent = await connect(broker)
    chosen = await connect(broker)
    await handshake(chosen)
    await until(lambda: not broker.server.connections)
    assert caplog.text.count("not authenticated within") == 2
    for client in (silent, chosen):
        await client.close()


async def test_a_client_that_has_authenticated_stays(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "AUTHENTICATION_S", 0.05)
    client = await connect(broker)
    await handshake(client)
    await token(client)
    (served,) = broker.server.connections
    assert isinstance(served, connection.ClientConnection)
    assert served._admission._timer is None
    await groups(client)
    await client.close()


async def test_large_requests_before_authentication_are_limited_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_UNAUTHENTICATED_BYTES", 1_000_000)
    cut_off = struct.pack(">ihhih", 400_000, 36, 2, 1, -1) + b"x" * 1000
    open_ones = [await asyncio.open_connection("127.0.0.1", port(broker)) for _ in range(3)]
    for _, writer in open_ones[:2]:
        writer.write(cut_off)
    await until(lambda: broker.server.unauthenticated_bytes == 800_000)
    reader, writer = open_ones[2]
    writer.write(cut_off)
    assert await reader.read() == b""
    for _, writer in open_ones:
        writer.close()
    await until(lambda: broker.server.unauthenticated_bytes == 0)
    assert shared.SMALL_BYTES < 400_000


async def test_a_session_ends_and_the_client_may_authenticate_again(broker: Broker) -> None:
    broker.server._max_reauth_ms = lambda listener, mechanism: 50  # type: ignore[method-assign]
    client = await connect(broker)
    await handshake(client)
    assert (await token(client)).session_lifetime_ms == 50
    (served,) = broker.server.connections
    assert isinstance(served, connection.ClientConnection)
    await until(lambda: served.authentication.is_expired)
    broker.server._max_reauth_ms = lambda listener, mechanism: 3_600_000  # type: ignore[method-assign]
    assert (await handshake(client)).error_code == 0
    assert (await token(client)).error_code == 0
    assert served.authentication.session.principal == "User:alice"
    await groups(client)
    await client.close()


async def test_authenticating_after_the_end_of_the_session_has_a_time_limit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker.server._max_reauth_ms = lambda listener, mechanism: 50  # type: ignore[method-assign]
    client = await connect(broker)
    await handshake(client)
    await token(client)
    (served,) = broker.server.connections
    assert isinstance(served, connection.ClientConnection)
    await until(lambda: served._admission.access is broker.server.before_authentication)
    monkeypatch.setattr(admission, "AUTHENTICATION_S", 0.05)
    assert (await handshake(client)).error_code == 0
    await until(lambda: not broker.server.connections)
    assert "not authenticated within" in caplog.text
    await client.close()


async def test_a_request_after_the_end_of_the_session_closes_the_connection(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.server._max_reauth_ms = lambda listener, mechanism: 20  # type: ignore[method-assign]
    client = await connect(broker)
    await handshake(client)
    await token(client)
    (served,) = broker.server.connections
    assert isinstance(served, connection.ClientConnection)
    await until(lambda: served.authentication.is_expired)
    with pytest.raises(ConnectionLost):
        await groups(client)
    assert "ListGroups after its session has expired" in caplog.text
    await client.close()


async def test_another_principal_is_refused_when_authenticating_again(broker: Broker) -> None:
    broker.server._max_reauth_ms = lambda listener, mechanism: 3_600_000  # type: ignore[method-assign]
    client = await connect(broker)
    await handshake(client)
    await token(client)
    await handshake(client)
    refused = await token(client, b"\0bob\0b")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (
        refused.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    await until(lambda: not broker.server.connections)
    await client.close()


async def test_a_client_that_leaves_during_the_delay_costs_nothing(tmp_path: Path) -> None:
    config = {**CONFIG, "connection.failed.authentication.delay.ms": "60000"}
    async with running(tmp_path, config) as broker:
        client = await connect(broker)
        await handshake(client)
        asking = asyncio.ensure_future(token(client, b"\0alice\0wrong"))
        (served,) = broker.server.connections
        await until(lambda: served.pending)
        asking.cancel()
        await client.close()
        await until(lambda: not broker.server.connections)
        await until(lambda: not served.pending)


async def test_silent_connections_cost_little(broker: Broker) -> None:
    """Measured as 10,000 would be: by what each one takes."""
    count = 200
    open_ones = [await asyncio.open_connection("127.0.0.1", port(broker)) for _ in range(20)]
    await until(lambda: len(broker.server.connections) == 20)
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        clients = [socket.create_connection(("127.0.0.1", port(broker))) for _ in range(count)]
        for client in clients:
            client.sendall(struct.pack(">ihh", 400, 36, 2))  # the beginning of a request
        await until(lambda: len(broker.server.connections) == 20 + count)
        await until(lambda: len(broker.server.memory._frames) == count)
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    taken = sum(difference.size_diff for difference in after.compare_to(before, "filename"))
    assert taken / count < 10_000
    for client in clients:
        client.close()
    for _, writer in open_ones:
        writer.close()
    await until(lambda: not broker.server.connections)
    assert not broker.server.memory._frames


GARBAGE = [
    b"",
    b"\0",
    b"\xff" * 1000,
    struct.pack(">i", -1),
    struct.pack(">i", 3) + b"abc",
    struct.pack(">i", 2**31 - 1),
    struct.pack(">ihhih", 12, 17, 1, 1, -1) + b"\xff\xff",
    struct.pack(">ihhih", 12, 36, 2, 1, -1) + b"\xff\xff",
    struct.pack(">ihhih", 13, 18, 3, 1, -1) + b"\0\xff\xff",
    struct.pack(">ihhihb", 60, 17, 0, 1, -1, 0) + b"\x05PLAIN" + bytes(43),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_rubbish_serves_nothing_and_leaves_nothing(broker: Broker, garbage: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(broker))
    writer.write(garbage)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await until(lambda: not broker.server.connections)
    assert broker.server.unauthenticated_bytes == 0
    assert not broker.server.memory._frames
    client = await connect(broker)
    await handshake(client)
    assert (await token(client)).error_code == 0
    await client.close()


async def test_a_short_token_may_follow_the_first_version_of_the_handshake(broker: Broker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(broker))
    request = struct.pack(">hhih", 17, 0, 1, -1) + b"\0\x05PLAIN"
    tokens = b"\0bob\0b"
    writer.write(struct.pack(">i", len(request)) + request + struct.pack(">i", len(tokens)) + tokens)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)
    assert await reader.readexactly(4) == bytes(4), "an empty token of the server"
    (served,) = broker.server.connections
    assert isinstance(served, connection.ClientConnection)
    assert served.authentication.session.principal == "User:bob"
    writer.close()


async def test_a_short_token_behind_another_one_is_answered(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader, writer = await asyncio.open_connection("127.0.0.1", port(broker))
    writer.write(struct.pack(">ihhihh", 25, 17, 0, 1, -1, 13) + b"SCRAM-SHA-256")
    assert await reader.readexactly(4 + 32)
    tokens = b"n,,n=alice,r=nonce", b"", b"x"
    writer.write(b"".join(struct.pack(">i", len(token)) + token for token in tokens)[:-4])
    assert await reader.read()
    assert "authentication failed: SASL_AUTHENTICATION_FAILED" in caplog.text
    assert "the broker failed" not in caplog.text
    writer.close()
