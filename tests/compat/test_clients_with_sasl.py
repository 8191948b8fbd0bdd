"""Clients log in by each mechanism, after Kafka's own tool has added their user; a wrong password is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from kafka import KafkaProducer

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import run_kafka_tool
from millstream_harness.scenario import unique

pytestmark = pytest.mark.soak

USER, PASSWORD = "alice", "a=secret, of alice"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MODULES = "org.apache.kafka.common.security"
JAVA_MODULES = {
    "PLAIN": f"{MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{MODULES}.scram.ScramLoginModule",
}
KEY = rsa.generate_private_key(65537, 2048)
CONFIG = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT",
    "listener.name.clear.sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
    "listener.name.clear.oauthbearer.sasl.oauthbearer.expected.issuer": "the provider",
    "listener.name.clear.oauthbearer.sasl.oauthbearer.expected.audience": "millstream",
    "listener.name.clear.plain.sasl.jaas.config": f'{JAVA_MODULES["PLAIN"]} required user_{USER}="{PASSWORD}";',
    "listener.name.clear.connections.max.reauth.ms": "60000",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    folder = tmp_path_factory.mktemp("sasl")
    keys = folder / "keys.json"
    keys.write_text(
        json.dumps({"keys": [{**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "1"}]})
    )
    url = {"listener.name.clear.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri()}
    with InProcessBroker(folder / "broker", {**CONFIG, **url}) as broker:
        asked = ("--bootstrap-server", broker.bootstrap, "--entity-type", "users", "--entity-name", USER)
        for name in MECHANISMS[1:]:  # as with Kafka, one request changes one credential of a user
            config = f"{name}=[iterations=8192,password={password(name)}]"
            run_kafka_tool("configs", *asked, "--alter", "--add-config", config)
        shown = run_kafka_tool("configs", *asked, "--describe").stdout
        assert "SCRAM-SHA-256=iterations=8192" in shown
        assert "SCRAM-SHA-512=iterations=8192" in shown
        yield broker


@pytest.fixture
def bootstrap(broker: InProcessBroker) -> str:
    (record,) = broker.on_loop.broker.replicas.metadata.state.brokers.values()
    return next(f"127.0.0.1:{listener.port}" for listener in record.listeners if listener.name == "CLEAR")


def password(mechanism: str) -> str:
    return PASSWORD if mechanism == "PLAIN" else PASSWORD.replace(",", "")


def librdkafka(bootstrap: str, mechanism: str, secret: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": secret,
    }


def python(bootstrap: str, mechanism: str, secret: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": secret,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_client_produces(bootstrap: str, mechanism: str) -> None:
    topic = unique("sasl")
    producer = Producer(librdkafka(bootstrap, mechanism, password(mechanism)))
    producer.produce(topic, b"librdkafka")
    assert producer.flush(30) == 0
    kafka_python = KafkaProducer(**python(bootstrap, mechanism, password(mechanism)))
    kafka_python.send(topic, b"kafka-python").get(30)
    kafka_python.close()
    aio = AIOKafkaProducer(**python(bootstrap, mechanism, password(mechanism)))
    await aio.start()
    await aio.send_and_wait(topic, b"aiokafka")
    await aio.stop()
    consumer = Consumer(
        {
            **librdkafka(bootstrap, mechanism, password(mechanism)),
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found = [message.value() for message in consumer.consume(3, timeout=60)]
    consumer.close()
    assert found == [b"librdkafka", b"kafka-python", b"aiokafka"]


REFUSED = """
import json, sys
from kafka import KafkaProducer
from kafka.errors import KafkaError
try:
    KafkaProducer(**json.loads(sys.argv[1]), bootstrap_timeout_ms=5000)
except KafkaError:
    print("refused")
"""


def kafka_python_is_refused(bootstrap: str, mechanism: str) -> None:
    """In a process of its own, as its constructor raises and leaves sockets open."""
    settings = json.dumps(python(bootstrap, mechanism, "wrong"))
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, settings], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_client_reports_a_wrong_password(bootstrap: str, mechanism: str) -> None:
    errors: list[KafkaError] = []
    admin = AdminClient({**librdkafka(bootstrap, mechanism, "wrong"), "error_cb": errors.append})
    while not errors:
        admin.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    kafka_python_is_refused(bootstrap, mechanism)
    aio = AIOKafkaProducer(**python(bootstrap, mechanism, "wrong"))
    with pytest.raises(AioKafkaError):
        await aio.start()
    await aio.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_produces_and_consumes(bootstrap: str, mechanism: str, tmp_path: Path) -> None:
    topic = unique("sasl-java")
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={JAVA_MODULES[mechanism]} required username="{USER}" password="{password(mechanism)}";\n'
    )
    config = "--command-config"
    asked = ("--bootstrap-server", bootstrap, "--topic", topic)
    run_kafka_tool("console-producer", *asked, config, str(properties), stdin="one\ntwo\n")
    consumed = run_kafka_tool(
        "console-consumer", *asked, config, str(properties), "--from-beginning", "--max-messages", "2"
    )
    assert consumed.stdout.split() == ["one", "two"]


ODD_USER = "alice, of a=b"


@pytest.fixture(scope="module")
def odd_user(broker: InProcessBroker) -> str:
    """A user of SCRAM whose name has characters that the mechanism escapes, which kafka-python 3.0 does not do."""
    asked = ("--bootstrap-server", broker.bootstrap, "--entity-type", "users", "--entity-name", ODD_USER)
    for name in MECHANISMS[1:]:
        run_kafka_tool("configs", *asked, "--alter", "--add-config", f"{name}=[password=secret]")
    return ODD_USER


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
async def test_a_user_with_a_comma_in_its_name_logs_in(
    bootstrap: str, odd_user: str, mechanism: str, tmp_path: Path
) -> None:
    producer = Producer({**librdkafka(bootstrap, mechanism, "secret"), "sasl.username": odd_user})
    producer.produce(unique("odd"), b"librdkafka")
    assert producer.flush(30) == 0
    aio = AIOKafkaProducer(**{**python(bootstrap, mechanism, "secret"), "sasl_plain_username": odd_user})
    await aio.start()
    await aio.stop()
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={JAVA_MODULES[mechanism]} required username="{odd_user}" password="secret";\n'
    )
    run_kafka_tool("topics", "--list", "--bootstrap-server", bootstrap, "--command-config", str(properties))


def token(audience: str) -> tuple[str, float]:
    now = time.time()
    claims = {"sub": "alice", "iss": "the provider", "aud": audience, "iat": int(now), "exp": int(now) + 60}
    return jwt.encode(claims, KEY, "RS256", {"kid": "1"}), now + 60


def by_token(bootstrap: str, audience: str, errors: list[KafkaError]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda config: token(audience),
            "error_cb": errors.append,
        }
    )


def test_a_client_logs_in_by_a_token(broker: InProcessBroker, bootstrap: str) -> None:
    topic = unique("sasl-token")
    producer = by_token(bootstrap, "millstream", [])
    delivered: list[Any] = []
    producer.produce(topic, b"by token", on_delivery=lambda error, message: delivered.append(error))
    assert producer.flush(30) == 0
    assert delivered == [None]


def test_a_client_reports_a_refused_token(broker: InProcessBroker, bootstrap: str) -> None:
    errors: list[KafkaError] = []
    producer = by_token(bootstrap, "another service", errors)
    while not errors:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0].str()
