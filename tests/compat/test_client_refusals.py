"""What is not there yet: every client says so at once instead of asking until its time is up."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import TransactionalIdAuthorizationFailedError

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import KAFKA_VERSION, client_classpath, java_command
from millstream_harness.played import PASSED, play
from millstream_harness.scenario import eventually

JAVA = Path(__file__).parent / "java" / "Refusals.java"
JAVA_SCENARIOS = re.findall(r'play\("([a-z-]+)",', JAVA.read_text())
PATIENCE_S = 60
"""So long a client may ask again; a test that needs it has failed."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("refusals")) as process:
        yield process


def test_librdkafka_has_no_transactions(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "log_level": 0})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(PATIENCE_S)
    error = raised.value.args[0]
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (error.fatal(), error.retriable()) == (True, False)


async def test_aiokafka_has_no_transactions(broker: BrokerProcess) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="t")

    async def send() -> None:
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("t", b"v")

    with pytest.raises(TransactionalIdAuthorizationFailed):
        await send()
    await producer.stop()


def test_kafka_python_has_no_transactions(broker: BrokerProcess) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id="t", max_block_ms=PATIENCE_S * 1000
    )
    try:
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            producer.init_transactions()
    finally:
        producer.close(timeout=0)


@pytest.fixture(scope="module")
def java(broker: BrokerProcess) -> dict[str, str]:
    return play(java_command(str(JAVA), broker.bootstrap, classpath=client_classpath(KAFKA_VERSION)))


@pytest.mark.parametrize("scenario", JAVA_SCENARIOS)
def test_java(java: dict[str, str], scenario: str) -> None:
    assert java.get(scenario, "it was not played") == PASSED


def test_librdkafka_has_classic_groups_only(broker: BrokerProcess) -> None:
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
    broker: BrokerProcess, speak: Callable[[tuple[str, int]], None], said: str
) -> None:
    host, port = broker.bootstrap.rsplit(":", 1)
    speak((host, int(port)))
    begun = eventually(broker.said, lambda log: said in log, "the log says what it was")
    assert begun.count(said) == 1
