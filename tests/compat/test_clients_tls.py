"""Real clients over TLS 1.2 and 1.3, with client certificates: librdkafka, kafka-python, aiokafka, the Java client."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from millstream_broker.network.connection import ClientConnection
from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import java_command, run

pytestmark = pytest.mark.process

AUTHORITY = Authority()
VALUES = [bytes([number]) * size for number, size in enumerate((1, 100, 16_384, 700_000, 5))]
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture
def broker(tmp_path: Path, start_broker: Callable[..., InProcessBroker]) -> InProcessBroker:
    """A broker that requires certificates of clients, and the files of one."""
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    AUTHORITY.issue("client", ()).write(tmp_path / "client.pem")
    keystore = AUTHORITY.issue().write(tmp_path / "broker.pem")
    config = tls_keys(keystore, tmp_path / "ca.pem", ssl_client_auth="required")
    return start_broker({"listeners": "SSL://127.0.0.1:0", **config})


def context(tmp_path: Path, version: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    made.load_cert_chain(tmp_path / "client.pem")
    made.minimum_version = made.maximum_version = VERSIONS[version]
    return made


def principals(broker: InProcessBroker) -> set[str]:
    found = list(broker.on_loop.broker.server.connections)
    return {each.authentication.session.principal for each in found if isinstance(each, ClientConnection)}


@pytest.mark.parametrize("version", VERSIONS)
def test_confluent_kafka(tmp_path: Path, broker: InProcessBroker, version: str) -> None:
    config = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "client.pem"),
        "ssl.key.location": str(tmp_path / "client.pem"),
    }
    if version == "TLSv1.2":
        config["ssl.cipher.suites"] = "ECDHE-ECDSA-AES128-GCM-SHA256"
    producer = Producer(config)
    for value in VALUES:
        producer.produce("t", value)
    assert producer.flush(60) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found = [message for _ in VALUES if (message := consumer.poll(60)) is not None]
    assert [message.value() for message in found] == VALUES
    assert principals(broker) == {"User:CN=client"}
    consumer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python(tmp_path: Path, broker: InProcessBroker, version: str) -> None:
    secured = {"security_protocol": "SSL", "ssl_context": context(tmp_path, version)}
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, **secured)
    for value in VALUES:
        producer.send("t", value).get(60)
    producer.close()
    consumer = KafkaConsumer("t", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", **secured)
    assert [next(consumer).value for _ in VALUES] == VALUES
    assert principals(broker) == {"User:CN=client"}
    consumer.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_aiokafka(tmp_path: Path, broker: InProcessBroker, version: str) -> None:
    made = context(tmp_path, version)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, security_protocol="SSL", ssl_context=made)
    await producer.start()
    for value in VALUES:
        await producer.send_and_wait("t", value)
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        security_protocol="SSL",
        ssl_context=made,
    )
    await consumer.start()
    assert [(await consumer.getone()).value for _ in VALUES] == VALUES
    assert principals(broker) == {"User:CN=client"}
    await consumer.stop()


def test_the_java_client(tmp_path: Path, broker: InProcessBroker, kafka_jars: Path) -> None:
    source = Path(__file__).parent / "java" / "TlsClient.java"
    files = (str(tmp_path / "ca.pem"), str(tmp_path / "client.pem"))
    done = run(java_command(str(source), broker.bootstrap, *files))
    assert done.stdout.splitlines() == ["TLSv1.2 916490 of 916490", "TLSv1.3 916490 of 916490"]
