"""Fixtures for every test: an own broker, or one shared by a whole session; a cluster.

Brokers run in the test's process. Only what needs a process (signals, memory, limits, standard output, a failing disk)
takes ``start_broker_process`` or ``cluster_of_processes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.java import kafka_jars as fetch_kafka_jars
from millstream_harness.zookeeper import ZooKeeperProcess

pytest_plugins = ["millstream_harness.tier_plugin", "millstream_harness.shuffled_loop"]

StartBroker = Callable[..., InProcessBroker]
StartBrokerProcess = Callable[..., BrokerProcess]

# On a busy machine hypothesis is slow to generate examples: that is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# It is enough to notice a mutant: the same few examples each time, and no shrinking.
settings.register_profile(
    "mutation",
    settings.get_profile("patient"),
    derandomize=True,
    max_examples=25,
    phases=(Phase.explicit, Phase.generate),
)


@pytest.hookimpl(tryfirst=True)
def pytest_make_parametrize_id(val: object) -> str | None:
    """Long bytes are no useful id; those with a time or a new key differ between processes, even in length."""
    return "bytes" if isinstance(val, bytes) and len(val) > 16 else None


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    """A broker for many tests at once: each uses its own names for topics and groups.

    Tests write records of years ago, which it does not delete in the middle of one: it checks for old ones once a day.
    """
    config = {"log.retention.check.interval.ms": "86400000"}
    with InProcessBroker(tmp_path_factory.mktemp("shared-broker"), config) as broker:
        yield broker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """``start_broker({KEY: VALUE})`` starts another broker, in this process (``in_process_broker``)."""
    started: list[InProcessBroker] = []

    def start(config: dict[str, str] | None = None, folder: Path | None = None) -> InProcessBroker:
        broker = InProcessBroker(folder or tmp_path / f"broker-{len(started) + 1}", config)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.discard()


@pytest.fixture
def start_broker_process(tmp_path: Path) -> Iterator[StartBrokerProcess]:
    """``start_broker_process({KEY: VALUE})`` starts another broker, as a process."""
    started: list[BrokerProcess] = []

    def start(config: dict[str, str] | None = None, folder: Path | None = None) -> BrokerProcess:
        broker = BrokerProcess(folder or tmp_path / f"process-{len(started) + 1}", config)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.kill()


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder of Apache Kafka's jars; run its tools with ``millstream_harness.java.run_kafka_tool``."""
    return fetch_kafka_jars()


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper for many tests at once: each uses its ``own_tree``."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("shared-zookeeper")) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """Three brokers in this process for one test, which may break every one of them (``in_process_cluster``)."""
    with InProcessCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def cluster_of_processes(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers as processes for one test, which may break every one of them, but not ZooKeeper."""
    with ClusterProcesses(tmp_path, zookeeper=shared_zookeeper) as cluster:
        yield cluster
