"""Real brokers, one of which has a clock that is an hour ahead: changes of configuration reach the others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from millstream_broker.coordination import tree
from millstream_faults.shifted import sitecustomize
from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import STABLE, ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, QUICK
from millstream_harness.wire import Wire
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol import describe_configs, incremental_alter_configs

pytestmark = pytest.mark.soak

HOUR_NS = 3600 * 10**9
TOPIC = 2
"""The type of resource in requests about configuration."""
OFTEN = 20
"""Changes after which a broker has read the first ones."""


def let_its_clock_be_ahead(broker: BrokerProcess, file: Path) -> None:
    file.write_bytes(HOUR_NS.to_bytes(8, "little", signed=True))
    path = os.pathsep.join((str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")))
    launch = broker.launch

    def launched(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        launch(command, {**os.environ, "PYTHONPATH": path, sitecustomize.ENVIRONMENT: str(file)})

    broker.launch = launched  # type: ignore[method-assign]


@pytest.fixture
def cluster(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Broker 1, whose clock is ahead, is the controller. Broker 2 deletes old records twice a second."""
    config = {**STABLE, "log.retention.check.interval.ms": "500"}
    with_two = ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper)
    let_its_clock_be_ahead(with_two.brokers[1], tmp_path / "clock")
    with with_two as cluster:
        if cluster.controller() != 1:
            cluster.brokers[2].restart()
        until(lambda: cluster.controller() == 1, "broker 1 is the controller")
        yield cluster


@pytest.fixture
def stored(cluster: ClusterProcesses) -> Iterator[KazooClient]:
    client = KazooClient(cluster.connect)
    client.start(60)
    yield client
    client.stop()
    client.close()


def alter(broker: BrokerProcess, topic: str, key: str, value: str) -> None:
    change = incremental_alter_configs.AlterableConfig(key, 0, value)
    resource = incremental_alter_configs.AlterConfigsResource(TOPIC, topic, [change])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], False)
    with Wire(broker.bootstrap) as wire:
        (answer,) = wire.call(incremental_alter_configs.API, 1, request).responses
    assert answer.error_code == 0, answer


def value_at(broker: BrokerProcess, topic: str, key: str) -> str | None:
    resource = describe_configs.DescribeConfigsResource(TOPIC, topic, [key])
    with Wire(broker.bootstrap) as wire:
        request = describe_configs.DescribeConfigsRequest([resource], False, False)
        (answer,) = wire.call(describe_configs.API, 4, request).results
    return next((one.value for one in answer.configs if one.name == key), None)


def ends(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """The first offset, and the end."""
    with Wire(broker.bootstrap) as wire:
        found = wire.fetch(topic, wire.end_offset(topic))
    return found.log_start_offset, found.high_watermark


@pytest.mark.parametrize("removed_by", ["the broker that is ahead", "somebody else"])
def test_a_change_is_noticed_whoever_removes_its_note(
    cluster: ClusterProcesses, stored: KazooClient, removed_by: str
) -> None:
    """`kept` is to keep its records for ever: broker 2 must know that, or it deletes them like those of `swept`."""
    other = cluster.brokers[2]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    for name in ("kept", "swept"):
        config = {"retention.ms": "3600000", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic(name, 1, replica_assignment=[[2]], config=config)])[name].result(60)
        cluster.await_in_sync(name, 1)
    other.pause()
    alter(cluster.brokers[1], "kept", "retention.ms", "-1")
    first = sorted(stored.get_children(tree.CONFIG_CHANGES))[-1]
    for number in range(OFTEN):
        alter(cluster.brokers[1], "swept", "segment.ms", str(3_600_000 + number))
    if removed_by == "somebody else":
        stored.delete(f"{tree.CONFIG_CHANGES}/{first}")
    else:
        assert first in stored.get_children(tree.CONFIG_CHANGES)
    other.resume()
    last = str(3_600_000 + OFTEN - 1)
    until(lambda: value_at(other, "swept", "segment.ms") == last, "broker 2 knows the last change")
    old_ms = int(time.time() * 1000) - 2 * 3_600_000
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUICK})
    for name in ("kept", "swept"):
        for number in range(300):
            producer.produce(name, str(number).encode(), timestamp=old_ms)
    assert producer.flush(60) == 0
    until(lambda: ends(other, "swept") == (300, 300), "old records are deleted")
    assert ends(other, "kept") == (0, 300)
