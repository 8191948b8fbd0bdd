"""Connections beyond a rate: those of a listener wait, and those of an address are closed later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_broker.network import server
from millstream_harness.in_process import connected, running
from millstream_harness.members import until

PASSES = 10
"""Connections that pass at once with a rate of one a second."""


@asynccontextmanager
async def clients(broker: Broker, count: int) -> AsyncIterator[list[socket.socket]]:
    """Clients that connect and send nothing."""
    (record,) = broker.replicas.metadata.state.brokers.values()
    opened = [socket.create_connection(("127.0.0.1", record.listeners[0].port)) for _ in range(count)]
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


async def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_a_connection_beyond_the_rate_of_its_listener_waits(tmp_path: Path) -> None:
    config = {"listener.name.plaintext.max.connection.creation.rate": "1"}
    async with running(tmp_path, config) as broker:
        broker.quotas.now_ms = lambda: 1000
        async with clients(broker, PASSES + 1):
            await until(lambda: bool(broker.server.held))
            assert len(broker.server.connections) == PASSES
            await until(lambda: len(broker.server.connections) == PASSES + 1)
            assert not broker.server.held
        await until(lambda: not broker.server.connections)
        broker.quotas.now_ms = lambda: 100_000
        async with connected(broker):  # others are accepted again
            assert len(broker.server.connections) == 1


async def test_a_connection_beyond_the_rate_of_its_address_is_closed_later(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        broker.quotas.now_ms = lambda: 1000
        stored = {"connection_creation_rate": "1"}
        await broker.coordination.change_entity(Entity(ip=DEFAULT), lambda _: stored)
        async with clients(broker, PASSES + 1) as opened:
            await until(lambda: bool(broker.server.held))
            assert len(broker.server.connections) == PASSES
            assert broker.stats.connections_throttled == 1
            assert await is_closed(opened[-1])
            assert not broker.server.held
            await broker.coordination.change_entity(Entity(ip=DEFAULT), lambda _: {})
            async with connected(broker):
                assert len(broker.server.connections) == PASSES + 1


async def test_few_of_them_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_HELD", 2)
    async with running(tmp_path) as broker:
        broker.quotas.now_ms = lambda: 1000
        stored = {"connection_creation_rate": "1"}
        await broker.coordination.change_entity(Entity(ip=DEFAULT), lambda _: stored)
        async with clients(broker, PASSES + 3) as opened:
            assert await is_closed(opened[-1])
            assert broker.stats.connections_throttled == 3


async def test_a_stop_closes_connections_that_wait(tmp_path: Path) -> None:
    async with running(tmp_path, {"max.connection.creation.rate": "1"}) as broker:
        broker.quotas.now_ms = lambda: 1000
        async with clients(broker, PASSES + 1) as opened:
            await until(lambda: bool(broker.server.held))
            broker.server.close()
            assert await is_closed(opened[-1])
            assert not broker.server.held
