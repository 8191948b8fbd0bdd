"""A cluster whose only listener requires SASL, over TLS: brokers and clients share it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from millstream_broker.network.connection import ClientConnection
from millstream_broker.security.scram_credentials import ScramCredential
from millstream_harness import loop_client
from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.in_process_cluster import LoopCluster
from millstream_harness.loop_broker import LoopBroker
from millstream_harness.members import until
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.client.security import Credential, Sasl, Security, Tls
from millstream_kafka.scram_mechanism import ScramMechanism

CONFIG = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.plaintext.plain.sasl.jaas.config": 'Module required user_alice="secret";',
    "connection.failed.authentication.delay.ms": "0",
}
SHA_512 = ScramMechanism.SCRAM_SHA_512


def client(address: str, ca: Path, mechanism: str, user: str, password: str) -> ClusterClient:
    name, secret = (
        Credential(what, "the test", value=value) for what, value in (("user", user), ("p", password))
    )
    tls = Tls([Credential("ca", "the test", path=ca)])
    return ClusterClient(
        address, "test", security=Security(tls, Sasl(mechanism, name, secret)), retry_timeout=10.0
    )


def principals(broker: LoopBroker) -> set[str]:
    found = list(broker.broker.server.connections)
    return {each.authentication.session.principal for each in found if isinstance(each, ClientConnection)}


async def test_brokers_and_clients_authenticate_on_one_listener(tmp_path: Path) -> None:
    authority, ca = Authority(), tmp_path / "ca.pem"
    ca.write_text(authority.pem)
    config = {**CONFIG, **tls_keys(authority.issue().write(tmp_path / "broker.pem"), ca)}
    async with LoopCluster(tmp_path, 2, config) as cluster:
        async with client(cluster.bootstrap, ca, "PLAIN", "alice", "secret") as alice:
            await loop_client.create(alice, "t", replicas=2)
            await cluster.agreed("t", accepted=lambda record: len(record.isr) == 2)
            await loop_client.write(alice, "t", ["a", "b"])
            assert await loop_client.read(alice, "t") == ["a", "b"]
            found = set().union(*map(principals, cluster.brokers.values()))
            assert "User:alice" in found
            assert any(name.startswith("Broker:") for name in found)
        first, second = cluster.brokers.values()
        salted = hashlib.pbkdf2_hmac("sha512", b"another", b"salt", 4096)
        credential = ScramCredential.of_salted_password(SHA_512, b"salt", salted, 4096)
        await first.broker.scram_credentials.alter("bob", SHA_512, credential)
        await until(lambda: second.broker.scram_credentials.get("bob", SHA_512) == credential)
        address = second.config["listeners"].split("://")[1]
        async with client(address, ca, SHA_512.label, "bob", "another") as bob:
            assert await loop_client.read(bob, "t") == ["a", "b"]
        await first.broker.scram_credentials.alter("bob", SHA_512, None)
        await until(lambda: second.broker.scram_credentials.get("bob", SHA_512) is None)
        with pytest.raises(BrokerError):
            async with client(address, ca, SHA_512.label, "bob", "another") as bob:
                await loop_client.read(bob, "t")
