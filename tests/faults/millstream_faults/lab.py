"""The cluster under test: three brokers, ZooKeeper and a disk for each broker; and a watch over their metadata.

With network namespaces (see `isolation`) each broker has its own address and disk; without, everything runs on
127.0.0.1, and faults that need them are left out.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.disk import Disk, small_disk
from millstream_harness.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess
from millstream_kafka.client import Connection
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol import metadata

from .administration import Administration
from .ensemble import Ensemble
from .history import Discarded, Held, HistoryWriter, Led
from .isolation import HERE, Network
from .replicas import held
from .secured import ANONYMOUS, NAMES, Secured
from .shifted import sitecustomize
from .topics import PLANS, Place
from .users import SECURED, Users

BROKERS = 3
COORDINATOR_PARTITIONS = 4
DISK_MB = 512
PATIENCE_S = 300.0
"""Limit for a process to start or to end: a broker waits for ZooKeeper, and the machine may be busy. No promise."""
CONFIG = {
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # The transactional ids of a run are idle only while their partitions have no leaders.
    "transactional.id.expiration.ms": "20000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "log.segment.bytes": "4000000",
    "log.retention.check.interval.ms": "3000",
    "log.cleaner.backoff.ms": "1000",
    "auto.create.topics.enable": "false",
    "leader.imbalance.check.interval.seconds": "20",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    # With an hour-ahead clock or without its topic's configuration, a broker would delete records at once.
    "log.retention.ms": "1800000",
    # A broker whose clock is behind otherwise rejects what clients send, as Kafka does.
    "log.message.timestamp.after.max.ms": "7200000",
}
TRANSACTIONS = "__transaction_state"
INTERNAL = ("__consumer_offsets", TRANSACTIONS)
"""Topics of coordinators, each with `COORDINATOR_PARTITIONS` partitions."""
DIRECTORIES = 2
"""Log directories of a broker at the start."""
SHIFTED = Path(sitecustomize.__file__).parent


class LabBroker(BrokerProcess):
    """A broker that may live in its own network. Clients and brokers use separate listeners."""

    start_timeout_s = PATIENCE_S
    stop_timeout_s = 120.0
    entering: Sequence[str] = ()

    def __init__(self, folder: Path, config: Mapping[str, str]) -> None:
        super().__init__(folder, config)
        self.directories: list[Path] = []
        self.use([self.data / f"d{number}" for number in range(1, DIRECTORIES + 1)])
        self._clock = folder / "clock"
        self._begun = 0

    def use(self, directories: Sequence[Path]) -> None:
        """Have these log directories from the next start on."""
        self.directories = list(directories)
        self.config["log.dirs"] = ",".join(map(str, directories))

    def shift_clock(self, by_ns: int) -> None:
        """Let its clock be ahead of ours by this, at once and after restarts."""
        with self._clock.open("r+b") as file:
            file.write(by_ns.to_bytes(8, "little", signed=True))

    def listen(self, host: str) -> tuple[str, str]:
        """Choose fixed ports; return the clients' addresses: in plain text, and secured."""
        address, secured = (f"{host}:{fixed_port()}" for _ in range(2))
        self.config |= {
            "listeners": f"PLAINTEXT://{address},{SECURED}://{secured},BROKERS://{host}:{fixed_port()}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{SECURED}:SASL_SSL,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "http.listener": f"{host}:0",
        }
        return address, secured

    @property
    def command(self) -> list[str]:
        return [*self.entering, *super().command]

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        if not self._clock.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clock.write_bytes(bytes(8))
        self._begun = self.printed()
        path = os.pathsep.join((str(SHIFTED), os.environ.get("PYTHONPATH", "")))
        mine = {"PYTHONPATH": path, sitecustomize.ENVIRONMENT: str(self._clock), "PYTHONFAULTHANDLER": "1"}
        super().launch(command, {**os.environ, **(environment or {}), **mine})

    def await_launched(self) -> None:
        """Wait until it is ready after `launch`."""
        self.await_ready(lambda _: self.is_ready(self.said_since()))

    def refuse(self, why: str) -> None:
        """Launch it: it must end by itself and log this. RuntimeError otherwise."""
        self.launch(self.command)
        deadline = time.monotonic() + self.start_timeout_s
        while not self.ended_with(why):
            if self.is_ready(self.said_since()) or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"broker {self.config['broker.id']} did not refuse to start: {why}")
            time.sleep(0.02)

    def ended_with(self, why: str) -> bool:
        """Whether it has ended by itself. RuntimeError if it did not log this."""
        if self.process is None or (status := self.process.poll()) is None:
            return False
        self.process = None
        if not status or why not in self.said_since():
            text = f"broker {self.config['broker.id']} ended with status {status}, without {why!r}"
            raise RuntimeError(f"{text}: {self.said_since()[-2000:]}")
        return True

    def said_since(self) -> str:
        """Its output since the last launch."""
        return self.output.read_bytes()[self._begun :].decode(errors="replace")

    def stop(self, timeout: float | None = None) -> int:
        """Send SIGTERM; a broker that does not end in time writes its threads' stacks to its log."""
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
    """Brokers 1 to 3, each with several log directories.

    ``network`` is None without namespaces; ``servers`` is the number of ZooKeeper servers.
    """

    def __init__(self, folder: Path, network: Network | None, servers: int, history: HistoryWriter) -> None:
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
        self.addresses: dict[int, str] = {}
        self.secured_addresses: dict[int, str] = {}
        hosts = [network.address(number) for number in range(1, BROKERS + 1)] if network else []
        self.secured = Secured(folder / "secured", range(1, BROKERS + 1), (*NAMES, *hosts))
        self.brokers: dict[int, LabBroker] = {}  # type: ignore[assignment]
        super().__init__(folder, BROKERS, CONFIG, zookeeper=zookeeper)
        _, slash, path = self.connect.partition("/")
        self.ensemble = Ensemble(self.servers, folder, slash + path)
        self.history = history
        self._held: dict[int, Held] = {}
        self.administration = Administration(self.bootstrap, history)
        self.users = Users(self.bootstrap, self.secured_bootstrap, self.secured)
        self.administration.on_settled = self.users.prepare
        self.disks: dict[int, Disk] = {}
        self._mounted = contextlib.ExitStack()

    def broker(self, number: int, **config: str) -> LabBroker:
        settings = {"broker.id": str(number), **self.config, **self.secured.config(number, SECURED), **config}
        settings["super.users"] += f";{ANONYMOUS}"  # clients in plain text are not what is tested here
        broker = LabBroker(self.folder / f"broker-{number}", settings)
        if self.network is None:
            host = "127.0.0.1"
        else:
            broker.entering = self.network.entering(number)
            host = self.network.address(number)
        self.addresses[number], self.secured_addresses[number] = broker.listen(host)
        return broker

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def secured_bootstrap(self) -> str:
        return ",".join(self.secured_addresses.values())

    @property
    def listeners(self) -> list[str]:
        """The addresses of the listeners in plain text, for clients and for brokers."""
        listed = ",".join(broker.config["listeners"] for broker in self.brokers.values())
        named = (listener.split("://") for listener in listed.split(","))
        return [address for name, address in named if name != SECURED]

    def inter_broker_port(self, number: int) -> int:
        return int(self.brokers[number].config["listeners"].rpartition(":")[2])

    @property
    def zookeeper_ports(self) -> list[int]:
        return [server.port for server in self.servers]

    def start(self) -> Lab:
        self.zookeeper.start()
        if self.network is not None:
            for number, broker in self.brokers.items():
                self.disks[number] = self._mounted.enter_context(small_disk(broker.data, DISK_MB))
        super().start()
        for name in PLANS:
            self.administration.create(name)
            self.await_in_sync(name, PLANS[name].replicas)
        self.administration.find_coordinator()  # a tree that is restored from before that has no positions
        self.administration.find_transaction_coordinator()
        for name in INTERNAL:
            self.await_in_sync(name, BROKERS)
        self.users.prepare()
        return self

    def kill(self) -> None:
        super().kill()
        self.zookeeper.kill()

    def launch(self, brokers: Sequence[LabBroker]) -> None:
        """Start these at once: one may wait for the others."""
        waiting = [broker for broker in brokers if broker.process is None]
        for broker in waiting:
            broker.launch(broker.command)
        for broker in waiting:
            broker.await_launched()

    def discarded(self, number: int) -> None:
        """Record that a broker's data is removed or replaced by a fault, strays included."""
        self.history.add(Discarded(time.monotonic(), "lab", number))

    def look_at_disks(self) -> None:
        """Record which strays and logs each broker has."""
        for number, broker in self.brokers.items():
            strays, logs = held(broker.data)
            event = Held(time.monotonic(), "lab", number, strays, logs)
            known = self._held.get(number)
            if known is None or (known.strays, known.logs) != (strays, logs):
                self._held[number] = event
                self.history.add(event)

    def ended(self) -> list[tuple[int, subprocess.Popen[bytes] | None]]:
        """Brokers that are not running, each with the process that ended by itself, or None."""
        return [
            (number, broker.process)
            for number, broker in self.brokers.items()
            if broker.process is None or broker.process.poll() is not None
        ]


