"""The cluster that is broken: three brokers, ZooKeeper, a disk for each broker; and a watch over what they say.

With a network of one's own (see `isolation`) each broker has an address and a disk of its own; without, all of it is on
127.0.0.1, and what cannot be broken then is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from millstream_broker.client import ClusterClient, Connection
from millstream_broker.client.errors import BrokerError
from millstream_broker.protocol import alter_partition_reassignments, create_topics, elect_leaders, metadata
from millstream_broker.protocol.errors import ApiError, ErrorCode
from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.disk import Disk, small_disk
from millstream_harness.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess

from .history import HistoryWriter, Led
from .isolation import HERE, Network

TOPIC = "faults"
PARTITIONS = 6
OFFSETS_PARTITIONS = 4
DISK_MB = 512
PATIENCE_S = 120.0
"""For a process to start: a broker waits for ZooKeeper, and a machine may be busy."""
CONFIG = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "replica.lag.time.max.ms": "2000",
    "log.segment.bytes": "4000000",
    "leader.imbalance.check.interval.seconds": "20",
    "log.flush.offset.checkpoint.interval.ms": "2000",
}


class LabBroker(BrokerProcess):
    """One that may live in a network of its own."""

    start_timeout_s = PATIENCE_S
    stop_timeout_s = 40.0
    entering: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        return [*self.entering, *super().command]

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        super().launch(command, {**os.environ, **(environment or {}), "PYTHONFAULTHANDLER": "1"})

    def stop(self, timeout: float | None = None) -> int:
        """SIGTERM; one that does not end in time leaves its threads' stacks in its log."""
        process, self.process = self.process, None
        assert process is not None
        process.terminate()
        try:
            return process.wait(timeout or self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise


class Lab(ClusterProcesses):
    """Brokers 1 to 3. ``network`` is None where there is none; ``servers`` is how many ZooKeeper has."""

    def __init__(self, folder: Path, network: Network | None, servers: int) -> None:
        self.network = network
        host = HERE if network else "127.0.0.1"
        if servers == 1:
            zookeeper: ZooKeeperProcess | ZooKeeperEnsemble
            zookeeper = ZooKeeperProcess(folder / "zookeeper-1", host=host)
            self.servers = [zookeeper]
        else:
            zookeeper = ZooKeeperEnsemble(folder, servers, host)
            self.servers = zookeeper.servers
        for server in self.servers:
            server.start_timeout_s = PATIENCE_S
        super().__init__(folder, 3, CONFIG, zookeeper=zookeeper)
        self.disks: dict[int, Disk] = {}
        self._mounted = contextlib.ExitStack()

    def broker(self, number: int, **config: str) -> LabBroker:
        settings = {"broker.id": str(number), **self.config, **config}
        broker = LabBroker(self.folder / f"broker-{number}", settings)
        if self.network is None:
            broker.keep_port()
        else:
            broker.entering = self.network.entering(number)
            address = self.network.address(number)
            broker.config["listeners"] = f"PLAINTEXT://{address}:{fixed_port()}"
            broker.config["http.listener"] = f"{address}:0"
        return broker

    @property
    def zookeeper_ports(self) -> list[int]:
        return [server.port for server in self.servers]

    def start(self) -> Lab:
        self.zookeeper.start()
        if self.network is not None:
            for number, broker in self.brokers.items():
                self.disks[number] = self._mounted.enter_context(small_disk(broker.data, DISK_MB))
        super().start()
        asyncio.run(self._create())
        self.await_in_sync(TOPIC, 3)
        return self

    async def _create(self) -> None:
        topic = create_topics.CreatableTopic(TOPIC, PARTITIONS, 3)
        async with ClusterClient(self.bootstrap, "lab") as client:
            request = create_topics.CreateTopicsRequest([topic], 20_000, False)
            answer = await client.call_any(create_topics.API, request)
        for one in answer.topics:
            assert one.error_code == 0, one.error_message

    def kill(self) -> None:
        super().kill()
        self.zookeeper.kill()

    def ended(self) -> list[tuple[int, subprocess.Popen[bytes] | None]]:
        """Brokers that do not run, with the process that nobody ended or None."""
        return [
            (number, broker.process)
            for number, broker in self.brokers.items()
            if broker.process is None or broker.process.poll() is not None
        ]

    def reassign(self, targets: dict[int, list[int]]) -> str:
        """Ask for other replicas of partitions; what became of the request."""

        async def ask() -> str:
            request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                5000,
                [
                    alter_partition_reassignments.ReassignableTopic(
                        TOPIC,
                        [
                            alter_partition_reassignments.ReassignablePartition(partition, replicas)
                            for partition, replicas in targets.items()
                        ],
                    )
                ],
            )
            async with ClusterClient(self.bootstrap, "lab", timeout=6.0, connect_timeout=1.0) as client:
                answer = await client.call_any(alter_partition_reassignments.API, request)
            codes = {answer.error_code} | {
                one.error_code for topic in answer.responses for one in topic.partitions
            }
            return ", ".join(ErrorCode.of(code).name for code in codes)

        return _told(ask)

    def elect_preferred(self) -> str:
        """Ask for the preferred leaders of all partitions; what became of the request."""

        async def ask() -> str:
            request = elect_leaders.ElectLeadersRequest(
                0, [elect_leaders.TopicPartitions(TOPIC, list(range(PARTITIONS)))], 5000
            )
            async with ClusterClient(self.bootstrap, "lab", timeout=6.0, connect_timeout=1.0) as client:
                answer = await client.call_any(elect_leaders.API, request)
            codes = {answer.error_code} | {
                one.error_code for topic in answer.replica_election_results for one in topic.partition_result
            }
            return ", ".join(ErrorCode.of(code).name for code in codes)

        return _told(ask)


