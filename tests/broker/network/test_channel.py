"""Channels: the seam between connections and sockets, over which TLS fits as well."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker import network
from millstream_broker.log.files import FileSlice, NotCachedError
from millstream_broker.network import server
from millstream_broker.network.channel import PlainChannel
from millstream_broker.network.connection import ClientConnection
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.secured_kafka import Authority
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import fetch, metadata, produce

pytestmark = pytest.mark.process  # openssl creates the certificate

ENCRYPTED_AT_ONCE = 256 * 1024


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
    assert touching == {"channel.py", "server.py"}, "server.py listens; channel.py does everything else"


class TlsChannel(PlainChannel):
    """A channel that encrypts. The handshake is part of its first receives; a server would run it before."""

    __slots__ = ("_decrypted", "_encrypted", "_incoming", "_outgoing", "_readable", "_taken", "_tls")
    context: ssl.SSLContext
    loads: list[int]

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(sock, loop)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._encrypted = b""
        self._taken = 0
        self._readable: Callable[[], None] | None = None
        self.receive = self._receive
        self.send = self._send

    def watch_readable(self, readable: Callable[[], None]) -> None:
        self._readable = readable
        super().watch_readable(readable)
        self._call_again()

    def unwatch_readable(self) -> None:
        self._readable = None
        super().unwatch_readable()

    def _call_again(self) -> None:
        """The socket may have nothing more to say, although decrypted bytes are left."""
        if self._incoming.pending or self._tls.pending():
            self._loop.call_soon(lambda: self._readable and self._readable())

    def _receive(self, buffer: memoryview) -> int:
        while True:
            try:
                count = self._tls.read(len(buffer), buffer)
                self._call_again()
                return count
            except ssl.SSLWantReadError:
                self._flush()
                if not (data := self._sock.recv(65536)):
                    return 0
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                return 0

    def receive_into(self, buffers: list[memoryview]) -> int:
        return self._receive(next(buffer for buffer in buffers if len(buffer)))

    def _flush(self) -> None:
        """Raises BlockingIOError until all encrypted bytes are sent."""
        self._encrypted += self._outgoing.read()
        while self._encrypted:
            self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]

    def _flushed(self) -> int:
        """Bytes that were encrypted, once they are sent."""
        self._flush()
        count, self._taken = self._taken, 0
        return count

    def _send(self, data: bytes | memoryview, flags: int) -> int:
        if not self._taken:
            self._taken = self._tls.write(data[:ENCRYPTED_AT_ONCE])
        return self._flushed()

    def send_file(self, part: FileSlice, most: int) -> int:
        if not self._taken:
            raise NotCachedError(part.file.path)
        return self._flushed()

    def load(self, part: FileSlice) -> None:
        data = os.pread(part.file.fileno(), min(part.length, ENCRYPTED_AT_ONCE), part.position)
        self.loads.append(len(data))
        self._taken = self._tls.write(data)


async def test_a_connection_over_tls_produces_and_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    certificate = authority.issue("broker")
    TlsChannel.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TlsChannel.context.load_cert_chain(certificate)
    TlsChannel.loads = []
    monkeypatch.setattr(server, "PlainChannel", TlsChannel)
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    async with running(tmp_path / "log") as broker:
        ((listener, *_),) = [one.listeners for one in broker.replicas.metadata.state.brokers.values()]
        client = await Connection.open("127.0.0.1", listener.port, ssl=trusting)
        await create(client, "t")
        values = [random.Random(size).randbytes(size) for size in (10, 700_000, 200_000, 1)]
        for value in values:  # some frames arrive whole, others in many TLS records
            batch = build_batch([Record(None, value, 1)])
            topic = produce.TopicProduceData("t", partition_data=[produce.PartitionProduceData(0, batch)])
            answer = await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 5000, [topic]))
            assert answer.responses[0].partition_responses[0].error_code == 0
        partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 22)
        request = fetch.FetchRequest(
            max_bytes=1 << 22, topics=[fetch.FetchTopic("t", partitions=[partition])]
        )
        found = await client.call(fetch.API, 12, request)
        records = bytes(found.responses[0].partitions[0].records)
        assert all(value in records for value in values)
        assert sum(TlsChannel.loads) == len(records)
        assert len(TlsChannel.loads) >= 4, "encrypted in parts"
        await client.close()


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
