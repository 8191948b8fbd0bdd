"""Quotas with Kafka's own tools and real clients: set, shown, and noticed by the clients that they slow down."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.java import run_kafka_tool
from millstream_harness.scenario import unique
from millstream_harness.wire import Wire
from millstream_kafka.protocol import alter_client_quotas, describe_client_quotas

pytestmark = pytest.mark.soak

Tool = Callable[..., str]


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    def call(name: str, *args: str) -> str:
        return run_kafka_tool(name, "--bootstrap-server", bootstrap, *args).stdout

    return call


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("quotas")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.fixture
def limited(bootstrap: str) -> Callable[[str, float], str]:
    """``limited("producer_byte_rate", 5)``: a client id with this quota."""

    def limit(key: str, value: float) -> str:
        client_id = unique("limited")
        entity = [describe_client_quotas.QuotaEntity("client-id", client_id)]
        operation = alter_client_quotas.QuotaOperation(key, value)
        alteration = alter_client_quotas.QuotaAlteration(entity, [operation])
        with Wire(bootstrap) as wire:
            request = alter_client_quotas.AlterClientQuotasRequest([alteration])
            assert wire.call(alter_client_quotas.API, 1, request).entries[0].error_code == 0
        return client_id

    return limit


def test_the_tool_alters_and_describes_every_kind_of_entity(tool: Tool) -> None:
    user = unique("user @")
    users, clients = ("--entity-type", "users"), ("--entity-type", "clients")
    named = {
        (*users, "--entity-name", user): "producer_byte_rate=1024,request_percentage=12.5",
        (*users, "--entity-name", user, *clients, "--entity-default"): "controller_mutation_rate=0.5",
        ("--entity-type", "ips", "--entity-name", "192.0.2.1"): "connection_creation_rate=7",
    }
    for entity, quotas in named.items():
        tool("configs", "--alter", *entity, "--add-config", quotas)
        described = tool("configs", "--describe", *entity)
        for quota in quotas.split(","):
            key, _, value = quota.partition("=")
            assert f"{key}={float(value)}" in described
    entity, quotas = next(iter(named.items()))
    tool("configs", "--alter", *entity, "--delete-config", ",".join(re.findall(r"(\w+)=", quotas)))
    assert "=" not in tool("configs", "--describe", *entity)


def test_librdkafka_notices_a_producers_quota(
    bootstrap: str, topic: str, limited: Callable[[str, float], str]
) -> None:
    events: list[ThrottleEvent] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": limited("producer_byte_rate", 10_000),
            "throttle_cb": events.append,
            "batch.size": 20_000,
        }
    )
    for _ in range(12):  # twelve seconds' worth, of which ten pass
        producer.produce(topic, bytes(10_000))
    assert producer.flush(60) == 0
    producer.poll(0)
    assert max(event.throttle_time for event in events) > 0


def test_librdkafka_notices_a_consumers_quota(
    bootstrap: str, topic: str, limited: Callable[[str, float], str]
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 20_000})
    for _ in range(12):
        producer.produce(topic, bytes(10_000))
    assert producer.flush(60) == 0
    events: list[ThrottleEvent] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": limited("consumer_byte_rate", 10_000),
            "group.id": unique("group"),
            "auto.offset.reset": "earliest",
            "throttle_cb": events.append,
        }
    )
    consumer.subscribe([topic])
    read = 0
    while read < 12:  # the last ones after a pause
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.close()
    assert max(event.throttle_time for event in events) > 0


def test_the_java_producer_notices_its_quota(
    tool: Tool, topic: str, limited: Callable[[str, float], str]
) -> None:
    client_id = limited("producer_byte_rate", 10_000)
    printed = tool(
        *("producer-perf-test", "--topic", topic, "--num-records", "12", "--record-size", "10000"),
        *("--throughput", "-1", "--print-metrics", "--command-property", f"client.id={client_id}"),
    )
    (longest,) = re.findall(r"producer-metrics:produce-throttle-time-max:\{.*?\}\s*:\s*([\d.]+)", printed)
    assert float(longest) > 0
