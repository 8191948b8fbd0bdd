"""A shared broker, the command connected to it, and a topic; a broker with a ZooKeeper."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.command import millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_harness.zookeeper import ZooKeeperProcess

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(shared_broker: InProcessBroker) -> Run:
    """``run("topic", "list")`` on the shared broker; asserts the exit status ``status``, by default 0."""

    def run(*arguments: str, stdin: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
        ended = millstream(*arguments, stdin=stdin, bootstrap=shared_broker.bootstrap)
        assert ended.returncode == status, ended.stderr.decode()
        assert b"Traceback" not in ended.stderr
        return ended

    return run


@pytest.fixture(scope="module")
def brokers(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    """One broker with a ZooKeeper."""
    with ClusterProcesses(tmp_path_factory.mktemp("brokers"), 1, zookeeper=shared_zookeeper) as cluster:
        yield cluster


@pytest.fixture
def topic(shared_broker: InProcessBroker) -> str:
    """A new topic of three partitions that keeps records for an hour."""
    name = unique("client")
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})])[name].result(10)
    return name
