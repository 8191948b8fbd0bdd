"""A cluster whose brokers and clients use TLS alone: mutual authentication, replication, certificates under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.network.connection import ClientConnection
from millstream_broker.security.tls import certificates as module
from millstream_harness.background_loop import background_loop
from millstream_harness.broker import fixed_port
from millstream_harness.certificates import NAMES, Authority, Issued, tls_keys
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.ledger import Load, check
from millstream_harness.scenario import eventually

AUTHORITY = Authority()


def issue(number: int) -> Issued:
    return AUTHORITY.issue(f"broker-{number}", NAMES)


@pytest.fixture
def client(tmp_path: Path) -> dict[str, str]:
    """librdkafka's settings of a client with a certificate."""
    issued = AUTHORITY.issue("client", ())
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    path = str(issued.write(tmp_path / "client.pem"))
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": path,
        "ssl.key.location": path,
    }


@pytest.fixture
def protocol() -> str:
    """The security protocol of the listener for brokers."""
    return "SSL"


@pytest.fixture
def secured(tmp_path: Path, client: dict[str, str], protocol: str) -> Iterator[InProcessCluster]:
    """Three brokers that talk by mutual TLS; the listener CHECK, in plain text, is for the test alone."""
    cluster = InProcessCluster(tmp_path)
    for number, broker in cluster.brokers.items():
        keystore = issue(number).write(tmp_path / f"broker-{number}.pem")
        broker.config |= {
            "listeners": f"SSL://127.0.0.1:{fixed_port()},CHECK://127.0.0.1:{fixed_port()}",
            "listener.security.protocol.map": f"SSL:{protocol},CHECK:PLAINTEXT",
            "inter.broker.listener.name": "SSL",
            **{
                f"listener.name.ssl.{key}": value
                for key, value in tls_keys(keystore, tmp_path / "ca.pem").items()
            },
            "listener.name.ssl.ssl.client.auth": "required",
        }
    with cluster:
        yield cluster


def wait(condition: Callable[[], object], what: str) -> None:
    eventually(condition, bool, what)


def connections(cluster: InProcessCluster, number: int) -> list[ClientConnection]:
    found = list(cluster.brokers[number].on_loop.broker.server.connections)
    return [each for each in found if isinstance(each, ClientConnection)]


def reloads(cluster: InProcessCluster, number: int) -> int:
    certificates = cluster.brokers[number].on_loop.broker._certificates
    assert certificates is not None
    return next(certificates.states()).reloads


def test_certificates_are_replaced_under_load_and_nothing_is_lost(
    tmp_path: Path, secured: InProcessCluster, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0.05)
    bootstrap = secured.brokers[1].bootstrap
    clear = secured.brokers[1].config["listeners"].rpartition("://")[2]
    admin = AdminClient({"bootstrap.servers": bootstrap, **client})
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
    with Load(bootstrap, "t", partitions=range(3), pause_s=0.002, config=client) as load:
        wait(lambda: load.ledger.count > 300, "acknowledged records")
        before = {
            number: {each.connection_id for each in connections(secured, number)}
            for number in secured.brokers
        }
        peers = {
            each.authentication.session.peer_broker.broker_id
            for number in secured.brokers
            for each in connections(secured, number)
            if each.authentication.session.peer_broker is not None and each.listener == "SSL"
        }
        assert peers == {1, 2, 3}, "each follows others over TLS"
        for number in secured.brokers:
            new = issue(number).write(tmp_path / "next.pem")
            new.rename(tmp_path / f"broker-{number}.pem")
        wait(lambda: all(reloads(secured, number) for number in secured.brokers), "new certificates")
        count = load.ledger.count
        wait(lambda: load.ledger.count > count + 300, "records after the change")
        for number, known in before.items():
            gone = known - {each.connection_id for each in connections(secured, number)}
            assert not gone, f"broker {number} has lost connections"
    assert load.ledger.failed == []
    check(clear, "t", [load])


