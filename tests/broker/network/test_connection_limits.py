"""How many connections a broker serves, and what they must leave for logs and for other brokers."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError, limits_of_addresses
from millstream_broker.network import server as module
from millstream_broker.network.server import most_descriptors
from millstream_harness.in_process import running
from millstream_harness.members import until
from millstream_kafka.client.connection import Connection
from millstream_kafka.client.errors import ConnectFailed

CONFIG = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


async def connect(broker: Broker, listener: str) -> Connection:
    (record,) = broker.replicas.metadata.state.brokers.values()
    (port,) = (endpoint.port for endpoint in record.listeners if endpoint.name == listener)
    return await Connection.open("127.0.0.1", port)


async def check_limit(broker: Broker) -> None:
    """One client is served, another is not; brokers are."""
    client = await connect(broker, "CLIENTS")
    with pytest.raises(ConnectFailed):
        await connect(broker, "CLIENTS")
    peers = [await connect(broker, "BROKERS") for _ in range(2)]
    for each in (client, *peers):
        await each.close()
    await until(lambda: not broker.server.connections)
    assert not broker.server.connections.of_host
    assert not broker.server.connections.of_listener
    await (await connect(broker, "CLIENTS")).close()


async def test_clients_that_fill_a_broker_do_not_keep_brokers_apart(tmp_path: Path) -> None:
    async with running(tmp_path, {**CONFIG, "max.connections": "1"}) as broker:
        await check_limit(broker)


async def test_connections_leave_file_descriptors_for_logs_and_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "most_descriptors", lambda: 1)
    async with running(tmp_path, CONFIG) as broker:
        await check_limit(broker)
    assert "set max.connections" in caplog.text


def test_most_file_descriptors_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert most_descriptors() == 640
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most_descriptors() > 1_000_000


async def test_an_address_has_a_limit_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, {**CONFIG, "max.connections.per.ip": "1"}) as broker:
        client = await connect(broker, "CLIENTS")
        with pytest.raises(ConnectFailed):
            await connect(broker, "CLIENTS")
        await client.close()
        await until(lambda: not broker.server.connections)
        await (await connect(broker, "CLIENTS")).close()
    assert "max.connections.per.ip=1 is reached" in caplog.text


async def test_single_addresses_may_have_another_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "max.connections.per.ip.overrides"
    given = {**CONFIG, "max.connections.per.ip": "0", key: "10.0.0.7:5, 127.0.0.1:1"}
    async with running(tmp_path, given) as broker:
        await (await connect(broker, "CLIENTS")).close()
        await until(lambda: not broker.server.connections)
        broker.config.become(broker.config.with_dynamic({key: "127.0.0.1:0"}, {}))
        with pytest.raises(ConnectFailed):
            await connect(broker, "CLIENTS")
    assert f"{key}=127.0.0.1:0 is reached" in caplog.text


@pytest.mark.parametrize(
    "text", ["host:5", "10.0.0.7", "10.0.0.7:", "10.0.0.7:-1", "10.0.0.7:5;10.0.0.8:5", ":5"]
)
def test_a_limit_of_something_else_than_an_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no limit of an address: expected ADDRESS:COUNT"):
        BrokerConfig({"max.connections.per.ip.overrides": text})


def test_addresses_are_compared_as_numbers() -> None:
    assert limits_of_addresses("0:0:0:0:0:0:0:1:7,10.0.0.7:5,") == {"::1": 7, "10.0.0.7": 5}
