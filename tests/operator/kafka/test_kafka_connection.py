"""A connection to brokers that do not respond."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError
from kafka.protocol.metadata import MetadataResponse

from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_operator.kafka import connection as kafka_connection
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import AdminError

pytestmark = pytest.mark.process


class Clock:
    """The connection's clock. Only the test moves it, and each attempt to connect, which takes ``attempt_s``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempt_s: float) -> None:
        self.now = 1000.0
        self.attempts = 0
        self._attempt_s = attempt_s
        self._listens = kafka_connection._listens
        monkeypatch.setattr(kafka_connection, "time", self)
        monkeypatch.setattr(kafka_connection, "_listens", self.listens)

    def monotonic(self) -> float:
        return self.now

    def listens(self, bootstrap: str) -> bool:
        self.attempts += 1
        self.now += self._attempt_s
        return self._listens(bootstrap)


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
    asked: list[int] = []

    def write(client: KafkaAdminClient) -> None:
        asked.append(client._manager.writes)
        client._manager.writes += 1
        raise KafkaConnectionError("the broker has gone")

    with pytest.raises(AdminError, match="the broker has gone"):
        admin.call(write)
    assert len(asked) == 1, "nobody knows whether the broker has carried it out"
    admin.close()


def test_a_connection_that_has_not_sent_all_is_closed(shared_broker: InProcessBroker) -> None:
    admin = KafkaAdmin(shared_broker.bootstrap)
    admin.cluster_id()
    assert admin._client is not None
    transports = [one.transport for one in admin._client._manager._conns.values()]
    sockets = [one._sock for one in transports]
    while transports:  # nobody but the client keeps them
        transports.pop()._write_buffer.append(b"not sent")
    admin.close()
    assert sockets
    assert {one.fileno() for one in sockets} == {-1}


def test_a_topic_whose_minimum_is_not_told_is_not_taken_for_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restarting broker describes the partitions but not the configuration."""
    partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        partition_index=0, replica_nodes=[0], isr_nodes=[0]
    )
    topic = MetadataResponse.MetadataResponseTopic(name="a", error_code=0, partitions=[partition])
    answers = iter([[topic], {"topic": {"a": {}}}])
    admin = KafkaAdmin("127.0.0.1:1")
    monkeypatch.setattr(admin, "call", lambda operation: next(answers))
    with pytest.raises(AdminError, match="do not return the configuration of a"):
        admin.replicas(["a"], min_isr=True)
