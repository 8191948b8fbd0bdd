"""TLS beside Apache Kafka: the same offers of clients to listeners with the same `ssl.…` keys.

An offer's answer is the version and the cipher suite of a connection that serves a request, or the alert, or the close
without one. Both brokers have the same certificates. `DIFFERENT` lists where the answers differ, and why.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from millstream_harness.certificates import HOUR, Authority, Issued
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess
from millstream_kafka.protocol import api_versions
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

DEPRECATED = "ignore:ssl.TLSVersion.TLSv1:DeprecationWarning"
pytestmark = [pytest.mark.soak, pytest.mark.once, pytest.mark.filterwarnings(DEPRECATED)]

T = TypeVar("T")

V1_0, V1_1, V1_2, V1_3 = (
    ssl.TLSVersion.TLSv1,
    ssl.TLSVersion.TLSv1_1,
    ssl.TLSVersion.TLSv1_2,
    ssl.TLSVersion.TLSv1_3,
)
LISTENERS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "rsa": {},
    "older": {"ssl.enabled.protocols": "TLSv1.2"},
    "newer": {"ssl.enabled.protocols": "TLSv1.3"},
    "until": {"ssl.protocol": "TLSv1.2"},
    "requested": {"ssl.client.auth": "requested"},
    "required": {"ssl.client.auth": "required"},
    "single": {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
    "mixed": {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
    "modern": {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
}
"""Keys of each listener beside those of its certificates."""


@dataclass(frozen=True, slots=True)
class Offer:
    listener: str = "plain"
    oldest: ssl.TLSVersion = V1_2
    newest: ssl.TLSVersion = V1_3
    ciphers: str = "DEFAULT"
    """OpenSSL's names, of TLS 1.2 and older: a client offers all of TLS 1.3."""
    curve: str = ""
    certificate: str = ""
    server_name: str | None = None


