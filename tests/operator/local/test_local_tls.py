"""A Cluster with TLS on a laptop: its certificates in files, real brokers, and clients that verify them."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream_harness.broker import fixed_port
from millstream_harness.local import Sandbox
from millstream_operator.certificates.issuing import fingerprint, read_certificates
from millstream_operator.kafka.served_certificate import served_certificate
from millstream_operator.local import reconcile
from millstream_operator.local.processes import wait_for
from millstream_operator.state.context import Services

pytestmark = pytest.mark.soak

MINUTES = timedelta(minutes=1)


class Secured(Sandbox):
    """A Cluster west with a listener apps; its certificates are planned by a clock of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shift = timedelta()
        self.apps = fixed_port()
        self.request: str | None = None
        self.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")

    def up(self) -> None:
        listeners = [
            {"name": "internal", "type": "Internal", "port": self.port},
            {"name": "apps", "type": "NodePort", "port": self.apps, "tls": "Enabled"},
        ]
        authority: dict[str, Any] = {"overlapDays": 0}
        if self.request is not None:
            authority["rotate"] = {"requestId": self.request}
        self.write("Cluster", "west", json.dumps({"listeners": listeners, "certificateAuthority": authority}))
        services = functools.partial(Services, now=lambda: datetime.now(UTC) + self.shift)
        with mock.patch.object(reconcile, "Services", services):
            assert self.runtime().up(self.manifests).failures == {}

    def file(self, secret: str, key: str) -> Path:
        return self.data / "users" / f"west-{secret}" / key

    @property
    def trusted(self) -> str:
        return self.file("cluster-ca-cert", "ca.crt").read_text()

    def condition(self) -> str:
        conditions = self.found("Cluster", "west")["status"]["conditions"]
        return next(each["reason"] for each in conditions if each["type"] == "CertificatesReady")

    def wait_until_served(self) -> None:
        """Until the broker serves what was issued last."""

        def is_served() -> bool:
            served = served_certificate("127.0.0.1", self.apps)
            issued = read_certificates(self.file("brokers-tls", "broker-0.pem").read_bytes())[0]
            return served is not None and fingerprint(served) == fingerprint(issued)

        assert wait_for(is_served, 30.0)

    def settings(self, trusted: str) -> dict[str, Any]:
        address = f"localhost:{self.apps}"
        return {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.pem": trusted}

    def connects(self, trusted: str) -> bool:
        """Whether a new client of librdkafka verifies the broker."""
        try:
            AdminClient(self.settings(trusted)).list_topics(timeout=5)
        except KafkaException:
            return False
        return True


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Secured]:
    found = Secured(tmp_path)
    yield found
    found.runtime().down()


class Load:
    """An idempotent producer with acks=all, in a thread."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": 30_000})
        self.sent = 0
        self.failed: list[str] = []
        self.done = 0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.ends.is_set():
            self.producer.produce("orders", str(self.sent).encode(), on_delivery=self._delivered)
            self.sent += 1
            self.producer.poll(0.005)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.done += 1

    def end(self) -> None:
        self.ends.set()
        self.thread.join()
        assert self.producer.flush(30) == 0


def test_files_are_private_and_clients_verify_the_broker(sandbox: Secured) -> None:
    sandbox.up()
    (outside,) = sandbox.found("Cluster", "west")["status"]["listeners"]
    assert (outside["protocol"], outside["caSecret"]) == ("SSL", "west-cluster-ca-cert")
    assert sandbox.connects(sandbox.trusted)
    for secret in ("cluster-ca", "cluster-ca-cert", "brokers-tls"):
        for path in (sandbox.data / "users" / f"west-{secret}").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
    before = {path: path.stat().st_mtime_ns for path in (sandbox.data / "users").glob("*/*")}
    sandbox.up()
    assert {path: path.stat().st_mtime_ns for path in (sandbox.data / "users").glob("*/*")} == before
    assert sandbox.condition() == "CertificatesCurrent"
    sandbox.run("delete", "-f", str(sandbox.manifests))
    assert not list((sandbox.data / "users").glob("west-*"))


def test_certificates_that_expired_are_replaced_without_a_restart(sandbox: Secured) -> None:
    sandbox.shift = timedelta(days=-4000)
    sandbox.up()
    assert not sandbox.connects(sandbox.trusted)
    pid = sandbox.pid()
    sandbox.shift = timedelta()
    sandbox.up()
    sandbox.wait_until_served()
    assert sandbox.connects(sandbox.trusted)
    assert sandbox.pid() == pid


def test_authority_is_replaced_under_load_without_a_failure(sandbox: Secured) -> None:
    """In each step, a client connects with the authorities of the present step, and with those of the one before."""
    sandbox.up()
    first = sandbox.trusted
    pid = sandbox.pid()
    load = Load(sandbox.settings(first))
    reasons, authorities = [], [first]
    try:
        sandbox.request = "once"
        for minutes in (0, 0, 16, 16, 32, 32):
            sandbox.shift = minutes * MINUTES
            sandbox.up()
            sandbox.wait_until_served()
            assert sandbox.connects(sandbox.trusted)
            assert sandbox.connects(authorities[-1])
            authorities.append(sandbox.trusted)
            reasons.append(sandbox.condition())
    finally:
        load.end()
    assert load.failed == []
    assert load.done == load.sent > 100
    consumer = Consumer({**sandbox.settings(sandbox.trusted), "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, load.sent)
    consumer.close()
    assert sandbox.pid() == pid
    assert reasons[0] == "AuthorityBothTrusted"
    assert "AuthorityRetiring" in reasons
    assert reasons[-1] == "CertificatesCurrent"
    assert not sandbox.connects(first)
