"""Channels: the seam between connections and sockets, for plain text and TLS."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

from millstream_broker import network
from millstream_broker.network.connection import ClientConnection
from millstream_harness.in_process import connected, running
from millstream_harness.members import until
from millstream_kafka.protocol import metadata


def test_only_channels_touch_the_sockets_of_clients() -> None:
    touching = set()
    for path in Path(network.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
        }
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if imported & {"socket", "fcntl", "termios", "ssl"} or names & {
            "sendfile",
            "add_reader",
            "add_writer",
        }:
            touching.add(path.name)
    assert touching == {"channel.py", "tls_channel.py", "handshakes.py", "server.py"}, "server.py listens"


async def test_a_connection_answers_once_it_is_read_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        (connection,) = broker.server.connections
        assert isinstance(connection, ClientConnection)
        connection._channel.unwatch_readable()
        answer = asyncio.ensure_future(client.call(metadata.API, 9, metadata.MetadataRequest()))
        await until(connection._channel.arrived)
        async with connected(broker) as other:  # which is served meanwhile
            await other.call(metadata.API, 9, metadata.MetadataRequest())
        assert not answer.done()
        connection.feed()
        assert (await answer).brokers