class Watch:
    """Polls every broker for the topics' metadata; records each leader, for the story of a record."""

    def __init__(self, lab: Lab, history: HistoryWriter) -> None:
        self._lab, self._history = lab, history
        self._answers: dict[int, tuple[float, metadata.MetadataResponse]] = {}
        self.identities: dict[str, str] = {}
        """The topics' ids by name, as a broker told them last."""
        self._known: dict[Place, metadata.MetadataResponsePartition] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def leader(self, place: Place) -> int | None:
        """The broker that leads, if any, by the newest leader epoch that a broker reported."""
        known = self._known.get(place)
        return known.leader_id if known is not None and known.leader_id > 0 else None

    def controller(self) -> int | None:
        """The controller, according to most of the brokers that answered recently."""
        said = Counter(answer.controller_id for answer in self._fresh())
        return next((controller for controller, _ in said.most_common() if controller > 0), None)

    def await_leader(self, place: Place, timeout: float = 20.0) -> int | None:
        deadline = time.monotonic() + timeout
        while self.leader(place) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.leader(place)

    def whole(self) -> bool:
        """Whether every broker currently reports a leader and a full ISR for every partition."""
        return not self.missing()

    def await_whole(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.missing() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.whole()

    def missing(self) -> list[str]:
        """Why the cluster is not whole."""
        fresh = self._fresh()
        missing = [f"{name} is away" for name in PLANS if name not in self._lab.administration.topics]
        if len(fresh) < len(self._lab.brokers):
            missing.append(f"{len(fresh)} brokers answer")
        for answer in fresh:
            topics = {topic.name: topic for topic in answer.topics}
            for name, known in list(self._lab.administration.topics.items()):
                topic = topics[name]
                if uuid_text(topic.topic_id) != known.id or len(topic.partitions) < known.partitions:
                    missing.append(f"{name} is {uuid_text(topic.topic_id)}, expected {known}")
                replicas = PLANS[name].replicas
                missing += [f"{name}: {one}" for one in topic.partitions if not _is_whole(one, replicas)]
            for name in INTERNAL:
                missing += [
                    f"{name}: {one}" for one in topics[name].partitions if not _is_whole(one, BROKERS)
                ]
        return missing

    def replicas(self) -> dict[Place, list[int]]:
        """The brokers that hold each partition."""
        return {place: list(known.replica_nodes) for place, known in self._known.items()}

    def _fresh(self) -> list[metadata.MetadataResponse]:
        now = time.monotonic()
        return [answer for at, answer in self._answers.values() if now - at < 2.0]

    async def _run(self) -> None:
        await asyncio.gather(*(self._follow(number) for number in self._lab.brokers))

    async def _follow(self, number: int) -> None:
        host, port = self._lab.addresses[number].rsplit(":", 1)
        asked = [metadata.MetadataRequestTopic(name=name) for name in (*PLANS, *INTERNAL)]
        request = metadata.MetadataRequest(asked, False)
        connection: Connection | None = None
        while not self._stop.is_set():
            try:
                if connection is None:
                    connection = await Connection.open(host, int(port), "watch", timeout=1.0)
                answer = await connection.call(metadata.API, None, request)
                self._answers[number] = time.monotonic(), answer
                for topic in answer.topics:
                    self.identities[topic.name or ""] = uuid_text(topic.topic_id)
                    for one in topic.partitions:
                        self._note(number, (uuid_text(topic.topic_id), one.partition_index), one)
            except BrokerError:
                if connection is not None:
                    await connection.close()
                connection = None
            await asyncio.sleep(0.15)
        if connection is not None:
            await connection.close()

    def _note(self, number: int, place: Place, one: metadata.MetadataResponsePartition) -> None:
        known = self._known.get(place)
        if known is not None:
            if one.leader_epoch < known.leader_epoch:
                return
            same = (one.leader_id, one.leader_epoch) == (known.leader_id, known.leader_epoch)
            if same and (one.leader_id != number or _members(one) == _members(known)):
                return  # within one epoch, the leader learns of the ISR first
        self._known[place] = one
        event = Led(
            time.monotonic(),
            f"broker {number}",
            one.partition_index,
            one.leader_id,
            one.leader_epoch,
            one.isr_nodes,
            place[0],
        )
        self._history.add(event)


def _is_whole(one: metadata.MetadataResponsePartition, replicas: int) -> bool:
    """With all of its replicas in sync; there may be one too many after ZooKeeper was restored (docs/clusters.md)."""
    is_in_sync = len(one.isr_nodes) == len(one.replica_nodes)
    return one.leader_id > 0 and is_in_sync and len(one.replica_nodes) >= replicas


def _members(one: metadata.MetadataResponsePartition) -> tuple[set[int], set[int]]:
    return set(one.isr_nodes), set(one.replica_nodes)
