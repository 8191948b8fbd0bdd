"""The brokers of a measurement (operator_scale.py), their requests, and what clients do there."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import AdminError, Partition

from .broker import BrokerProcess
from .cluster import ClusterProcesses
from .operator_scale_figures import Size

RECORD = b"x" * 100
CONFIG = {
    "log.retention.hours": "1",
    # Rules of Users need an authorizer; everybody here is anonymous.
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "audit.log": "off",
}
DEFAULTS = {
    "zookeeper.session.timeout.ms": "18000",
    "replica.lag.time.max.ms": "30000",
    "offsets.topic.num.partitions": "50",
}
"""The harness's clusters notice lost brokers and lagging replicas sooner than by default; thousands of replicas on few
cores would leave and join ISRs all the time."""
NEVER_THE_OPERATORS = frozenset({"Produce", "Fetch", "OffsetCommit", "UpdateMetadata", "StopReplica"})
"""APIs of clients and brokers that the operator does not call under traffic."""
COUNT = re.compile(r'^millstream_request_seconds_count{.*api="(\w+)".*} (\S+)$', re.MULTILINE)


class Brokers:
    """A broker alone, or several of a cluster with a ZooKeeper."""

    def __init__(self, folder: Path, number: int, replicas: int) -> None:
        self._cluster: ClusterProcesses | None = None
        if replicas > 1:
            cluster = ClusterProcesses(folder, replicas, {**CONFIG, **DEFAULTS})
            # The operator's numbers: otherwise it would wait for ever to drain the last broker.
            cluster.brokers = {broker: cluster.broker(broker) for broker in range(replicas)}
            self._cluster, self.processes = cluster, list(cluster.brokers.values())
        else:
            self.processes = [BrokerProcess(folder, {"broker.id": str(number), **CONFIG})]

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap if self._cluster else self.processes[0].bootstrap

    @property
    def zookeeper(self) -> str:
        """Where ZooKeeper is, with the cluster's chroot; empty without one."""
        return self._cluster.connect if self._cluster else ""

    def start(self) -> None:
        (self._cluster or self.processes[0]).start()

    def kill(self) -> None:
        if self._cluster:
            self._cluster.kill()
        else:
            self.processes[0].kill()

    def pause(self) -> None:
        for one in self.processes:
            one.pause()

    def resume(self) -> None:
        for one in self.processes:
            one.resume()


def answered(kafkas: Sequence[Brokers]) -> Counter[str]:
    """Number of requests that all brokers have answered, by API, without those that are never the operator's."""
    found: Counter[str] = Counter()
    for broker in (one for kafka in kafkas for one in kafka.processes):
        _, page = broker.get("/metrics")
        for api, count in COUNT.findall(page):
            if api not in NEVER_THE_OPERATORS:
                found[api] += int(float(count))
    return found


class Traffic:
    """Produces a record to every topic and a commit for every group in each period."""

    def __init__(self, size: Size, kafkas: Sequence[Brokers]) -> None:
        self._size, self._kafkas = size, kafkas
        self.stopped = threading.Event()
        self.rounds = 0
        for number in range(len(kafkas)):
            threading.Thread(target=self._run, args=(number,), daemon=True).start()

    def _run(self, number: int) -> None:
        """The traffic of one of them."""
        size, bootstrap = self._size, self._kafkas[number].bootstrap
        mine = [one for one in range(size.topics) if one % size.clusters % size.brokers == number]
        groups = [one for one in range(size.groups) if one % size.clusters % size.brokers == number]
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "log_level": 0})
        admin = KafkaAdmin(bootstrap, "traffic")
        produced: Counter[str] = Counter()
        self.stopped.wait(random.random() * size.period_s)
        while not self.stopped.is_set():
            begun = time.monotonic()
            for one in mine:
                for partition in range(size.partitions):
                    producer.produce(topic_name(one), RECORD, partition=partition)
                produced[topic_name(one)] += 1
            producer.flush(size.period_s)
            with contextlib.suppress(AdminError):
                for one in groups:
                    read = topic_of_group(size, one)
                    at = max(0, produced[read] - random.randint(0, 3))
                    offsets = {Partition(read, index): at for index in range(size.partitions)}
                    admin.commit(f"g-{one:04}", offsets)
            self.rounds += number == 0
            self.stopped.wait(max(0.0, size.period_s - (time.monotonic() - begun)))
        admin.close()


def topic_name(number: int) -> str:
    return f"t-{number:05}"


def topic_of_group(size: Size, number: int) -> str:
    """One of the topics of the group's Cluster."""
    return topic_name(number % size.topics)
