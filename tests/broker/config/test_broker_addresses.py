"""Addresses that a broker listens on: IPv4, IPv6 and both."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest

from millstream_broker.config.addresses import Addresses
from millstream_broker.config.config import BrokerConfig
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.wire import Wire
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import metadata
from millstream_process.listening import host_port, is_wildcard, why_not

FAMILIES = ("127.0.0.1", "::1")


def _broker(folder: Path, host: str, **more: str) -> InProcessBroker:
    config = {"listeners": f"PLAINTEXT://{host}:0", "http.listener": f"{host}:0"}
    return InProcessBroker(
        folder, {**config, **{key.replace("_", "."): value for key, value in more.items()}}
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_wildcard_serves_both_families(tmp_path: Path, host: str) -> None:
    with _broker(tmp_path, host).start() as broker:
        for family in FAMILIES:
            with Wire(host_port(family, _port(broker.bootstrap))) as wire:
                assert wire.call(metadata.API, 9, metadata.MetadataRequest([])).brokers
            url = f"http://{host_port(family, _port(broker.http))}/healthz"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.status == 200


def test_ipv6_address_is_advertised_as_such(tmp_path: Path) -> None:
    with _broker(tmp_path, "[::1]").start() as broker, Wire(broker.bootstrap) as wire:
        (found,) = wire.call(metadata.API, 9, metadata.MetadataRequest([])).brokers
        assert (found.host, found.port) == ("::1", _port(broker.bootstrap))
        assert broker.http.startswith("http://[::1]:")


def test_ipv4_clients_keep_their_address_on_a_dual_socket(tmp_path: Path) -> None:
    """`max.connections.per.ip` and the hosts of group members are those of the client."""
    with _broker(tmp_path, "", max_connections_per_ip="1").start() as broker:
        port = _port(broker.bootstrap)
        with Wire(f"127.0.0.1:{port}") as first, Wire(f"[::1]:{port}") as other:
            for wire in (first, other):
                assert wire.call(metadata.API, 9, metadata.MetadataRequest([])).brokers
            hosts = {one.host for one in broker.on_loop.broker.server.connections}
            assert hosts == set(FAMILIES)


def test_name_with_an_ipv6_address_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **options: resolve("::1" if host == "only6.test" else host, *more, **options),
    )

    async def brokers(address: tuple[str, int]) -> list[str]:
        connection = await Connection.open(*address)
        try:
            found = await connection.call(metadata.API, 9, metadata.MetadataRequest([]))
            return [each.host for each in found.brokers]
        finally:
            await connection.close()

    with _broker(tmp_path, "only6.test").start() as broker:
        port = _port(broker.bootstrap)
        with Wire(host_port("::1", port)) as wire:
            assert wire.call(metadata.API, 9, metadata.MetadataRequest([])).brokers
        assert asyncio.run(brokers(("only6.test", port))) == ["only6.test"]


def test_unknown_host_is_reported(tmp_path: Path) -> None:
    for config in (
        {"listeners": "PLAINTEXT://no-such-host.invalid:0"},
        {"http.listener": "no-such-host.invalid:0"},
    ):
        with pytest.raises(RuntimeError, match=r"cannot listen there: the host does not resolve") as error:
            InProcessBroker(tmp_path, config).start()
        assert "Stop" not in str(error.value)


def test_address_of_another_machine_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Choose an address of this machine"):
        InProcessBroker(tmp_path, {"listeners": "PLAINTEXT://192.0.2.1:0"}).start()


def test_any_spelling_of_a_wildcard_is_replaced_in_what_is_advertised() -> None:
    for host in ("", "0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"):
        addresses = Addresses(BrokerConfig({"listeners": f"PLAINTEXT://{host}:9092"}))
        (advertised,) = addresses.advertised(addresses.listeners)
        assert advertised.host == socket.gethostname()
    assert not is_wildcard("::1")
    assert not is_wildcard("a-name")


def test_reasons_for_a_refused_address() -> None:
    assert "Stop the process" in why_not(OSError(98, "Address already in use"))
    assert "from 1024 on" in why_not(PermissionError(13, "Permission denied"))
