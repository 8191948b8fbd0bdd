"""Clusters on a laptop whose Internal listener asks for a login, with all that connects to them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream_harness.kube import until
from millstream_harness.local_closed import Closed
from millstream_operator.local import reconcile
from millstream_operator.state.context import Services

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

CONSUMER = """
import os, pathlib, sys
from confluent_kafka import Consumer
config = pathlib.Path(os.environ["MILLSTREAM_CONFIG"]).with_name("librdkafka.properties")
settings = dict(line.split("=", 1) for line in config.read_text().splitlines())
consumer = Consumer({**settings, "group.id": os.environ["MILLSTREAM_GROUP_ID"], "auto.offset.reset": "earliest",
                     "auto.commit.interval.ms": 200})
consumer.subscribe(os.environ["MILLSTREAM_TOPICS"].split(","))
while True:
    message = consumer.poll(0.2)
    if message is not None and not message.error():
        print("got", message.value().decode(), flush=True)
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Closed]:
    found = Closed(tmp_path)
    yield found
    found.runtime().down()


@contextlib.contextmanager
def shifted(by: timedelta) -> Iterator[None]:
    """Issue certificates by another clock."""
    services = functools.partial(Services, now=lambda: datetime.now(UTC) + by)
    with mock.patch.object(reconcile, "Services", services):
        yield


def answers(address: str) -> bool:
    """Whether a client without a login is served."""
    try:
        AdminClient({"bootstrap.servers": address}).list_topics(timeout=3)
    except KafkaException:
        return False
    return True


def test_users_workloads_and_mirrors_log_in(sandbox: Closed, tmp_path: Path) -> None:
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    sandbox.closed("west", sandbox.port)
    sandbox.closed("east", sandbox.east)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 2}")
    sandbox.user("writer", "west", "Write")
    sandbox.user("reader", "east", "Read")
    mirror = (
        "{sources: [{name: west, clusterRef: {name: west}}], target: {clusterRef: {name: east}},"
        " topics: {include: [orders]}, naming: Same}"
    )
    sandbox.write("MirrorMaker", "copy", mirror)
    container = f"{{name: c, image: ours, command: [{sys.executable}, {program}]}}"
    scaling = "scaling: {min: 1, max: 2, targetLag: 1000}"
    sandbox.write(
        "ConsumerGroup",
        "work",
        "{clusterRef: {name: west}, topics: [orders],"
        f" workload: {{{scaling}, template: {{spec: {{containers: [{container}]}}}}}}}}",
    )
    before = os.umask(0o022)
    try:
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
    finally:
        os.umask(before)

    sandbox.produce("writer", "one")
    assert sandbox.read("reader", 1) == ["one"], "by the mirror"
    log = sandbox.data / "consumers" / "work" / "0.log"
    until("the workload consumes", lambda: "got one\n" in log.read_text())

    ports = json.loads((sandbox.data / "state.json").read_text())["ports"]["broker/default/west/0"]
    listeners = {name: f"127.0.0.1:{port}" for name, port in ports.items() if not name.startswith("http")}
    assert len(listeners) == 3
    assert {name for name, address in listeners.items() if answers(address)} == set()
    assert "TOPIC_AUTHORIZATION_FAILED" in sandbox.refusal("reader", "two")

    users = sandbox.data / "users"
    assert users.stat().st_mode & 0o777 == 0o700
    for path in users.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    files = {path: path.stat().st_mtime_ns for path in users.glob("*/*")}
    pids = {name: sandbox.pid(name) for name in ("broker/default/west/0", "mirror/default/copy/0")}
    ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 0
    assert f"user config reader --data {sandbox.data} > reader.properties" in ended.stdout
    assert "produce orders" not in ended.stdout, "it would be refused"
    assert f"which only you can read: {sandbox.data}/users" in sandbox.run("status").stdout
    assert {path: path.stat().st_mtime_ns for path in users.glob("*/*")} == files
    assert {name: sandbox.pid(name) for name in pids} == pids
    assert sandbox.ready("MirrorMaker", "copy")[0] == "True"

    made = {"copy-mirror-user", "copy-mirror-trust", "work-consumers-user", "work-consumers-client", "writer"}
    made |= {f"west-{name}" for name in ("brokers-platform", "brokers-tls", "cluster-ca", "cluster-ca-cert")}
    assert made < sandbox.secrets()
    ended = sandbox.run("delete", "-f", str(sandbox.manifests), "--yes")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sandbox.secrets() == set()


@pytest.mark.soak
def test_expired_certificates_are_replaced_by_the_next_up(sandbox: Closed) -> None:
    """Those by which this command itself connects are among them."""
    sandbox.closed("west", sandbox.port)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")
    sandbox.user("app", "west", "All")
    with shifted(timedelta(days=-4000)):
        sandbox.runtime().up(sandbox.manifests)
    pid = sandbox.pid()
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert sandbox.pid() == pid
    sandbox.produce("app", "one")
    assert sandbox.read("app", 1) == ["one"]


def test_a_password_of_the_operator_is_replaced(sandbox: Closed) -> None:
    sandbox.closed("west", sandbox.port)
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, partitions: 1}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    password = sandbox.data / "users" / "west-brokers-platform" / "password"
    before = password.read_text()
    sandbox.closed("west", sandbox.port, rotate={"requestId": "once"})
    sandbox.write("Topic", "more", "{clusterRef: {name: west}, partitions: 1}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert password.read_text() != before
    assert sorted(password.parent.glob("[np]*")) == [password], "no other password is valid any more"


def test_a_secret_of_somebody_else_keeps_a_cluster_from_starting(sandbox: Closed) -> None:
    sandbox.closed("west", sandbox.port, listenerDefaults={}, authorization=None)
    sandbox.user("west-brokers-platform", "west", "Read")
    users = sandbox.data / "users"
    sandbox.runtime().up(sandbox.manifests)
    users.chmod(0o755)
    assert (users / "west-brokers-platform" / "password").exists()
    sandbox.closed("west", sandbox.port)
    failures = sandbox.runtime().up(sandbox.manifests).failures
    assert (
        "Secret west-brokers-platform exists and does not belong to this Cluster"
        in failures["Cluster default/west"]
    )
    assert users.stat().st_mode & 0o777 == 0o700


def test_a_manifest_that_was_secure_on_kubernetes_is_so_here(sandbox: Closed) -> None:
    """`kubectl get -o yaml` prints the annotation."""
    listeners = f"{{listeners: [{{name: internal, type: Internal, port: {sandbox.port}}}]}}"
    sandbox.write("Cluster", "west", listeners, "{millstream.dev/unstated-listeners: Secure}")
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert not answers(sandbox.bootstrap)
    sandbox.write("Cluster", "west", listeners)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert answers(sandbox.bootstrap)
