"""Missing features: every client reports them at once instead of retrying until its time limit."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import PolicyViolationError as AioPolicyViolationError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaProducer
from kafka.errors import PolicyViolationError

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import KAFKA_VERSION, client_classpath, java_command
from millstream_harness.played import PASSED, play
from millstream_harness.scenario import eventually

pytestmark = pytest.mark.process

JAVA = Path(__file__).parent / "java" / "Refusals.java"
JAVA_SCENARIOS = re.findall(r'play\("([a-z-]+)",', JAVA.read_text())
PATIENCE_S = 60
"""Longest time for a client's retries; a test that needs it has failed."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("refusals")) as process:
        yield process


MIRRORED = "elsewhere/AAAAAAAAQACAAAAAAAAAAQ"


@pytest.fixture(scope="module")
def mirror(broker: InProcessBroker) -> str:
    """A topic that is a mirror's read-only replica."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    spec = NewTopic("mirror", 1, 1, config={"millstream.mirror.source": MIRRORED})
    admin.create_topics([spec])["mirror"].result(20)
    return "mirror"


@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_cannot_write_to_a_mirror(broker: InProcessBroker, mirror: str, idempotent: bool) -> None:
    errors: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": idempotent, "log_level": 0}
    )
    producer.produce(mirror, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0].code() == KafkaError.POLICY_VIOLATION
    assert not errors[0].retriable()


async def test_aiokafka_cannot_write_to_a_mirror(broker: InProcessBroker, mirror: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
    await producer.start()
    with pytest.raises(AioPolicyViolationError):
        await producer.send_and_wait(mirror, b"v")
    await producer.stop()


def test_kafka_python_cannot_write_to_a_mirror(broker: InProcessBroker, mirror: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    with pytest.raises(PolicyViolationError):
        producer.send(mirror, b"v").get(PATIENCE_S)
    producer.close(timeout=5)


@pytest.fixture(scope="module")
def java(broker: InProcessBroker) -> dict[str, str]:
    return play(java_command(str(JAVA), broker.bootstrap, classpath=client_classpath(KAFKA_VERSION)))


@pytest.mark.parametrize("scenario", JAVA_SCENARIOS)
def test_java(java: dict[str, str], scenario: str) -> None:
    assert java.get(scenario, "it was not played") == PASSED


def test_librdkafka_has_classic_groups_only(broker: InProcessBroker) -> None:
    errors: list[KafkaError] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "group.protocol": "consumer",
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])

    def told() -> list[KafkaError]:
        message = consumer.poll(0.1)
        return [*errors, *([message.error()] if message is not None and message.error() else [])]

    try:
        eventually(
            told,
            lambda found: any("API version not supported" in one.str() for one in found),
            "the consumer says that the group protocol is not there",
        )
    finally:
        consumer.close()


def test_librdkafka_says_that_there_are_no_access_rules(broker: InProcessBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    (added,) = admin.create_acls([rule]).values()
    with pytest.raises(KafkaException) as raised:
        added.result(PATIENCE_S)
    assert raised.value.args[0].code() == KafkaError.SECURITY_DISABLED


@pytest.mark.parametrize(
    ("security", "reason"),
    [
        ({"security.protocol": "SSL"}, "connecting to a PLAINTEXT broker listener?"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
            "SASL PLAIN mechanism handshake failed",
        ),
    ],
    ids=["TLS", "SASL"],
)
def test_librdkafka_names_why_it_cannot_connect(
    shared_broker: InProcessBroker, security: dict[str, str], reason: str
) -> None:
    errors: list[str] = []
    admin = AdminClient(
        {
            "bootstrap.servers": shared_broker.bootstrap,
            "error_cb": lambda error: errors.append(error.str()),
            "log_level": 0,
            **security,
        }
    )

    def told() -> list[str]:
        admin.poll(0.1)
        return errors

    eventually(told, lambda found: any(reason in one for one in found), "the client names the reason")


def speak_tls(address: tuple[str, int]) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(address) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="localhost")


def speak_http(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address)
    connection.request("GET", "/metrics")
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()


@pytest.mark.parametrize(
    ("speak", "said"),
    [
        (
            speak_tls,
            "it speaks TLS, and the listener PLAINTEXT does not: set its security.protocol=PLAINTEXT",
        ),
        (
            speak_http,
            "it sends HTTP (GET), and the listener PLAINTEXT speaks Kafka's protocol; health and metrics",
        ),
    ],
)
def test_another_protocol_is_named_in_the_log(
    broker: InProcessBroker, speak: Callable[[tuple[str, int]], None], said: str
) -> None:
    host, port = broker.bootstrap.rsplit(":", 1)
    speak((host, int(port)))
    begun = eventually(broker.said, lambda log: said in log, "the log says what it was")
    assert begun.count(said) == 1
