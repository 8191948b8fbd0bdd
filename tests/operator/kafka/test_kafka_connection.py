"""A connection to brokers that do not respond."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scripted_broker import ScriptedBroker
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import ClusterClient, ConnectionLost
from millstream_kafka.protocol import create_topics
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.header import RequestHeader
from millstream_kafka.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream_kafka.protocol.schema import Struct
from millstream_operator.kafka import connection as kafka_connection
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.connection import NOWHERE, KafkaConnection
from millstream_operator.kafka.records import AdminError, NewTopic

pytestmark = pytest.mark.process


class Clock:
    """The connection's clock. Only the test moves it, and each attempt to connect, which takes ``attempt_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempt_s: float) -> None:
        self.now = 1000.0
        self.attempts = 0
        opened = KafkaConnection._open

        def attempt(connection: KafkaConnection) -> ClusterClient:
            self.attempts += 1
            self.now += attempt_s
            return opened(connection)

        monkeypatch.setattr(kafka_connection, "time", self)
        monkeypatch.setattr(KafkaConnection, "_open", attempt)

    def monotonic(self) -> float:
        return self.now


def fails(admin: KafkaAdmin) -> None:
    with pytest.raises(AdminError, match="no broker answers at"):
        admin.cluster_id()


def test_a_failure_that_took_long_is_told_at_once_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_connection, "CONNECT_TIMEOUT_S", 0.5)
    clock = Clock(monkeypatch, 4.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = KafkaAdmin(f"127.0.0.1:{silent.getsockname()[1]}")
        fails(admin)
        until = clock.now + kafka_connection.RETRY_FACTOR * 4.0
        assert admin._failed_until == until
        clock.now = until - 0.5
        fails(admin)
        assert (clock.attempts, clock.now) == (1, until - 0.5)
        clock.now = until
        fails(admin)
        assert clock.attempts == 2
        admin.close()


def test_a_refused_connection_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.1)
    admin = KafkaAdmin("127.0.0.1:1")
    fails(admin)
    assert admin._failed_until == clock.now + kafka_connection.RETRY_AFTER_S
    clock.now = admin._failed_until
    fails(admin)
    assert clock.attempts == 2


def test_a_broker_that_becomes_ready_is_tried_again_at_once(shared_broker: InProcessBroker) -> None:
    """Also by calls that follow an attempt which began before."""
    admin = KafkaAdmin(shared_broker.bootstrap)
    with pytest.raises(AdminError, match="from before"):
        admin._refuse_for_a_while("from before", time.monotonic() - 60)
    with pytest.raises(AdminError, match="from before"):
        admin.cluster_id()
    admin.retry()
    with pytest.raises(AdminError, match="begun before"):
        admin._refuse_for_a_while("begun before", time.monotonic() - 60)
    assert admin.cluster_id()
    admin.close()


def test_a_read_over_a_connection_that_was_lost_is_repeated_and_a_write_is_not(
    start_broker: Callable[..., InProcessBroker],
) -> None:
    port = fixed_port()
    broker = start_broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    admin = KafkaAdmin(broker.bootstrap)
    cluster_id = admin.cluster_id()

    broker.kill()
    broker.start()
    assert admin.cluster_id() == cluster_id
    asked: list[str] = []

    async def write(client: AdminClient) -> None:
        asked.append("write")
        admin._before(create_topics.API)
        raise ConnectionLost("127.0.0.1", port, "the broker closed the connection")

    with pytest.raises(AdminError, match="the broker closed the connection"):
        admin.call(write)
    assert asked == ["write"], "nobody knows whether the broker has carried it out"
    admin.close()


def test_retriable_refusal_is_repeated_and_another_is_not(shared_broker: InProcessBroker) -> None:
    with closing(KafkaAdmin(shared_broker.bootstrap)) as admin:
        for code, attempts in ((ErrorCode.NOT_CONTROLLER, 3), (ErrorCode.INVALID_REQUEST, 1)):
            asked: list[ErrorCode] = []

            async def refused(
                client: AdminClient, code: ErrorCode = code, asked: list[ErrorCode] = asked
            ) -> None:
                asked.append(code)
                raise ApiError(code)

            with pytest.raises(AdminError, match=f"answer: {code.name}"):
                admin.call(refused)
            assert len(asked) == attempts


