"""Certificates of listeners: contexts by Kafka's keys, and reloads while the broker runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.config.addresses import Addresses
from millstream_broker.config.config import BrokerConfig, ListenerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.security.tls import certificates as module
from millstream_broker.security.tls.certificates import Certificates
from millstream_broker.security.tls.cipher_suites import openssl_name
from millstream_broker.security.tls.contexts import client_context, server_context
from millstream_broker.security.tls.keystores import read_keystore, read_truststore
from millstream_harness.certificates import HOUR, Authority, tls_keys
from millstream_harness.in_process import running
from millstream_harness.members import until
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectFailed, TlsFailed
from millstream_kafka.protocol import incremental_alter_configs, metadata
from millstream_kafka.protocol.errors import ErrorCode

AUTHORITY = Authority()


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, str]:
    """Keys of a listener whose certificate can be replaced at tmp_path/broker.pem."""
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    return tls_keys(AUTHORITY.issue().write(tmp_path / "broker.pem"), tmp_path / "ca.pem")


def contexts(given: Mapping[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    values: ListenerConfig = BrokerConfig(given).of_listener("SSL")
    keys = read_keystore(values)
    assert keys is not None
    trusted = read_truststore(values)
    return server_context(values, keys, trusted), client_context(values, keys, trusted)


V2, V3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("given", "lowest", "highest"),
    [
        ({}, V2, V3),
        ({"ssl.enabled.protocols": "TLSv1.2"}, V2, V2),
        ({"ssl.enabled.protocols": "TLSv1.3"}, V3, V3),
        ({"ssl.protocol": "TLSv1.2"}, V2, V3),
        ({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, V3, V3),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, V3, V3),
        ({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, V2, V2),
    ],
)
def test_versions_are_those_of_the_keys(
    files: Mapping[str, str], given: dict[str, str], lowest: ssl.TLSVersion, highest: ssl.TLSVersion
) -> None:
    for context in contexts({**files, **given}):
        assert (context.minimum_version, context.maximum_version) == (lowest, highest)


def test_cipher_suites_have_javas_names(files: Mapping[str, str]) -> None:
    names = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256")
    context, _ = contexts({**files, "ssl.cipher.suites": ",".join(names)})
    offered = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert offered == ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("ECDHE-RSA-AES256-SHA", "ECDHE-RSA-AES256-SHA"),
    ],
)
def test_each_form_of_a_suites_name_is_openssls(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"ssl.cipher.suites": "TLS_NONE_WITH_X"},
            "ssl.cipher.suites: OpenSSL has no cipher suite TLS_NONE_WITH_X",
        ),
        (
            {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384", "ssl.enabled.protocols": "TLSv1.2"},
            "ssl.cipher.suites=TLS_AES_256_GCM_SHA384: none is of a version in ssl.enabled.protocols",
        ),
        (
            {"ssl.cipher.suites": "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"},
            "ssl.cipher.suites=TLS_DHE_RSA_WITH_AES_256_GCM_SHA384: brokers cannot serve suites with DHE: add one with"
            " ECDHE",
        ),
    ],
)
def test_what_openssl_cannot_do_is_named(
    files: Mapping[str, str], given: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        contexts({**files, **given})
    assert problem in str(error.value)


@pytest.mark.parametrize("brokers", [True, False])
def test_a_listener_that_verifies_needs_a_truststore(tmp_path: Path, brokers: bool) -> None:
    given = {
        "listeners": "SSL://h:1" if brokers else "PLAINTEXT://h:2,SSL://h:1",
        "ssl.client.auth": "none" if brokers else "required",
        **tls_keys(AUTHORITY.issue().write(tmp_path / "broker.pem")),
    }
    config = BrokerConfig(given)
    addresses = Addresses(config)
    problem = (
        "is for brokers, which verify" if brokers else "ssl.client.auth=required: clients' certificates need"
    )
    with pytest.raises(ConfigError) as error:
        Certificates(config, addresses.listeners, addresses.inter_broker)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [("ssl.client.auth", ssl.CERT_NONE), ("listener.name.ssl.ssl.client.auth", ssl.CERT_REQUIRED)],
)
def test_with_sasl_only_the_listeners_own_key_requires_certificates(
    files: Mapping[str, str], key: str, wanted: ssl.VerifyMode
) -> None:
    values = BrokerConfig({**files, key: "required"}).of_listener("SSL")
    keys = read_keystore(values)
    assert keys is not None
    trusted = read_truststore(values)
    assert server_context(values, keys, trusted, has_sasl=True).verify_mode == wanted
    assert server_context(values, keys, trusted).verify_mode == ssl.CERT_REQUIRED


async def served(broker: Broker) -> int:
    """The serial number of the certificate that a new connection gets."""
    (record,) = broker.replicas.metadata.state.brokers.values()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", record.listeners[0].port, ssl=AUTHORITY.client_context()
    )
    found = writer.get_extra_info("peercert")
    writer.close()
    assert reader is not None
    return int(found["serialNumber"], 16)


def certificates_of(broker: Broker) -> Certificates:
    assert broker._certificates is not None
    return broker._certificates


@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
async def test_a_new_file_is_served_and_connections_stay(
    tmp_path: Path, files: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0.01)
    path = tmp_path / "broker.pem"
    if link:  # as Kubernetes replaces a Secret
        path.rename(tmp_path / "old.pem")
        path.symlink_to("old.pem")
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as broker:
        (record,) = broker.replicas.metadata.state.brokers.values()
        client = await Connection.open("127.0.0.1", record.listeners[0].port, ssl=AUTHORITY.client_context())
        renewed = AUTHORITY.issue()
        renewed.write(tmp_path / "new.pem")
        if link:
            (tmp_path / "next").symlink_to("new.pem")
            (tmp_path / "next").rename(path)
        else:
            (tmp_path / "new.pem").rename(path)
        await until(lambda: next(certificates_of(broker).states()).reloads)
        assert await served(broker) == renewed.chain[0].serial_number
        await client.call(metadata.API, 9, metadata.MetadataRequest())
        await client.close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda: "nonsense", "is not in PEM format"),
        (
            lambda: AUTHORITY.issue().key_pem() + AUTHORITY.issue().chain_pem(),
            "the private key does not belong to the first certificate",
        ),
        (lambda: AUTHORITY.issue(begin=-2 * HOUR, end=-HOUR).pem(), "the certificate CN=broker expired at"),
        (lambda: AUTHORITY.issue(begin=HOUR).pem(), "the certificate CN=broker is not valid before"),
        (
            lambda: AUTHORITY.issue("other").pem(),
            "its subject is CN=other, not CN=broker: set ssl.allow.dn.changes",
        ),
        (
            lambda: AUTHORITY.issue(names=["localhost"]).pem(),
            "it lacks the names 127.0.0.1: set ssl.allow.san.changes",
        ),
        (lambda: None, "cannot be read: No such file or directory"),
    ],
)
async def test_a_bad_certificate_is_refused_and_the_old_one_stays(
    tmp_path: Path,
    files: Mapping[str, str],
    caplog: pytest.LogCaptureFixture,
    content: object,
    problem: str,
) -> None:
    assert callable(content)
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as broker:
        before = await served(broker)
        path, new = tmp_path / "broker.pem", content()
        if new is None:
            path.unlink()
        else:
            path.write_text(new)
        for _ in range(2):
            await certificates_of(broker).reload()
        assert await served(broker) == before
        (found,) = certificates_of(broker).states()
        assert (found.listener, found.reloads, found.refused) == ("SSL", 0, 1)
        assert 0.9 < found.days < 1
    (line,) = [record.message for record in caplog.records if "is refused" in record.message]
    assert problem in line, "once, although it is read twice"


async def altered(
    client: Connection, name: str, value: str | None, broker: str = "1"
) -> tuple[int, str | None]:
    operation = 1 if value is None else 0
    change = incremental_alter_configs.AlterableConfig(name, operation, value)
    resource = incremental_alter_configs.AlterConfigsResource(4, broker, [change])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
    answer = (await client.call(incremental_alter_configs.API, 1, request)).responses[0]
    return answer.error_code, answer.error_message


LOCATION = "listener.name.ssl.ssl.keystore.location"


async def test_a_dynamic_setting_replaces_the_certificate(tmp_path: Path, files: Mapping[str, str]) -> None:
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as broker:
        (record,) = broker.replicas.metadata.state.brokers.values()
        context = AUTHORITY.client_context()
        client = await Connection.open("127.0.0.1", record.listeners[0].port, ssl=context)
        before = await served(broker)
        renewed = AUTHORITY.issue()
        path = renewed.write(tmp_path / "renewed.pem")
        assert await altered(client, LOCATION, str(path)) == (0, None)
        assert await served(broker) == renewed.chain[0].serial_number, "from the answer on"
        AUTHORITY.issue("other").write(tmp_path / "other.pem")
        for wrong, problem in (
            (str(tmp_path / "none.pem"), "none.pem: cannot be read: No such file or directory"),
            (str(tmp_path / "ca.pem"), "has 0 private keys"),
            (str(tmp_path / "other.pem"), "its subject is CN=other, not CN=broker"),
        ):
            code, message = await altered(client, LOCATION, wrong)
            assert code == ErrorCode.INVALID_REQUEST
            assert problem in str(message)
        assert await served(broker) == renewed.chain[0].serial_number
        assert await altered(client, LOCATION, None) == (0, None)
        assert await served(broker) == before
        await client.close()


@pytest.mark.parametrize(
    ("name", "broker", "problem"),
    [
        (LOCATION, "", "Cannot update these configs at default cluster level: " + LOCATION),
        ("ssl.keystore.location", "1", "only for one listener: set listener.name.NAME.ssl.keystore.location"),
        (
            "listener.name.ssl.ssl.key.password",
            "1",
            "settings that change at run time are stored unencrypted",
        ),
    ],
)
async def test_settings_that_cannot_be_dynamic_are_refused(
    tmp_path: Path, files: Mapping[str, str], name: str, broker: str, problem: str
) -> None:
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as running_broker:
        (record,) = running_broker.replicas.metadata.state.brokers.values()
        context = AUTHORITY.client_context()
        client = await Connection.open("127.0.0.1", record.listeners[0].port, ssl=context)
        code, message = await altered(client, name, "x-secret", broker)
        assert code == ErrorCode.INVALID_REQUEST
        assert problem in str(message)
        assert "x-secret" not in str(message)
        await client.close()


async def test_metrics_show_when_a_certificate_expires(tmp_path: Path, files: Mapping[str, str]) -> None:
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as broker:
        await served(broker)
        await until(lambda: broker.stats.tls_handshakes)  # the client completes it first
        (tmp_path / "broker.pem").write_text("nonsense")
        await certificates_of(broker).reload()
        page = (await broker._metrics.text()).decode()
    assert 'millstream_tls_certificate_expiry_days{listener="SSL"} 0.99' in page
    assert 'millstream_tls_certificates_refused_total{listener="SSL"} 1' in page
    assert 'millstream_tls_certificate_reloads_total{listener="SSL"} 0' in page
    assert "millstream_tls_handshakes_total 1" in page
    assert "millstream_tls_handshake_failures_total 0" in page


async def test_a_new_truststore_admits_clients_of_another_authority(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    required = {"listeners": "SSL://127.0.0.1:0", **files, "ssl.client.auth": "required"}
    plain = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}
    other = Authority("Other CA")
    async with running(tmp_path / "log", required | plain) as broker:
        (record,) = broker.replicas.metadata.state.brokers.values()
        context = AUTHORITY.client_context(other.issue("client", ()), tmp_path)
        with pytest.raises((TlsFailed, ConnectFailed)):
            await Connection.open("127.0.0.1", record.listeners[1].port, ssl=context)
        (tmp_path / "ca.pem").write_text(AUTHORITY.pem + other.pem)
        await certificates_of(broker).reload()
        client = await Connection.open("127.0.0.1", record.listeners[1].port, ssl=context)
        await client.close()


async def test_changes_of_names_are_allowed_by_kafkas_keys(tmp_path: Path, files: Mapping[str, str]) -> None:
    allowed = {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"}
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files, **allowed}) as broker:
        renewed = AUTHORITY.issue("other", ["localhost", "127.0.0.1"][1:])
        renewed.write(tmp_path / "broker.pem")
        await certificates_of(broker).reload()
        assert await served(broker) == renewed.chain[0].serial_number


async def test_an_expired_certificate_is_named_at_the_start_and_replaced_later(
    tmp_path: Path, files: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    AUTHORITY.issue(begin=-2 * HOUR, end=-HOUR).write(tmp_path / "broker.pem")
    async with running(tmp_path / "log", {"listeners": "SSL://127.0.0.1:0", **files}) as broker:
        assert "listener SSL: the certificate CN=broker expired at" in caplog.text
        with pytest.raises(ssl.SSLError):
            await served(broker)
        (found,) = certificates_of(broker).states()
        assert found.days < 0
        renewed = AUTHORITY.issue()
        renewed.write(tmp_path / "broker.pem")
        await certificates_of(broker).reload()
        assert await served(broker) == renewed.chain[0].serial_number
