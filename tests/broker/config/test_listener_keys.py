"""Keys of one listener, and what listeners with TLS and SASL need."""

from __future__ import annotations

import pytest

from millstream_broker.config.addresses import Addresses
from millstream_broker.config.check import broker_problems
from millstream_broker.config.config import BrokerConfig, ConfigSource, parse_properties
from millstream_broker.config.config_types import ConfigError

SECRET = "open sesame"


def test_listeners_of_every_security_protocol_are_read() -> None:
    listeners = "PLAINTEXT://h:1,SSL://h:2,SASL_PLAINTEXT://h:3,SASL_SSL://h:4"
    given = {"ssl.keystore.location": "/k.pem", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    addresses = Addresses(BrokerConfig({"listeners": listeners, **given}))
    found = [(each.protocol, each.is_encrypted, each.has_sasl) for each in addresses.listeners]
    assert found == [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ]


def test_a_listeners_own_value_comes_first() -> None:
    config = BrokerConfig(
        {
            "ssl.keystore.location": "/all.pem",
            "listener.name.external.ssl.keystore.location": "/external.pem",
            "ssl.client.auth": "required",
        }
    )
    external, other = config.of_listener("EXTERNAL"), config.of_listener("SSL")
    assert external.text("ssl.keystore.location") == "/external.pem"
    assert external.name_of("ssl.keystore.location") == "listener.name.external.ssl.keystore.location"
    assert other.text("ssl.keystore.location") == "/all.pem"
    assert external.text("ssl.client.auth") == other.text("ssl.client.auth") == "required"


def test_a_dynamic_value_of_a_listener_applies_to_views_that_exist() -> None:
    config = BrokerConfig({"listener.name.ssl.ssl.keystore.location": "/old.pem"})
    view = config.of_listener("SSL")
    config.become(config.with_dynamic({}, {"listener.name.ssl.ssl.keystore.location": "/new.pem"}))
    assert view.text("ssl.keystore.location") == "/new.pem"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"listeners": "SSL://h:1"},
            "listener SSL has the security protocol SSL, and no certificate: set "
            "listener.name.ssl.ssl.keystore.location or listener.name.ssl.ssl.keystore.certificate.chain",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://h:1"},
            "listener SASL_PLAINTEXT has the security protocol SASL_PLAINTEXT, and no mechanism: set "
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms",
        ),
        (
            {"listeners": "X://h:1", "listener.security.protocol.map": "X:TLS"},
            "X has the security protocol TLS: expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol may be set",
        ),
        (
            {"security.inter.broker.protocol": "SSL"},
            "security.inter.broker.protocol=SSL: expected one of PLAINTEXT",
        ),
    ],
)
def test_what_a_listener_lacks_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        Addresses(BrokerConfig(given))
    assert str(error.value).endswith(problem)


def test_a_listener_for_brokers_alone_needs_no_mechanism() -> None:
    listeners = "SASL_PLAINTEXT://h:1,PLAINTEXT://h:2"
    addresses = Addresses(
        BrokerConfig({"listeners": listeners, "inter.broker.listener.name": "SASL_PLAINTEXT"})
    )
    assert addresses.inter_broker == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "listener.name.SSL.ssl.client.auth",
            "expected the listener's name in lower case, as in listener.name.ssl.ssl.client.auth",
        ),
        (
            "listener.name.ssl.num.partitions",
            "num.partitions cannot be set for one listener: set num.partitions",
        ),
        ("listener.name.ssl.ssl.client.aut", "no such configuration key"),
        ("listener.name.ssl", "no such configuration key"),
    ],
)
def test_wrong_keys_of_listeners_are_named(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        BrokerConfig({name: "none"})
    assert problem in str(error.value)
    assert [problem in each for each in broker_problems({name: "none"})] == [True]


def test_keys_of_a_listener_that_does_not_exist_have_no_effect() -> None:
    config = BrokerConfig({"listener.name.controller.ssl.client.auth": "none"})
    assert config.without_effect() == [
        ("listener.name.controller.ssl.client.auth", "`listeners` has no listener CONTROLLER")
    ]


def test_users_of_plain_that_are_none_have_no_effect() -> None:
    name = "listener.name.plaintext.plain.sasl.jaas.config"
    why = 'it names no user, so nobody can log in by it: add user_NAME="PASSWORD"'
    assert BrokerConfig({name: 'x.Module required username="a";'}).without_effect() == [(name, why)]
    assert BrokerConfig({name: 'x.Module required user_a="b";'}).without_effect() == []


def test_kafkas_other_keys_of_a_listener_are_accepted() -> None:
    name = "listener.name.plaintext.ssl.engine.factory.class"
    assert BrokerConfig({name: "x.Y"}).without_effect() == [(name, "brokers load no Java classes")]


def test_keys_of_tls_change_only_for_one_listener() -> None:
    with pytest.raises(
        ConfigError, match=r"only for one listener: set listener\.name\.NAME\.ssl\.client\.auth"
    ):
        BrokerConfig().with_dynamic({}, {"ssl.client.auth": "none"})
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules cannot be changed while"):
        BrokerConfig().with_dynamic({}, {"listener.name.ssl.ssl.principal.mapping.rules": "DEFAULT"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("principal.builder.class", "brokers load no Java classes"),
        ("listener.name.ssl.ssl.provider", "brokers load no Java classes"),
        ("listener.name.ssl.sasl.kerberos.service.name", "no Kerberos"),
        ("ssl.keymanager.algorithm", "OpenSSL decides this"),
    ],
)
def test_keys_that_only_kafka_changes_at_run_time_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} has no effect: .*{why}"):
        BrokerConfig().with_dynamic({}, {name: "x"})


def test_secrets_are_not_shown() -> None:
    name = "listener.name.ssl.ssl.key.password"
    config = BrokerConfig({name: SECRET, "ssl.keystore.password": SECRET})
    (entry,) = [each for each in config.describe() if each.key.name == name]
    assert entry.key.is_sensitive
    assert entry.source is ConfigSource.STATIC_BROKER
    assert SECRET not in repr(config.describe())
    assert config.shown(name) == config.shown("ssl.keystore.password") == "[hidden]"
    assert config.of_listener("SSL").text("ssl.key.password") == SECRET


def test_escapes_are_read_as_java_reads_them() -> None:
    text = r"key=-----BEGIN-----\nMII\tB\u0041\\\nend" + "\npassword = a\\b\\\\\nnext=1"
    assert parse_properties(text) == {
        "key": "-----BEGIN-----\nMII\tBA\\\nend",
        "password": "ab\\",
        "next": "1",
    }


def test_plain_needs_users() -> None:
    given = {"listeners": "SASL_PLAINTEXT://h:3", "sasl.enabled.mechanisms": "PLAIN"}
    with pytest.raises(
        ConfigError, match=r"no users: set listener\.name\.sasl_plaintext\.plain\.sasl\.jaas\.config"
    ):
        Addresses(BrokerConfig(given))
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    Addresses(BrokerConfig({**given, key: 'Module required user_alice="secret";'}))
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({**given, key: "Module required user_alice=hidden"})
    assert "Invalid value [hidden] for configuration" in str(refused.value)
    assert "user_alice" not in str(refused.value)


def test_an_unknown_mechanism_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Invalid value GSSAPI .* must be one of: PLAIN, SCRAM-SHA-256"):
        BrokerConfig({"sasl.enabled.mechanisms": "GSSAPI"})