def test_close_ends_connections_and_later_calls_fail(shared_broker: InProcessBroker) -> None:
    admin = KafkaAdmin(shared_broker.bootstrap)
    admin.cluster_id()
    client = admin._client
    assert client is not None
    connections = list(client._connections.values())
    assert connections
    admin.close()
    assert all(connection.is_closed for connection in connections)
    with pytest.raises(AdminError, match="its cluster is gone"):
        admin.cluster_id()


def test_address_that_is_none_is_reported() -> None:
    for bootstrap, failure in (
        (NOWHERE, "no broker of the cluster runs"),
        ("east", "no broker answers at east"),
    ):
        with pytest.raises(AdminError, match=failure):
            KafkaAdmin(bootstrap).cluster_id()


def test_a_topic_whose_minimum_is_not_told_is_not_taken_for_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restarting broker describes the partitions but not the configuration."""
    topic = MetadataResponseTopic(0, "a", partitions=[MetadataResponsePartition(0, 0, 0)])
    answers = iter([[topic], {"a": []}])
    admin = KafkaAdmin("127.0.0.1:1")
    monkeypatch.setattr(admin, "call", lambda operation: next(answers))
    with pytest.raises(AdminError, match="do not return the configuration of a"):
        admin.replicas(["a"], min_isr=True)


async def test_slow_write_does_not_fail_because_another_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both use the broker's connection, on which the response to the read comes after the other."""
    monkeypatch.setattr(kafka_connection, "CONNECT_TIMEOUT_S", 1.0)
    creating, reading = asyncio.Event(), asyncio.Event()

    async def answer(header: RequestHeader, request: Any) -> Struct:
        if header.api_key == create_topics.API.key:
            creating.set()
            await reading.wait()
            await asyncio.sleep(1.5)  # longer than the read would wait for a connection
            return create_topics.CreateTopicsResponse(topics=[create_topics.CreatableTopicResult("a")])
        brokers = [MetadataResponseBroker(0, "127.0.0.1", broker.port)]
        return MetadataResponse(cluster_id="slow", controller_id=0, brokers=brokers)

    def read() -> str:
        loop.call_soon_threadsafe(reading.set)
        return admin.cluster_id()

    loop = asyncio.get_running_loop()
    broker = ScriptedBroker(answer)
    async with broker.listening():
        with closing(KafkaAdmin(f"127.0.0.1:{broker.port}")) as admin:
            write = asyncio.create_task(asyncio.to_thread(admin.create_topics, [NewTopic("a", 1, 1, {})]))
            await creating.wait()
            assert await asyncio.to_thread(read) == "slow"
            assert await write == {"a": None}


def test_a_failed_request_cuts_no_other_on_the_same_connection(shared_broker: InProcessBroker) -> None:
    admin = KafkaAdmin(shared_broker.bootstrap)
    begun, goes_on = threading.Event(), threading.Event()
    clients: list[ClusterClient] = []

    async def slow(client: AdminClient) -> str:
        clients.append(client.cluster)
        begun.set()
        await asyncio.to_thread(goes_on.wait, 60)
        return await client.cluster_id()

    async def refused(client: AdminClient) -> None:
        clients.append(client.cluster)
        raise ApiError(ErrorCode.INVALID_REQUEST)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(admin.call, slow)
        assert begun.wait(60)
        with pytest.raises(AdminError, match="INVALID_REQUEST"):
            admin.call(refused)
        goes_on.set()
        assert found.result(60) == admin.cluster_id()
    assert clients[0] is clients[1]
    assert clients[0] not in admin._uses, "closed once nobody uses it"
    admin.close()
    assert admin._uses == {}
