"""`millstream doctor` with Apache Kafka's listeners: TLS, certificates of clients, SASL, and plaintext."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.doctor import all_findings, findings
from millstream_harness.kafka import KafkaProcess
from millstream_harness.secured_kafka import PASSWORD, USER, Authority, secured_kafka

pytestmark = pytest.mark.soak

STEPS = ["name", "port", "protocol", "versions", "metadata", "advertised", "clock"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("client")
    return found


@pytest.fixture(scope="module")
def kafka(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[KafkaProcess]:
    with secured_kafka(tmp_path_factory.mktemp("kafka"), authority, {}) as broker:
        yield broker


@pytest.fixture
def trusting(authority: Authority) -> dict[str, object]:
    return {"ssl_ca_location": authority.certificate}


def test_kafka_is_well(kafka: KafkaProcess, authority: Authority, trusting: dict[str, object]) -> None:
    """Without TLS, with a client certificate, and with SASL; the first commit creates __consumer_offsets."""
    certificate = {"ssl_certificate_location": authority.folder / "client.crt"}
    certificate |= {"ssl_key_location": authority.folder / "client.key"}
    logged_in = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD}
    for address, steps, config in (
        (kafka.bootstrap, STEPS, {}),
        (
            kafka.addresses["MUTUAL"],
            [*STEPS[:2], "tls", *STEPS[2:]],
            {"security_protocol": "SSL", **trusting, **certificate},
        ),
        (
            kafka.addresses["SECURE"],
            [*STEPS[:2], "tls", *STEPS[2:4], "sasl", *STEPS[4:]],
            {"security_protocol": "SASL_SSL", **trusting, **logged_in},
        ),
    ):
        found = all_findings(address, "--clock", status=0, **config)
        assert [one["step"] for one in found] == steps
        assert found[-1]["fact"].startswith("broker 1, within 0.")


def test_a_client_without_tls_at_a_port_that_speaks_it(kafka: KafkaProcess) -> None:
    for listener in ("SECURE", "MUTUAL", "EXPIRED"):
        for protocol in ("plaintext", "sasl_plaintext"):
            found = findings(kafka.addresses[listener], security_protocol=protocol)
            assert list(found) == ["name", "port", "protocol"]
            assert found["protocol"]["problem"] == (
                "it speaks TLS, and the client does not; set security.protocol=SSL, or use a plaintext port"
            )


def test_a_client_with_tls_at_a_port_that_speaks_plaintext(
    kafka: KafkaProcess, trusting: dict[str, object]
) -> None:
    for address in (kafka.bootstrap, kafka.addresses["CLEAR"]):
        for protocol in ("ssl", "sasl_ssl"):
            found = findings(address, security_protocol=protocol, **trusting)
            assert list(found) == ["name", "port", "tls"]
            assert found["tls"]["problem"] == (
                "it speaks plaintext, and the client TLS; set security.protocol=PLAINTEXT, or use a TLS port"
            )


@pytest.mark.parametrize(
    ("listener", "problem"),
    [
        (
            "MUTUAL",
            "it requires a certificate of the client; set ssl.certificate.location and ssl.key.location",
        ),
        ("EXPIRED", "its certificate is not trusted: certificate has expired; "),
        ("ELSEWHERE", "its certificate is not trusted: IP address mismatch, "),
    ],
)
def test_certificates(kafka: KafkaProcess, trusting: dict[str, object], listener: str, problem: str) -> None:
    found = findings(kafka.addresses[listener], security_protocol="SSL", **trusting)
    assert list(found) == ["name", "port", "tls"]
    assert found["tls"]["problem"].startswith(problem)


def test_a_certificate_of_another_authority(
    kafka: KafkaProcess, trusting: dict[str, object], tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    other.issue("client")
    own = {
        "ssl_certificate_location": other.folder / "client.crt",
        "ssl_key_location": other.folder / "client.key",
    }
    found = findings(kafka.addresses["MUTUAL"], security_protocol="SSL", **trusting, **own)
    assert found["tls"]["problem"].startswith("it does not accept the client's certificate (")


@pytest.mark.parametrize(
    ("listener", "config", "problem"),
    [
        (
            "SECURE",
            {"security_protocol": "SSL"},
            "it requires SASL (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), and the client does not use it; "
            "set security.protocol=SASL_SSL, sasl.mechanism, sasl.username and sasl.password",
        ),
        (
            "CLEAR",
            {},
            "it requires SASL (SCRAM-SHA-512), and the client does not use it; "
            "set security.protocol=SASL_PLAINTEXT, sasl.mechanism, sasl.username and sasl.password",
        ),
        (
            "CLEAR",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
            "it does not have the client's mechanism PLAIN; set sasl.mechanism to SCRAM-SHA-512",
        ),
        (
            "",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
            "it does not use SASL, and the client does; set security.protocol=PLAINTEXT",
        ),
    ],
)
def test_sasl(
    kafka: KafkaProcess, trusting: dict[str, object], listener: str, config: dict[str, object], problem: str
) -> None:
    config = config | (trusting if config.get("security_protocol") == "SSL" else {})
    address = kafka.addresses[listener] if listener else kafka.bootstrap
    found = findings(address, **config)
    assert list(found)[-1] == "sasl"
    assert found["sasl"]["problem"] == problem


def test_a_password_that_is_wrong(kafka: KafkaProcess, trusting: dict[str, object]) -> None:
    """librdkafka retries for ever, and in the end reports only a failed transport."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": "wrong"}
    found = findings(kafka.addresses["SECURE"], security_protocol="SASL_SSL", **trusting, **login)
    assert not found["sasl"]["problem"]
    assert found["metadata"]["problem"] == (
        f"{kafka.addresses['SECURE']} refuses this client "
        "(SASL authentication error: Authentication failed: Invalid username or password): "
        "check sasl.username and sasl.password"
    )
