"""The keys of the connection to ZooKeeper, and the JAAS file that KAFKA_OPTS names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.cluster.joining import shared_store
from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.config.zookeeper_keys import JAAS, login_module
from millstream_broker.main import read_config

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
CLIENT = f'{MODULE} required username="kafka" password="sesame";'
ZOOKEEPER = {"zookeeper.connect": "zk:2181"}


def of_kafka_opts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: str = ""
) -> BrokerConfig:
    """The configuration of a broker with this JAAS file."""
    file = tmp_path / "a jaas.conf"
    file.write_text(text)
    monkeypatch.setenv("KAFKA_OPTS", f'-Xmx1G "-Djava.security.auth.login.config={file}" {options}')
    return read_config([], ["zookeeper.connect=zk:2181"])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"Client {{ {CLIENT} }};", ""),
        (f'KafkaServer {{ M required a="}}"; N required; }}; // theirs\n"Client" {{\n {CLIENT}\n}};\n', ""),
        (f"Zoo {{ {CLIENT} }};", "-Dzookeeper.sasl.clientconfig=Zoo"),
    ],
)
def test_credentials_are_read_from_the_file_of_kafka_opts(
    text: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = of_kafka_opts(tmp_path, monkeypatch, text, options)
    assert login_module(config.text(JAAS)).options == {"username": "kafka", "password": "sesame"}
    assert config.shown(JAAS) == "[hidden]"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("KafkaServer { M required; };", ""),
        ("", ""),
        (f"Client {{ {CLIENT} }};", "-Dzookeeper.sasl.client=false"),
    ],
)
def test_a_file_without_the_section_gives_no_credentials(
    text: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_kafka_opts(tmp_path, monkeypatch, text, options)[JAAS] is None


def test_a_broker_without_zookeeper_does_not_read_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Djava.security.auth.login.config=/nowhere")
    assert read_config([], [])[JAAS] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Client { M required; };", "the login module is M: expected org.apache.zookeeper"),
        (f"Client {{ {CLIENT} {CLIENT} }};", "has 2 login modules: expected 1"),
        (f"Client {{ {CLIENT} }}", "expected MODULE required"),
        (f"Client {{ {CLIENT} }}; and more", "the file cannot be read: expected sections"),
        (f'Client {{ {MODULE} required username="kafka"; }};', "password is missing"),
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^KAFKA_OPTS: .*jaas\.conf: section Client: ") as error:
        of_kafka_opts(tmp_path, monkeypatch, text)
    assert problem in str(error.value)
    assert "sesame" not in str(error.value)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Djava.security.auth.login.config=/nowhere")
    with pytest.raises(ConfigError, match="/nowhere: cannot be read: No such file"):
        read_config([], ["zookeeper.connect=zk:2181"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({JAAS: f'{MODULE} required username="kafka" password="sesame"'}, "expected MODULE required"),
        ({JAAS: 'Krb5LoginModule required password="sesame";'}, "there is no Kerberos"),
        ({JAAS: f'{MODULE} required username="käfka" password="sesame";'}, "username is missing, empty or"),
        (
            {"zookeeper.set.acl": "true"},
            f"zookeeper.set.acl=true: ZooKeeper must know the brokers: set {JAAS}",
        ),
        (
            {
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO",
            },
            "has no TLS",
        ),
        ({"zookeeper.ssl.crl.enable": "true"}, "Brokers do not check revocation"),
        ({"zookeeper.ssl.protocol": "TLSv1.1"}, "String must be one of: TLSv1.2, TLSv1.3, TLS"),
    ],
)
def test_wrong_keys_are_refused_without_their_secrets(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        BrokerConfig(ZOOKEEPER | given)
    assert problem in str(error.value)
    assert "sesame" not in str(error.value)


def test_a_broker_with_a_certificate_may_set_acls_without_a_password() -> None:
    keystore = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "/k.pem"}
    BrokerConfig(ZOOKEEPER | keystore | {"zookeeper.set.acl": "true"})


def test_a_missing_keystore_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    keys = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": f"{tmp_path}/none.pem"}
    with pytest.raises(ConfigError, match=r"^zookeeper\.ssl\.keystore\.location=.*: cannot be read: No such"):
        shared_store(BrokerConfig(ZOOKEEPER | keys))