def test_a_broker_that_restarts_follows_over_tls_again(
    secured: InProcessCluster, client: dict[str, str]
) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in secured.brokers.values())
    admin = AdminClient({"bootstrap.servers": bootstrap, **client})
    admin.create_topics([NewTopic("t", 1, 3)])["t"].result(60)
    secured.brokers[2].stop()
    with Load(bootstrap, "t", config=client) as load:
        wait(lambda: load.ledger.count > 50, "acknowledged records")
    secured.brokers[2].start()

    def in_sync() -> bool:
        found = background_loop().call(
            lambda: secured.brokers[1].on_loop.broker.replicas.metadata.state.topics["t"].partitions[0].isr
        )
        return len(found) == 3

    wait(in_sync, "the ISR")
    check(secured.brokers[1].config["listeners"].rpartition("://")[2], "t", [load])


def test_a_client_that_trusts_another_authority_is_refused(
    tmp_path: Path, secured: InProcessCluster, client: dict[str, str]
) -> None:
    (tmp_path / "other.pem").write_text(Authority("Stranger").pem)
    errors: list[str] = []
    stranger = AdminClient(
        {
            "bootstrap.servers": secured.brokers[1].bootstrap,
            **client,
            "ssl.ca.location": str(tmp_path / "other.pem"),
            "error_cb": lambda error: errors.append(str(error)),
        }
    )

    def refused() -> bool:
        stranger.poll(0.1)
        return any("certificate" in error for error in errors)

    wait(refused, "the client's error")
    line = "on listener SSL: the TLS handshake failed: "
    wait(lambda: line in secured.brokers[1].said(), "the broker's line")


@pytest.mark.parametrize("protocol", ["SASL_SSL"])
def test_brokers_authenticate_by_their_secret_inside_tls(secured: InProcessCluster) -> None:
    clear = secured.brokers[1].config["listeners"].rpartition("://")[2]
    admin = AdminClient({"bootstrap.servers": clear})
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
    with Load(clear, "t", partitions=range(3)) as load:
        wait(lambda: load.ledger.count > 50, "records on three brokers")
    check(clear, "t", [load])
    peers = {
        each.authentication.session.principal
        for number in secured.brokers
        for each in connections(secured, number)
        if each.listener == "SSL"
    }
    assert peers == {"Broker:1", "Broker:2", "Broker:3"}


@pytest.mark.parametrize("protocol", ["PLAINTEXT"])
def test_the_listener_for_brokers_gets_tls_one_broker_after_the_other(
    tmp_path: Path, secured: InProcessCluster
) -> None:
    """Each has a certificate there before the first changes; clients use the other listener."""
    clear = {
        number: broker.config["listeners"].rpartition("://")[2] for number, broker in secured.brokers.items()
    }
    everywhere = ",".join(clear.values())
    admin = AdminClient({"bootstrap.servers": everywhere})
    admin.create_topics([NewTopic("t", 3, 3)], request_timeout=30)["t"].result(60)

    def in_sync(number: int) -> bool:
        def isrs() -> list[int]:
            topics = secured.brokers[number].on_loop.broker.replicas.metadata.state.topics
            return [len(each.isr) for each in topics["t"].partitions] if "t" in topics else []

        return background_loop().call(isrs) == [3, 3, 3]

    with Load(everywhere, "t", partitions=range(3), pause_s=0.002) as load:
        for number, broker in secured.brokers.items():
            broker.stop()
            broker.config["listener.security.protocol.map"] = "SSL:SSL,CHECK:PLAINTEXT"
            broker.start()
            for other in secured.brokers:
                wait(lambda other=other: in_sync(other), f"all replicas, with broker {number} restarted")  # type: ignore[misc]
    assert load.ledger.failed == []
    check(clear[1], "t", [load])
    for number in secured.brokers:
        found = [each for each in connections(secured, number) if each.listener == "SSL"]
        assert found
        assert {each.authentication.session.peer_broker is not None for each in found} == {True}
