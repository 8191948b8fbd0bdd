"""The command and the library on Apache Kafka's secured listeners, with client properties in both spellings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import millstream as library
from millstream_harness.broker import fixed_port
from millstream_harness.command import millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_harness.secured_kafka import (
    LISTENERS,
    PASSWORD,
    SCRAM_MODULE,
    USER,
    Authority,
    secured_kafka,
    secured_settings,
)
from millstream_kafka.admin.access import ScramCredential
from millstream_kafka.scram_mechanism import ScramMechanism
from millstream_operator.kafka.admin import KafkaAdmin

pytestmark = pytest.mark.soak

Properties = Callable[..., str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("client")
    return found


class Secured(NamedTuple):
    """Addresses of LISTENERS by name."""

    addresses: dict[str, str]


@pytest.fixture(scope="module", params=["kafka", "millstream"])
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[Secured]:
    """Apache Kafka, and our broker with the same settings."""
    folder = tmp_path_factory.mktemp("secured")
    if request.param == "kafka":
        request.getfixturevalue("kafka_jars")
        with secured_kafka(folder, authority, {}) as broker:
            yield Secured(broker.addresses)
        return
    found = Secured({name: f"127.0.0.1:{fixed_port()}" for name in LISTENERS})
    plain = f"127.0.0.1:{fixed_port()}"
    protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
    settings = {
        **secured_settings(authority, {}),
        "listeners": ",".join(
            f"{name}://{at}" for name, at in {"PLAINTEXT": plain, **found.addresses}.items()
        ),
        "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
    }
    ours = InProcessBroker(folder, settings).start()
    admin = KafkaAdmin(plain)
    for mechanism in ScramMechanism:  # a request names a user once
        admin.change_scram_users([ScramCredential.of_password(USER, mechanism, PASSWORD)], [])
    admin.close()
    yield found
    ours.discard()


def java(listener: str, kafka: Secured, authority: Authority, password: str = PASSWORD) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.addresses[listener],
        "security.protocol": LISTENERS[listener],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="{USER}" \\\n  password="{password}";',
    }


@pytest.fixture
def properties(tmp_path: Path) -> Properties:
    def write(settings: dict[str, str]) -> str:
        path = tmp_path / f"{unique('client')}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(path)

    return write


def test_every_kind_of_command_uses_the_file(
    kafka: Secured, authority: Authority, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, config = unique("secured"), properties(java("SECURE", kafka, authority))

    def run(*arguments: str, stdin: bytes = b"") -> str:
        ended = millstream(*arguments, stdin=stdin, bootstrap=None)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode()

    run("topic", "create", topic, "--config", "retention.ms=86400000", "--command-config", config)
    assert run("--config", config, "transaction", "find-hanging", "--topic", topic, "-o", "json") == "[]\n"
    assert run("--config", config, "transaction", "list", "-o", "json") == "[]\n"
    run("--config", config, "topic", "alter", topic, "--config", "retention.ms=96400000")
    run("produce", topic, "--config", config, stdin=b"one\ntwo\n")
    assert run("consume", topic, "--group", topic, "--config", config) == "one\ntwo\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path(config).parent))
    folder = Path(config).parent / "millstream"
    folder.mkdir()
    Path(config).rename(folder / "prod.properties")
    assert topic in run("group", "describe", topic, "--profile", "prod")
    assert "retention.ms=96400000" in run("topic", "describe", topic, "--profile", "prod")
    findings = json.loads(run("doctor", "--clock", "--profile", "prod", "-o", "json"))
    assert [one["problem"] for one in findings] == [""] * len(findings)
    assert "sasl" in [one["step"] for one in findings]


def test_library_takes_both_spellings(kafka: Secured, authority: Authority, properties: Properties) -> None:
    topic, given = unique("library"), java("SECURE", kafka, authority)
    cluster = library.Cluster.from_file(properties(given))
    library.Admin(cluster).create_topic(topic, partitions=1)
    settings = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(authority.certificate),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    with library.Producer(kafka.addresses["SECURE"], config=settings) as producer:
        producer.send(topic, b"one")
    with library.connect(cluster, group=topic) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert next(iter(stream)).value == b"one"


@pytest.mark.parametrize(
    ("listener", "changed", "said"),
    [
        (
            "SECURE",
            {"security.protocol": "PLAINTEXT"},
            "it speaks TLS, and the client does not; set security.pro",
        ),
        (
            "CLEAR",
            {"security.protocol": "SASL_SSL"},
            "it speaks plaintext, and the client TLS; set security.pro",
        ),
        (
            "SECURE",
            {"security.protocol": "SSL"},
            "it requires SASL (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), and",
        ),
        (
            "CLEAR",
            {"sasl.mechanism": "PLAIN"},
            "it does not have the client's mechanism PLAIN; set sasl.mechanism",
        ),
        (
            "SECURE",
            {"ssl.truststore.location": "{other}"},
            "its certificate is not trusted: unable to get local issuer certificate; set ssl.truststore.location to",
        ),
        ("EXPIRED", {}, "its certificate is not trusted: certificate has expired; renew it on the broker"),
        (
            "ELSEWHERE",
            {},
            "; use a name that it is for; or set an empty ssl.endpoint.identification.algorithm",
        ),
        ("MUTUAL", {}, "it requires a certificate of the client; set ssl.keystore.location"),
        (
            "CLEAR",
            {"password": "wrong"},
            "Authentication failed during authentication due to invalid credentials",
        ),
    ],
)
def test_error_names_the_setting(
    kafka: Secured,
    authority: Authority,
    properties: Properties,
    tmp_path: Path,
    listener: str,
    changed: dict[str, str],
    said: str,
) -> None:
    changed = dict(changed)
    password = changed.pop("password", PASSWORD)
    if "ssl.truststore.location" in changed:
        changed["ssl.truststore.location"] = str(Authority(tmp_path / "other").certificate)
    config = properties(java(listener, kafka, authority, password) | changed)
    ended = millstream("topic", "list", "--config", config, bootstrap=None)
    (line,) = ended.stderr.decode().splitlines()
    assert ended.returncode == 1
    assert said in line
    if password != PASSWORD:
        assert line.endswith("check sasl.jaas.config")
    assert not [secret for secret in (PASSWORD, "wrong") if secret in line]
