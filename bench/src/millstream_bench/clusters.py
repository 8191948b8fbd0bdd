"""Three brokers of either kind on one machine, for the workloads of a cluster.

Millstream is three broker processes and one ZooKeeper (from pyspark's jars: a heap of 256 MB at most, a
tick of 500 ms); Kafka is three processes that are broker and controller (KRaft's combined mode), each with the JVM
options of a single one. Both have replication factor 3, min.insync.replicas 2 and the same session timeout,
otherwise their defaults, and keep everything in one folder.
"""

from __future__ import annotations

import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import NewTopic

from millstream_bench import perf, process, wire
from millstream_bench.peers import KAFKA, Peer
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.java import java_command, run
from millstream_harness.kafka import READY, SERVER_JVM, KafkaProcess
from millstream_harness.zookeeper import ZooKeeperProcess

NUMBERS = (1, 2, 3)
SESSION_S = 6.0
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
}
# The harness's clusters notice a lagging replica sooner than Kafka does by default.
DEFAULTS = {"replica.lag.time.max.ms": "30000", "offsets.topic.num.partitions": "50"}
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
POLL_S = 0.02
START_S = 180.0  # three JVMs that start at once, on few cores


class Cluster(ABC):
    """Brokers 1 to 3, ``brokers[2]`` the second; ``addresses`` are theirs while the cluster lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.brokers: dict[int, BrokerProcess] | dict[int, KafkaProcess] = {}
        self.addresses: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @abstractmethod
    def start(self) -> None:
        """Start everything; return when every broker knows all others."""

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    @abstractmethod
    def controller(self) -> int:
        """The number of the broker whose loss would need a new controller."""

    def bystander(self) -> int:
        """A broker that is not the controller."""
        return next(number for number in NUMBERS if number != self.controller())

    def others(self, number: int) -> list[int]:
        return [one for one in NUMBERS if one != number]

    def beside_brokers(self) -> ZooKeeperProcess | None:
        """The process that the cluster needs besides its brokers, if any."""
        return None

    def pids(self) -> list[int]:
        beside = self.beside_brokers()
        return [broker.pid for broker in self.brokers.values()] + ([beside.pid] if beside else [])

    def cpu_seconds(self) -> float:
        """CPU time of all brokers, and of ZooKeeper."""
        return sum(process.cpu_seconds(pid) for pid in self.pids())

    def memory_mb(self) -> float:
        """Memory of all brokers, and of ZooKeeper; shared memory counts once."""
        return process.proportional_mb(self.pids())

    def await_each_other(self) -> None:
        for number in NUMBERS:
            await_metadata(self.addresses[number], None, lambda found: len(found.brokers) == len(NUMBERS))

    def create(self, partitions: int = 1, leader: int | None = None) -> str:
        """Create a topic of three replicas, all in sync and known to all brokers; ``leader`` leads all partitions."""
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        if leader is None:
            asked = NewTopic(topic, partitions, len(NUMBERS))
        else:
            asked = NewTopic(
                topic, partitions, replica_assignment=[[leader, *self.others(leader)]] * partitions
            )
        client = perf.admin(self.bootstrap)
        client.create_topics([asked])[topic].result(60)
        del client
        for number in NUMBERS:
            await_metadata(self.addresses[number], topic, lambda found: _in_sync(found, partitions))
        return topic


class MillstreamCluster(Cluster):
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.zookeeper = ZooKeeperProcess(folder / "zookeeper")
        session = {"zookeeper.session.timeout.ms": f"{SESSION_S * 1000:.0f}"}
        self._processes = ClusterProcesses(
            folder, len(NUMBERS), {**SETTINGS, **DEFAULTS, **session}, zookeeper=self.zookeeper
        )
        self.brokers = self._processes.brokers
        self.addresses = {
            number: broker.config["listeners"].split("://")[1] for number, broker in self.brokers.items()
        }

    @property
    def connect(self) -> str:
        """ZooKeeper's address, with the cluster's chroot."""
        return self._processes.connect

    def start(self) -> None:
        self.zookeeper.start()
        self._processes.start()
        self.await_each_other()

    def kill(self) -> None:
        super().kill()
        self.zookeeper.kill()

    def controller(self) -> int:
        with wire.connect(self.addresses[1]) as sock:
            return wire.metadata(sock).controller

    def beside_brokers(self) -> ZooKeeperProcess:
        return self.zookeeper


class KafkaCluster(Cluster):
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        controllers = {number: fixed_port() for number in NUMBERS}
        voters = [f"{number}@127.0.0.1:{port}" for number, port in controllers.items()]
        self.addresses = {number: f"127.0.0.1:{fixed_port()}" for number in NUMBERS}
        self.processes = {
            number: KafkaProcess(
                folder / f"broker-{number}",
                {
                    **SETTINGS,
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://{self.addresses[number]},CONTROLLER://127.0.0.1:{controller}",
                    "controller.quorum.voters": ",".join(voters),
                    "broker.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
                    "offsets.topic.replication.factor": "3",
                    "transaction.state.log.replication.factor": "3",
                    "transaction.state.log.min.isr": "2",
                },
                jvm=SERVER_JVM,
            )
            for number, controller in controllers.items()
        }
        self.brokers = self.processes

    def start(self) -> None:
        for broker in self.processes.values():
            broker.prepare()
        for broker in self.processes.values():
            broker.launch(broker.command)
        for broker in self.processes.values():
            broker.start_timeout_s = START_S
            broker.await_ready(READY.search)
        self.await_each_other()

    def controller(self) -> int:
        """The quorum's leader. In Kafka's metadata, any broker may be called the controller."""
        command = java_command(QUORUM, "--bootstrap-server", self.bootstrap, "describe", "--status")
        return quorum_leader(run(command).stdout)


def quorum_leader(said: str) -> int:
    """Parse the output of kafka-metadata-quorum.sh; ValueError if it names no leader."""
    found = re.search(r"^LeaderId:\s+(\d+)$", said, re.MULTILINE)
    if not found:
        raise ValueError(f"the tool names no leader of the quorum:\n{said}")
    return int(found[1])


@contextmanager
def running(peer: Peer) -> Iterator[Cluster]:
    """A cluster of the peer's kind in its folder, started; killed at the end."""
    kind = KafkaCluster if peer.name == KAFKA else MillstreamCluster
    cluster = kind(peer.name, peer.folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def all_led(found: wire.Metadata, partitions: int, alive: Sequence[int]) -> bool:
    """Whether every partition has a live leader."""
    return len(found.partitions) == partitions and all(one.leader in alive for one in found.partitions)


def _in_sync(found: wire.Metadata, partitions: int) -> bool:
    return all_led(found, partitions, NUMBERS) and all(
        len(one.in_sync) == len(NUMBERS) for one in found.partitions
    )


def await_metadata(address: str, topic: str | None, holds: Callable[[wire.Metadata], bool]) -> None:
    """Wait until one broker's metadata satisfies a condition; TimeoutError after a minute."""
    deadline = time.monotonic() + wire.TIMEOUT_S
    with wire.connect(address) as sock:
        while not holds(found := wire.metadata(sock, topic)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{address} says of {topic or 'the cluster'} for a minute: {found}")
            time.sleep(POLL_S)
