"""`millstream doctor` on a healthy broker, with TLS or without, and on other services."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream_harness.command import millstream
from millstream_harness.doctor import findings, served
from millstream_harness.in_process_broker import InProcessBroker

pytestmark = pytest.mark.soak

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_a_cluster_that_is_well(run: Run, topic: str) -> None:
    lines = run("doctor", "--clock").stdout.decode().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", step] for step in ("name", "port", "protocol", "versions", "metadata", "advertised", "clock")
    ]
    assert not [
        one for one in json.loads(run("group", "list", "-o", "json").stdout) if "doctor" in one["group"]
    ]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a self-signed certificate, for localhost."""
    folder = tmp_path_factory.mktemp("certificate")
    path = folder / "server.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", str(folder / "cert")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + (folder / "cert").read_bytes())
    return path


@pytest.fixture
def secured(certificate: Path, shared_broker: InProcessBroker) -> Iterator[Callable[..., str]]:
    """``secured()``: the address of a TLS listener in front of the broker; ``clients=True``: it verifies clients."""
    port = int(shared_broker.bootstrap.rpartition(":")[2])

    def start(*, clients: bool = False) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificate)

        def answer(connection: socket.socket) -> None:
            with (
                context.wrap_socket(connection, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as broker,
            ):
                relay(client, broker)

        return servers.enter_context(served(answer)).replace("127.0.0.1", "localhost")

    with contextlib.ExitStack() as servers:
        yield start


def relay(client: ssl.SSLSocket, broker: socket.socket) -> None:
    """Relay bytes until one side ends."""
    while True:
        ready = [client] if client.pending() else select.select([client, broker], [], [])[0]
        for one in ready:
            if not (data := one.recv(65536)):
                return
            (broker if one is client else client).sendall(data)


def test_a_cluster_behind_tls_that_is_well(secured: Callable[..., str], certificate: Path) -> None:
    for clients in (False, True):
        own = {"ssl_certificate_location": certificate, "ssl_key_location": certificate} if clients else {}
        found = findings(
            secured(clients=clients), 0, security_protocol="ssl", ssl_ca_location=certificate, **own
        )
        assert list(found) == ["name", "port", "tls", "protocol", "versions", "metadata", "advertised"]
        assert found["tls"]["fact"].startswith("TLSv1.")
        assert found["protocol"]["fact"] == "Kafka, TLS"


def test_a_client_without_tls_at_a_port_that_speaks_it(secured: Callable[..., str]) -> None:
    for clients in (False, True):
        found = findings(secured(clients=clients))
        assert found["protocol"]["problem"] == (
            "it speaks TLS, and the client does not; set security.protocol=SSL, or use a plaintext port"
        )
        assert set(found) == {"name", "port", "protocol"}


def test_a_client_with_tls_at_a_port_that_speaks_plaintext(shared_broker: InProcessBroker) -> None:
    for protocol in ("SSL", "SASL_SSL"):
        found = findings(shared_broker.bootstrap, security_protocol=protocol)
        assert found["tls"]["problem"] == (
            "it speaks plaintext, and the client TLS; set security.protocol=PLAINTEXT, or use a TLS port"
        )
        assert set(found) == {"name", "port", "tls"}


def test_certificates_that_are_not_trusted(secured: Callable[..., str], certificate: Path) -> None:
    ours = {"security_protocol": "ssl", "ssl_ca_location": certificate}
    assert findings(secured(), security_protocol="ssl")["tls"]["problem"].startswith(
        "its certificate is not trusted: self-signed certificate; set ssl.ca.location"
    )
    address = secured()
    by_number = address.replace("localhost", "127.0.0.1")
    assert "not trusted: IP address mismatch" in findings(by_number, **ours)["tls"]["problem"]
    found = findings(by_number, 0, **ours, ssl_endpoint_identification_algorithm="none")
    assert not any(one["problem"] for one in found.values())
    assert findings(secured(clients=True), **ours)["tls"]["problem"] == (
        "it requires a certificate of the client; set ssl.certificate.location and ssl.key.location"
    )


def test_certificates_that_are_none(secured: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for settings, said in (
        (
            {"ssl_ca_location": tmp_path / "gone"},
            f"ssl.ca.location: there is no {tmp_path / 'gone'}; name a file",
        ),
        ({"ssl_ca_location": tmp_path / "empty"}, "ssl.ca.location: "),
        ({"ssl_certificate_location": tmp_path / "empty"}, "ssl.certificate.location and ssl.key.location: "),
    ):
        found = findings(secured(), security_protocol="ssl", **settings)
        assert found["tls"]["problem"].startswith(f"the client's certificates cannot be used: {said}")
    (tmp_path / "settings").write_text("ssl\n")
    ended = millstream("doctor", "--config", str(tmp_path / "settings"), bootstrap="127.0.0.1:1")
    assert b"settings, line 1: is not KEY=VALUE" in ended.stderr


def test_tls_at_a_port_of_another_service() -> None:
    with served(
        lambda connection: (connection.recv(100), connection.sendall(b"220 mail ready\r\n"))
    ) as address:
        problem = findings(address, security_protocol="ssl")["tls"]["problem"]
    assert problem.startswith("it does not speak TLS (")


@pytest.mark.parametrize("said", [b"220 mail ready\r\n", b"\0\0\0\x0a" + bytes(10), b"\x7f\xff\xff\xff", b""])
def test_a_port_of_another_service(said: bytes) -> None:
    with served(lambda connection: (connection.recv(100), connection.sendall(said))) as address:
        problem = findings(address)["protocol"]["problem"]
    assert problem.startswith("it does not answer as a Kafka broker (")