def _told(ask: Callable[[], Coroutine[None, None, str]]) -> str:
    try:
        return asyncio.run(ask())
    except (BrokerError, ApiError) as error:
        return str(error)


class Watch:
    """Asks every broker for the topic's metadata, all the time; notes who leads, for the story of a record."""

    def __init__(self, lab: Lab, history: HistoryWriter) -> None:
        self._lab, self._history = lab, history
        self._answers: dict[int, tuple[float, metadata.MetadataResponse]] = {}
        self._known: dict[int, metadata.MetadataResponsePartition] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def partition(self, index: int) -> metadata.MetadataResponsePartition | None:
        """What is known of a partition from the newest leader epoch that anybody told."""
        return self._known.get(index)

    def leader(self, index: int) -> int | None:
        """The broker that leads, if one does."""
        known = self._known.get(index)
        return known.leader_id if known is not None and known.leader_id > 0 else None

    def controller(self) -> int | None:
        """The broker that most of those who answered of late call the controller."""
        now = time.monotonic()
        said = Counter(answer.controller_id for at, answer in self._answers.values() if now - at < 2.0)
        return next((controller for controller, _ in said.most_common() if controller > 0), None)

    def await_leader(self, index: int, timeout: float = 20.0) -> int | None:
        deadline = time.monotonic() + timeout
        while self.leader(index) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.leader(index)

    def whole(self) -> bool:
        """Whether every broker says, just now, that all partitions have a leader and three in-sync replicas."""
        now = time.monotonic()
        fresh = [answer for at, answer in self._answers.values() if now - at < 2.0]
        return len(fresh) == len(self._lab.brokers) and all(_is_whole(answer) for answer in fresh)

    async def _run(self) -> None:
        await asyncio.gather(*(self._follow(number) for number in self._lab.brokers))

    async def _follow(self, number: int) -> None:
        host, port = self._lab.brokers[number].config["listeners"].split("://")[1].rsplit(":", 1)
        request = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=TOPIC)], False)
        connection: Connection | None = None
        while not self._stop.is_set():
            try:
                if connection is None:
                    connection = await Connection.open(host, int(port), "watch", timeout=1.0)
                answer = await connection.call(metadata.API, None, request)
                self._answers[number] = time.monotonic(), answer
                for topic in answer.topics:
                    for one in topic.partitions:
                        self._note(number, one)
            except BrokerError:
                if connection is not None:
                    await connection.close()
                connection = None
            await asyncio.sleep(0.15)
        if connection is not None:
            await connection.close()

    def _note(self, number: int, one: metadata.MetadataResponsePartition) -> None:
        known = self._known.get(one.partition_index)
        if known is not None:
            if one.leader_epoch < known.leader_epoch:
                return
            same = (one.leader_id, one.leader_epoch) == (known.leader_id, known.leader_epoch)
            if same and (one.leader_id != number or set(one.isr_nodes) == set(known.isr_nodes)):
                return  # of one epoch, the leader knows the ISR first
        self._known[one.partition_index] = one
        event = Led(
            time.monotonic(),
            f"broker {number}",
            one.partition_index,
            one.leader_id,
            one.leader_epoch,
            one.isr_nodes,
        )
        self._history.add(event)


def _is_whole(answer: metadata.MetadataResponse) -> bool:
    partitions = [one for topic in answer.topics for one in topic.partitions]
    return len(partitions) == PARTITIONS and all(
        one.leader_id > 0 and len(one.isr_nodes) == 3 and len(one.replica_nodes) == 3 for one in partitions
    )
