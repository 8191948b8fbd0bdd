"""The operator's connection to brokers whose listener asks for a login."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.in_memory import MemoryKube, stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_kafka.client import Credential, Sasl, Security
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.pools import AdminPool
from millstream_operator.kafka.records import AdminError, ScramCredential, ScramMechanism
from millstream_operator.kubernetes.credentials import SecretCredential

MECHANISM = ScramMechanism.SCRAM_SHA_512


class Secured:
    """A broker with an open listener and one that asks for a login."""

    def __init__(self, folder: Path) -> None:
        self.open, self.login = (f"127.0.0.1:{fixed_port()}" for _ in range(2))
        config = {
            "listeners": f"PLAINTEXT://{self.open},LOGIN://{self.login}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISM.label,
        }
        self.broker = InProcessBroker(folder, config).start()
        self.kube = MemoryKube()
        self.pool = AdminPool()

    @property
    def security(self) -> Security:
        password = SecretCredential.of(self.kube, "ns", "platform", "password", "the operator's password")
        return Security(sasl=Sasl(MECHANISM.label, Credential("", "", value="platform"), password))

    def set_password(self, value: str, *, in_secret: str) -> None:
        credential = ScramCredential.of_password("platform", MECHANISM, value)
        assert self.pool.at(self.open).change_scram_users([credential], []) == {"platform": None}
        data = {"password": base64.b64encode(in_secret.encode()).decode()}
        secret = {"kind": "Secret", "metadata": {"namespace": "ns", "name": "platform"}, "data": data}
        self.kube.objects["Secret", "platform"] = stored(secret)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    found = Secured(tmp_path)
    yield found
    found.pool.close()
    found.broker.discard()


def test_the_password_is_read_from_the_secret(secured: Secured) -> None:
    secured.set_password("first", in_secret="first")
    admin = secured.pool.at(secured.login, secured.security)
    assert admin.cluster_id() == secured.pool.at(secured.open).cluster_id()


def test_a_new_password_applies_to_new_connections_and_open_ones_stay(secured: Secured) -> None:
    secured.set_password("first", in_secret="first")
    admin = secured.pool.at(secured.login, secured.security)
    admin.cluster_id()
    secured.set_password("second", in_secret="first")
    assert admin.cluster_id()  # its connection is from before
    secured.set_password("second", in_secret="second")
    other = KafkaAdmin(secured.login)
    other.security = secured.security
    assert other.cluster_id()
    other.close()


def test_a_wrong_password_is_named_without_it(secured: Secured) -> None:
    secured.set_password("first", in_secret="guess")
    with pytest.raises(
        AdminError, match=r"no connection to .*the broker refused user name or password"
    ) as no:
        secured.pool.at(secured.login, secured.security).cluster_id()
    assert "guess" not in str(no.value)


def test_a_secret_that_is_missing_is_named(secured: Secured) -> None:
    with pytest.raises(AdminError, match="key password of Secret ns/platform does not exist"):
        secured.pool.at(secured.login, secured.security).cluster_id()


def test_without_security_the_listener_serves_nothing(secured: Secured) -> None:
    with pytest.raises(AdminError, match="no broker answers at"):
        secured.pool.at(secured.login).cluster_id()