OFFERS = {
    # versions
    "1.0": Offer(oldest=V1_0, newest=V1_0, ciphers="ALL"),
    "1.1": Offer(oldest=V1_1, newest=V1_1, ciphers="ALL"),
    "1.0 to 1.3": Offer(oldest=V1_0, newest=V1_3, ciphers="ALL"),
    "1.2": Offer(newest=V1_2),
    "1.3": Offer(oldest=V1_3),
    "1.2 and 1.3": Offer(),
    **{f"{listener}, 1.1": Offer(listener, V1_1, V1_1, "ALL") for listener in ("older", "newer")},
    **{f"{listener}, 1.2": Offer(listener, newest=V1_2) for listener in ("older", "newer", "until")},
    **{f"{listener}, 1.3": Offer(listener, oldest=V1_3) for listener in ("older", "newer", "until")},
    **{f"{listener}, 1.2 and 1.3": Offer(listener) for listener in ("older", "newer", "until")},
    # cipher suites
    **{
        suite: Offer(newest=V1_2, ciphers=suite)
        for suite in (
            *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"),
            *("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA256"),
            *("ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-CCM"),
            "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384",
        )
    },
    **{
        f"rsa, {suite}": Offer("rsa", newest=V1_2, ciphers=suite)
        for suite in (
            *("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"),
            *("DHE-RSA-AES256-GCM-SHA384", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
            *("ECDHE-RSA-AES256-SHA384", "ECDHE-RSA-AES256-SHA"),
        )
    },
    "rsa, 1.3": Offer("rsa", oldest=V1_3),
    "rsa, 1.2 and 1.3": Offer("rsa"),
    "null": Offer(newest=V1_2, ciphers="eNULL"),
    "anonymous": Offer(newest=V1_2, ciphers="aNULL"),
    "single, 1.2": Offer("single", newest=V1_2),
    "single, 1.3": Offer("single", oldest=V1_3),
    "single, 1.2 and 1.3": Offer("single"),
    "single, another suite": Offer("single", newest=V1_2, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256"),
    "mixed, 1.2": Offer("mixed", newest=V1_2),
    "mixed, 1.3": Offer("mixed", oldest=V1_3),
    "mixed, another suite": Offer("mixed", newest=V1_2, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384"),
    "modern, 1.2": Offer("modern", newest=V1_2),
    "modern, 1.3": Offer("modern", oldest=V1_3),
    **{
        f"curve {curve}": Offer(curve=curve)
        for curve in ("X25519", "X448", "prime256v1", "secp384r1", "secp521r1")
    },
    # certificates of clients
    **{
        f"{listener}, {certificate or 'none'}, {version.name}": Offer(
            listener, version, version, certificate=certificate
        )
        for listener in ("requested", "required")
        for version in (V1_2, V1_3)
        for certificate in (
            *("", "valid", "expired", "future", "foreign", "of servers", "of clients"),
            *("without its issuer", "with its issuer", "rsa", "rsa 1024"),
        )
    },
    "plain, foreign": Offer(certificate="foreign"),
    # names of servers
    "name localhost": Offer(server_name="localhost"),
    "name unknown": Offer(server_name="unknown.example"),
    "name unknown, 1.2": Offer(newest=V1_2, server_name="unknown.example"),
}
VERSIONS = ("TLSv1_2", "TLSv1_3")
FAILED = "handshake failure"
OLD_SUITE = "suites with SHA-1, DHE or without forward secrecy are off, the latter unless ssl.cipher.suites names them"
ANY_NEW_SUITE = "Python cannot choose among the suites of TLS 1.3"
REASON = "our alert names what is wrong with a certificate"
WEAK = "OpenSSL refuses RSA keys of fewer than 2048 bits, Java of fewer than 1024"
DIFFERENT: Mapping[str, tuple[str, str, str]] = {
    "ECDHE-ECDSA-AES256-SHA": (FAILED, "TLSv1.2 ECDHE-ECDSA-AES256-SHA", OLD_SUITE),
    **{
        f"rsa, {suite}": (FAILED, f"TLSv1.2 {suite}", OLD_SUITE)
        for suite in ("DHE-RSA-AES256-GCM-SHA384", "AES256-GCM-SHA384", "ECDHE-RSA-AES256-SHA")
    },
    "modern, 1.3": ("TLSv1.3 TLS_AES_256_GCM_SHA384", "TLSv1.3 TLS_AES_128_GCM_SHA256", ANY_NEW_SUITE),
    **{
        f"{listener}, {certificate}, {version}": (alert, "certificate unknown", REASON)
        for listener in ("requested", "required")
        for version in VERSIONS
        for certificate, alert in (
            ("expired", "certificate expired"),
            ("future", "bad certificate"),
            ("foreign", "unknown ca"),
            ("of servers", "unsupported certificate"),
            ("without its issuer", "unknown ca"),
        )
    },
    "required, none, TLSv1_2": (FAILED, "bad certificate", REASON),
    "required, none, TLSv1_3": ("certificate required", "bad certificate", REASON),
    **{
        f"{listener}, rsa 1024, {version}": ("bad certificate", connected, WEAK)
        for listener in ("requested", "required")
        for version, connected in zip(
            VERSIONS,
            ("TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.3 TLS_AES_256_GCM_SHA384"),
            strict=True,
        )
    },
}
"""Names of offers: our answer, Kafka's, and why."""


@dataclass(frozen=True, slots=True)
class Peers:
    ours: Mapping[str, int]
    kafka: Mapping[str, int]
    """Ports by the names of listeners."""
    folder: Path


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("tls")
    config = certificates(folder)
    protocols = {name.upper(): "SSL" for name in LISTENERS}
    own = {
        **config,
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *protocols)),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,"
        + ",".join(f"{name}:SSL" for name in protocols),
    }
    with (
        InProcessBroker(folder / "ours", own) as ours,
        KafkaProcess(folder / "kafka", config, listeners=protocols) as kafka,
    ):
        (record,) = ours.on_loop.broker.replicas.metadata.state.brokers.values()
        yield Peers(
            {listener.name.lower(): listener.port for listener in record.listeners},
            {name.lower(): int(at.rpartition(":")[2]) for name, at in kafka.addresses.items()},
            folder,
        )


def certificates(folder: Path) -> dict[str, str]:
    """Write the certificates of brokers and clients; returns the keys of the listeners."""
    authority, stranger = Authority(), Authority("Another CA")
    part = Authority("An issuer", authority)
    (folder / "ca.pem").write_text(authority.pem)
    authority.issue().write(folder / "broker.pem")
    authority.issue(key=rsa.generate_private_key(65537, 2048)).write(folder / "rsa broker.pem")
    day = timedelta(days=1)
    issued = {
        "valid": authority.issue("client", ()),
        "expired": authority.issue("client", (), begin=-2 * day, end=-HOUR),
        "future": authority.issue("client", (), begin=day, end=2 * day),
        "foreign": stranger.issue("client", ()),
        "of servers": authority.issue("client", (), usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
        "of clients": authority.issue("client", (), usages=[ExtendedKeyUsageOID.CLIENT_AUTH]),
        "with its issuer": part.issue("client", ()),
        "rsa": authority.issue("client", (), key=rsa.generate_private_key(65537, 2048)),
        "rsa 1024": authority.issue("client", (), key=rsa.generate_private_key(65537, 1024)),
    }
    for name, each in issued.items():
        each.write(folder / f"{name}.pem")
    alone = issued["with its issuer"]
    Issued(alone.key, alone.chain[:1]).write(folder / "without its issuer.pem")
    config = {}
    for name, keys in LISTENERS.items():
        own = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / ("rsa broker.pem" if name == "rsa" else "broker.pem")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            **keys,
        }
        config |= {f"listener.name.{name}.{key}": value for key, value in own.items()}
    return config


def context(offer: Offer, folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(folder / "ca.pem")
    made.check_hostname = False
    # What a client may offer is left to the broker to refuse, so this client's own rules are the loosest.
    made.set_ciphers(f"{offer.ciphers}:@SECLEVEL=0")
    made.minimum_version, made.maximum_version = offer.oldest, offer.newest
    if offer.curve:
        made.set_ecdh_curve(offer.curve)
    if offer.certificate:
        made.load_cert_chain(folder / f"{offer.certificate}.pem")
    return made


class Connection:
    """A TLS connection whose client reads what the broker sent last, even where it can no longer write."""

    def __init__(self, port: int, made: ssl.SSLContext, server_name: str | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = made.wrap_bio(self._in, self._out, server_hostname=server_name)

    def run(self, step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._exchange()

    def _exchange(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(self._out.read())
        try:
            received = self.socket.recv(1 << 16)
        except ConnectionError:
            received = b""
        self._in.write(received) if received else self._in.write_eof()


REQUEST = encode_request_header(RequestHeader(api_versions.API.key, 0, 1, "test"))


def answer(port: int, offer: Offer, folder: Path) -> str:
    connection = Connection(port, context(offer, folder), offer.server_name)
    try:
        with connection.socket:
            connection.run(connection.tls.do_handshake)
            connection.tls.write(struct.pack(">i", len(REQUEST)) + REQUEST)
            served = connection.run(lambda: connection.tls.read(4))
    except ssl.SSLEOFError:
        return "closed"
    except ssl.SSLError as error:
        _, is_alert, alert = (error.reason or "").partition("ALERT_")
        if not is_alert:
            raise
        return alert.replace("_", " ").lower()
    if not served:
        return "closed"
    cipher = connection.tls.cipher()
    assert cipher is not None
    return f"{connection.tls.version()} {cipher[0]}"


@pytest.mark.parametrize("name", OFFERS)
def test_an_offer_has_the_answer_of_kafka(peers: Peers, name: str) -> None:
    offer = OFFERS[name]
    found = [answer(of[offer.listener], offer, peers.folder) for of in (peers.ours, peers.kafka)]
    expected = list(DIFFERENT[name][:2]) if name in DIFFERENT else [found[1]] * 2
    assert found == expected
