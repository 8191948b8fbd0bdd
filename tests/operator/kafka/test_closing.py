"""An open Cluster under load is closed, and the operator's password replaced: no request fails, no record is lost.

The operator's own reconciles, with Kubernetes in memory, decide which broker restarts when, and with what; the brokers
are whole ones of this process.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream_broker.config.config import parse_properties
from millstream_harness.background_loop import background_loop
from millstream_harness.broker import fixed_port
from millstream_harness.cluster import SESSION_MS, defaults
from millstream_harness.in_memory import MemoryKube, stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.manifests import resource
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.shared_tree import SharedTree
from millstream_kafka.client.security import Credential, Sasl, Security
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kafka.records import (
    AdminError,
    ConfigChange,
    NewTopic,
    ScramCredential,
    ScramMechanism,
)
from millstream_operator.kubernetes.client import Kube
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster.apply import reconcile_cluster
from millstream_operator.resources.owned import selector
from millstream_operator.state.platform import platform_client

pytestmark = pytest.mark.soak

BROKERS = 3
PASSWORDS = {"authentication": {"type": "ScramSha512"}}
INTERNAL = {
    "name": "internal",
    "type": "Internal",
    "port": 9092,
    "tls": "Disabled",
    "authentication": {"type": "None"},
}
APPS = {
    "name": "apps",
    "type": "NodePort",
    "port": 9094,
    "nodePort": 30_000,
    "allowPlaintext": True,
    "tls": "Disabled",
    "advertisedHost": "127.0.0.1",
    **PASSWORDS,
}
RULES = {"type": "Simple", "superUsers": ["app"]}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "app",
    "sasl.password": "secret",
}
DEADLINE_S = 120.0
CUT = ("the broker closed the connection", "the connection was lost")


class Operated:
    """A Cluster of three brokers, the operator that runs it, and what Kubernetes does for both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.credentials = folder / "credentials"
        self.ports = {
            name: [fixed_port() for _ in range(BROKERS)] for name in ("INTERNAL", "APPS", "REPLICATION-9091")
        }
        self.tree = background_loop().call(SharedTree, SESSION_MS / 1000)
        self.brokers = [
            InProcessBroker(folder / f"broker-{number}", {}, self.tree) for number in range(BROKERS)
        ]
        self.kube = MemoryKube(stored(resource("Cluster", "east")))
        self.services = services_on_kubernetes(self.kube, reach=self._reach)
        self.restarts = 0

    def spec(self, *listeners: dict[str, Any], **spec: Any) -> None:
        found = self.kube.objects["Cluster", "east"]
        found["spec"] = {
            "brokers": {"replicas": BROKERS},
            "zookeeper": {"connect": "127.0.0.1:1"},
            "listeners": list(listeners),
            "authorization": RULES,
            **spec,
        }
        found["metadata"]["generation"] += 1

    @property
    def cluster(self) -> Cluster:
        return decode_as(Cluster, self.kube.objects["Cluster", "east"])

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects["Cluster", "east"].get("status", {})
        return found

    def addresses(self, listener: str) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports[listener])

    def _reach(self, kube: Kube, cluster: Cluster) -> ClientConfig:
        found = platform_client(kube, cluster)
        return ClientConfig(
            self.addresses("INTERNAL" if found.security is None else "REPLICATION-9091"), found.security
        )

    def look(self) -> None:
        """The operator reconciles; then Kubernetes starts the pods that it has deleted."""
        self.services.store.put(self.kube.objects["Cluster", "east"])
        reconcile_cluster(self.services, self.cluster)
        self._mount()
        manifest = self.kube.objects.get(("StatefulSet", "east-brokers"))
        for number in range(BROKERS if manifest is not None else 0):
            assert manifest is not None
            if ("Pod", f"east-brokers-{number}") not in self.kube.objects:
                self._restart(number)
                template = manifest["spec"]["template"]["metadata"]["annotations"]
                self.kube.put(
                    {
                        "kind": "Pod",
                        "metadata": {
                            "namespace": "ns",
                            "name": f"east-brokers-{number}",
                            "labels": selector(self.cluster),
                            "annotations": dict(template),
                        },
                        "status": {
                            "conditions": [{"type": "Ready", "status": "True"}],
                            "hostIP": "127.0.0.1",
                        },
                    }
                )
            manifest["status"] = {"readyReplicas": BROKERS}

    def _mount(self) -> None:
        """Kubelet replaces files of a Secret in one step."""
        if (found := self.kube.objects.get(("Secret", "east-brokers-platform"))) is not None:
            new = self.folder / "new"
            new.write_bytes(base64.b64decode(found["data"]["credentials"]))
            os.replace(new, self.credentials)

    def _restart(self, number: int) -> None:
        broker = self.brokers[number]
        if broker.is_running:
            broker.stop()
            self.restarts += 1
        given = parse_properties(self.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"])
        names = [one.partition(":")[0] for one in given["listener.security.protocol.map"].split(",")]
        listeners = ",".join(f"{name}://127.0.0.1:{self.ports[name][number]}" for name in names)
        files = {key: str(self.credentials) for key in given if key.endswith("credentials.location")}
        own = {
            "broker.id": str(number),
            "log.dirs": str(broker.data),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "http.listener": "127.0.0.1:0",
        }
        broker.config = {**given, **defaults(BROKERS), **files, **own}
        broker.start()

    def until(self, what: str, done: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, f"{what}: {self.status}"
            self.look()

    def is_settled(self) -> bool:
        conditions = {one["type"]: one["status"] for one in self.status.get("conditions", ())}
        return (
            conditions == {"Ready": "True"}
            and self.status.get("observedGeneration")
            == (self.kube.objects["Cluster", "east"]["metadata"]["generation"])
        )


class Load:
    """The operator's requests, and a producer with acks=all at a listener of its own, each as fast as answers come."""

    def __init__(self, operated: Operated) -> None:
        self.operated = operated
        self.failures: list[str] = []
        self.requests = self.sent = 0
        self.delivered: list[int] = []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._ask, self._produce)]
        for one in self._threads:
            one.start()

    def _ask(self) -> None:
        while not self._ends.is_set():
            admin = self.operated.services.brokers_of(self.operated.cluster)
            try:
                assert admin.partitions(["t"]) == {"t": 1}
                self.requests += 1
            except AdminError as error:
                self.failures.append(f"the operator reads: {error}")
            try:
                change = ConfigChange({"retention.ms": str(10**9 + self.requests)}, ())
                assert admin.change_configs({"t": change}) == {"t": None}
                self.requests += 1
            except AdminError as error:
                # A write is not repeated before the next reconcile: a broker that stops may have carried it out.
                if not any(words in str(error) for words in CUT):
                    self.failures.append(f"the operator writes: {error}")

    def _produce(self) -> None:
        producer = Producer({**LOGIN, "bootstrap.servers": self.operated.addresses("APPS"), "acks": "all"})

        def told(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(f"a producer: {error}")
            else:
                self.delivered.append(int(message.value()))

        while not self._ends.is_set():
            producer.produce("t", str(self.sent).encode(), on_delivery=told)
            self.sent += 1
            producer.poll(0.005)
        assert producer.flush(60) == 0

    def end(self) -> None:
        self._ends.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    found = Operated(tmp_path)
    yield found
    found.services.admins.close()
    for one in found.brokers:
        one.discard()


def read(operated: Operated) -> list[int]:
    consumer = Consumer(
        {
            **LOGIN,
            "bootstrap.servers": operated.addresses("APPS"),
            "group.id": "g",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[int] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(int(message.value()))
    consumer.close()
    return found


def test_closing_an_open_cluster_and_replacing_the_password_fails_no_request(operated: Operated) -> None:
    operated.spec(INTERNAL, APPS)
    operated.until("the brokers start", operated.is_settled)
    admin = operated.services.brokers_of(operated.cluster)
    user = ScramCredential.of_password("app", ScramMechanism.SCRAM_SHA_512, "secret")
    assert admin.change_scram_users([user], []) == {"app": None}
    assert admin.create_topics([NewTopic("t", 1, 3, {})]) == {"t": None}
    load = Load(operated)
    try:
        operated.spec({**INTERNAL, **PASSWORDS}, APPS)
        operated.until(
            "the Internal listener is closed",
            lambda: operated.restarts == 2 * BROKERS and operated.is_settled(),
        )
        asked = load.requests
        operated.until("the operator still asks", lambda: load.requests > asked + 20)
        password = secret(operated, "password")
        operated.spec({**INTERNAL, **PASSWORDS}, APPS, rotate={"requestId": "spring"})
        operated.until("the password is replaced", lambda: secret(operated, "password") != password)
        operated.until("the old one has ended", lambda: not secret(operated, "previous"))
        operated.look()
        old = operated.services.admins.new(operated.addresses("REPLICATION-9091"))
        old.security = known(password)
        with pytest.raises(AdminError, match="refused user name or password"):
            old.cluster_id()
        old.close()
        anonymous = operated.services.admins.new(operated.addresses("INTERNAL"))
        with pytest.raises(AdminError):
            anonymous.cluster_id()
        anonymous.close()
        fresh = operated.services.admins.new(operated.addresses("REPLICATION-9091"))
        fresh.security = operated.services.client_of(operated.cluster).security
        assert fresh.cluster_id()
        fresh.close()
    finally:
        load.end()
    assert load.failures == []
    assert operated.restarts == 2 * BROKERS
    assert sorted(load.delivered) == list(range(load.sent))
    assert load.sent > 100
    assert set(read(operated)) == set(range(load.sent))


def secret(operated: Operated, key: str) -> str:
    data = operated.kube.objects["Secret", "east-brokers-platform"]["data"]
    return base64.b64decode(data.get(key, "")).decode()


def known(password: str) -> Security:
    user, value = (Credential("test", "test", value=one) for one in ("millstream-operator", password))
    return Security(sasl=Sasl("SCRAM-SHA-512", user, value))
