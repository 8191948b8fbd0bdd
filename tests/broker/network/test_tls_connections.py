"""Connections over TLS: handshakes and their limits, principals, produce and fetch, and clients without TLS."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from millstream_broker.broker import Broker
from millstream_broker.config.config import Listener
from millstream_broker.log.files import FileSlice, NotCachedError, OpenFile
from millstream_broker.network import handshakes, tls_channel
from millstream_broker.network.connection import ClientConnection
from millstream_broker.network.tls_channel import MAX_ANSWERS_BYTES, SLICE_BYTES, TlsChannel
from millstream_broker.security.session import ANONYMOUS
from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.in_process import create, running
from millstream_harness.members import until
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectFailed, TlsFailed
from millstream_kafka.protocol import fetch, metadata, produce
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

AUTHORITY = Authority()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    """A broker with one listener with TLS, and a truststore for clients."""
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    broker = AUTHORITY.issue().write(tmp_path / "broker.pem")
    return {"listeners": "SSL://127.0.0.1:0", **tls_keys(broker, tmp_path / "ca.pem")}


def listener_of(broker: Broker) -> Listener:
    (record,) = broker.replicas.metadata.state.brokers.values()
    return record.listeners[0]


def connection_of(broker: Broker) -> ClientConnection:
    (connection,) = broker.server.connections
    assert isinstance(connection, ClientConnection)
    return connection


async def connected(broker: Broker, context: ssl.SSLContext | None = None) -> Connection:
    return await Connection.open(
        "127.0.0.1", listener_of(broker).port, ssl=context or AUTHORITY.client_context()
    )


class CountingChannel(TlsChannel):
    __slots__ = ()
    loads: ClassVar[list[int]] = []

    def load(self, part: FileSlice) -> None:
        super().load(part)
        self.loads.append(self._taken)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_connection_over_tls_produces_and_fetches(
    tmp_path: Path, config: dict[str, str], version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "TlsChannel", CountingChannel)
    monkeypatch.setattr(CountingChannel, "loads", [])
    context = AUTHORITY.client_context()
    context.minimum_version = context.maximum_version = version
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker, context)
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
        assert len(CountingChannel.loads) >= 4, "encrypted in slices"
        assert max(CountingChannel.loads) == SLICE_BYTES
        assert len(records) - 32 * 1024 <= sum(CountingChannel.loads) <= len(records)
        await client.close()


async def test_a_client_without_certificate_is_anonymous(tmp_path: Path, config: dict[str, str]) -> None:
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        assert connection_of(broker).authentication.session.principal == ANONYMOUS
        assert broker.stats.tls_handshakes == 1
        await client.close()


@pytest.mark.parametrize("wanted", ["requested", "required"])
async def test_a_certificate_gives_the_principal(tmp_path: Path, config: dict[str, str], wanted: str) -> None:
    rules = {"ssl.client.auth": wanted, "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U"}
    context = AUTHORITY.client_context(AUTHORITY.issue("alice", ()), tmp_path)
    async with running(tmp_path / "log", {**config, **rules}) as broker:
        client = await connected(broker, context)
        assert connection_of(broker).authentication.session.principal == "User:ALICE"
        await client.close()


@pytest.mark.parametrize(
    ("client", "problem"),
    [
        (lambda: None, "peer did not return a certificate"),
        (
            lambda: Authority("Stranger").issue("alice", ()),
            "certificate verify failed: unable to get local issuer",
        ),
        (lambda: AUTHORITY.issue("bob", ()), "no rule of ssl.principal.mapping.rules matches CN=bob"),
    ],
    ids=["none", "of a stranger", "without rule"],
)
async def test_a_client_with_a_wrong_certificate_is_refused(
    tmp_path: Path,
    config: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    client: Callable[[], object],
    problem: str,
) -> None:
    rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=(alice)$/$1/"}
    issued = client()
    context = AUTHORITY.client_context(issued, tmp_path)  # type: ignore[arg-type]
    async with running(tmp_path / "log", {**config, **rules}) as broker:
        with pytest.raises((TlsFailed, ConnectFailed)):
            await connected(broker, context)
        await until(lambda: broker.stats.tls_failures == 1)
        assert not broker.server.connections
    (line,) = [record.message for record in caplog.records if "on listener SSL" in record.message]
    assert problem in line


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (
            b"\0\0\0\x15" + bytes(21),
            "it speaks Kafka's protocol in plain text, and the listener requires TLS",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "it sends HTTP (GET), and the listener speaks Kafka's protocol over TLS"),
        (b"SSH-2.0\r\n", "it speaks something else than TLS, and the listener requires TLS"),
    ],
)
async def test_a_client_without_tls_is_closed_at_once(
    tmp_path: Path, config: dict[str, str], caplog: pytest.LogCaptureFixture, start: bytes, problem: str
) -> None:
    async with running(tmp_path / "log", config) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener_of(broker).port)
        writer.write(start)
        assert await _rest(reader) == b"", "no alert, which clients would read as a size"
        writer.close()
    (line,) = [record.message for record in caplog.records if "closed the connection" in record.message]
    assert f"on listener SSL: {problem}" in line


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_handshake_that_never_begins_is_closed(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.01)
    async with running(tmp_path / "log", config) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener_of(broker).port)
        assert await _rest(reader) == b""
        assert broker.stats.tls_failures == 1
        assert not broker.server.handshakes.running
        writer.close()


async def test_silent_handshakes_make_room_for_others(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST_AT_ONCE", 2)
    async with running(tmp_path / "log", config) as broker:
        silent = [await asyncio.open_connection("127.0.0.1", listener_of(broker).port) for _ in range(2)]
        await until(lambda: len(broker.server.handshakes.running) == 2)
        client = await connected(broker)
        assert await _rest(silent[0][0]) == b"", "the oldest is closed"
        assert len(broker.server.handshakes.running) == 1
        await client.close()
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_has_begun_keeps_its_place(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST_AT_ONCE", 1)
    async with running(tmp_path / "log", config) as broker:
        _, writer = await asyncio.open_connection("127.0.0.1", listener_of(broker).port)
        writer.write(b"\x16\x03")
        await until(lambda: [each.received for each in broker.server.handshakes.running] == [2])
        with pytest.raises((TlsFailed, ConnectFailed)):
            await connected(broker)
        assert len(broker.server.handshakes.running) == 1
        writer.close()


async def test_handshakes_in_small_parts_make_room_for_others(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(handshakes, "PATIENCE_S", 0.2)
    async with running(tmp_path / "log", config) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener_of(broker).port)
        await until(lambda: len(broker.server.handshakes.running) == 1)
        (slow,) = broker.server.handshakes.running
        began = slow.waits_since
        for count, part in enumerate((b"\x16", b"\x03", b"\x01"), 1):
            writer.write(part)
            await until(lambda count=count: (slow.received, slow.waits_since) == (count, began))  # type: ignore[misc]
        await until(lambda: broker.server.loop.time() > began + handshakes.PATIENCE_S)
        client = await connected(broker)
        assert await _rest(reader) == b""
        await client.close()
        writer.close()


async def test_a_handshake_has_a_limit_of_bytes(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MAX_BYTES", 100)
    async with running(tmp_path / "log", config) as broker:
        with pytest.raises((TlsFailed, ConnectFailed)):
            await connected(broker)
        await until(lambda: broker.stats.tls_failures == 1)


async def test_a_listener_has_its_own_limit_of_connections(
    tmp_path: Path, config: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    limited = {
        **config,
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.name.ssl.max.connections": "1",
    }
    async with running(tmp_path / "log", limited) as broker:
        client = await connected(broker)
        with pytest.raises((TlsFailed, ConnectFailed)):
            await connected(broker)
        assert broker.stats.tls_failures == 0, "refused before its handshake"
        (record,) = broker.replicas.metadata.state.brokers.values()
        other = await Connection.open("127.0.0.1", record.listeners[1].port)
        await other.close()
        await client.close()
    assert "listener.name.ssl.max.connections=1 is reached" in caplog.text


async def test_a_closed_connection_keeps_no_memory_of_openssl(tmp_path: Path, config: dict[str, str]) -> None:
    """Without a collection of garbage, which comes after so many objects, however large."""

    def channels() -> int:
        return sum(type(each) is TlsChannel for each in gc.get_objects())

    async with running(tmp_path / "log", config) as broker:
        gc.collect()
        before = channels()
        gc.disable()
        try:
            for _ in range(3):
                client = await connected(broker)
                assert channels() == before + 1
                await client.close()
                await until(lambda: not broker.server.connections)
            assert channels() == before
        finally:
            gc.enable()


async def test_a_client_that_closes_is_forgotten(tmp_path: Path, config: dict[str, str]) -> None:
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        assert broker.server.connections
        await client.close()
        await until(lambda: not broker.server.connections)


async def test_a_client_that_closes_ends_its_long_poll(tmp_path: Path, config: dict[str, str]) -> None:
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        await create(client, "t")
        partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = fetch.FetchRequest(
            max_wait_ms=600_000, min_bytes=1, topics=[fetch.FetchTopic("t", partitions=[partition])]
        )
        waiting = asyncio.ensure_future(client.call(fetch.API, 12, request))
        await until(lambda: bool(connection_of(broker).pending))
        await client.close()
        with pytest.raises(Exception):  # noqa: B017
            await waiting
        await until(lambda: not broker.server.connections)


async def test_a_client_that_sends_no_data_in_its_records_is_closed(
    tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as updates of keys without end, which would keep the loop busy."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tls_channel, "MOST_WITHOUT_DATA", 1000)
    async with running(tmp_path / "log", config) as broker:
        host, port = "127.0.0.1", listener_of(broker).port
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = AUTHORITY.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection(host, port)
        while not broker.server.connections:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
            else:
                writer.write(outgoing.read())
                await until(lambda: bool(broker.server.connections))
        tls.write(bytes(16_000))
        writer.write(outgoing.read()[:2000])  # a record that never ends
        await until(lambda: not broker.server.connections)
        writer.close()
    assert "2000 bytes of TLS without any data" in caplog.text


async def test_an_alert_that_announces_the_end_is_an_end(tmp_path: Path, config: dict[str, str]) -> None:
    """While a poll waits, and although the client keeps its socket open until the broker answers the alert."""
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        await create(client, "t")
        await client.close()
        await until(lambda: not broker.server.connections)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", listener_of(broker).port, ssl=AUTHORITY.client_context()
        )
        partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = fetch.FetchRequest(
            max_wait_ms=600_000, min_bytes=1, topics=[fetch.FetchTopic("t", partitions=[partition])]
        )
        head = encode_request_header(RequestHeader(fetch.API.key, 12, 1, "test"))
        body = head + fetch.API.encode_request(12, request)
        writer.write(len(body).to_bytes(4, "big") + body)
        await until(lambda: broker.server.connections and connection_of(broker).pending)
        writer.close()
        await until(lambda: not broker.server.connections)


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, config: dict[str, str]) -> None:
    """By the send that follows the load."""
    (tmp_path / "segment.log").write_bytes(b"short")
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        channel = connection_of(broker)._channel
        beyond = FileSlice(OpenFile(str(tmp_path / "segment.log")), 100, 1 << 20)
        with pytest.raises(NotCachedError):
            channel.send_file(beyond, 1 << 20)
        channel.load(beyond)
        with pytest.raises(OSError, match="shorter than its log says") as error:
            channel.send_file(beyond, 1 << 20)
        assert error.value.filename == str(tmp_path / "segment.log")
        await client.close()


async def test_an_issuer_in_the_truststore_is_enough(tmp_path: Path, config: dict[str, str]) -> None:
    """As in Java: the authority above it need not be known."""
    middle = Authority("Intermediate CA", Authority("Root CA"))
    (tmp_path / "ca.pem").write_text(middle.pem)
    context = AUTHORITY.client_context(middle.issue("alice", ()), tmp_path)
    async with running(tmp_path / "log", {**config, "ssl.client.auth": "required"}) as broker:
        client = await connected(broker, context)
        assert connection_of(broker).authentication.session.principal == "User:CN=alice"
        await client.close()


async def test_requests_that_arrive_together_are_all_answered(tmp_path: Path, config: dict[str, str]) -> None:
    """Many requests in few TLS records, more than one receive takes."""
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        request = metadata.MetadataRequest(
            [metadata.MetadataRequestTopic(name=f"{n:0>200}") for n in range(200)]
        )
        request.allow_auto_topic_creation = False
        calls = [client.call(metadata.API, 4, request) for _ in range(30)]
        for answer in await asyncio.gather(*calls):
            assert len(answer.topics) == 200
        await client.close()


async def test_plaintext_and_tls_listeners_serve_side_by_side(tmp_path: Path, config: dict[str, str]) -> None:
    both = {**config, "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}
    async with running(tmp_path / "log", both) as broker:
        (record,) = broker.replicas.metadata.state.brokers.values()
        plain, secured = record.listeners
        for port, context in ((plain.port, None), (secured.port, AUTHORITY.client_context())):
            client = await Connection.open("127.0.0.1", port, ssl=context)
            answer = await client.call(metadata.API, 9, metadata.MetadataRequest())
            assert [each.port for each in answer.brokers] == [port], "each listener advertises its own"
            await client.close()


async def test_answers_that_a_client_does_not_read_are_bounded(
    tmp_path: Path, config: dict[str, str]
) -> None:
    """Each update of keys makes OpenSSL answer; Python's client cannot send many, so the answers are made here."""
    async with running(tmp_path / "log", config) as broker:
        client = await connected(broker)
        channel = connection_of(broker)._channel
        assert isinstance(channel, TlsChannel)
        channel._encrypted = memoryview(b"waits for the client")
        channel._outgoing.write(bytes(MAX_ANSWERS_BYTES))
        channel._answer()
        channel._outgoing.write(b"1")
        with pytest.raises(OSError, match="does not read the answers"):
            channel._answer()
        await client.close()
