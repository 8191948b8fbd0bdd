"""Each kind of fault: `strike` applies it to a running cluster and undoes it when the block ends."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

from . import clocks, directories, rights, trees
from .hostile import Hostile
from .lab import BROKERS, COORDINATOR_PARTITIONS, INTERNAL
from .plan import Fault, Kind
from .roles import WHOLE_S, NothingToStrikeError, Roles, empty
from .topics import ANEW, COMPACTED, LISTS, MOST_PARTITIONS, PLANS, STEADY
from .transacted import COPIERS

CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
PATHS = {
    "compression.type": CODECS,
    "message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "min.insync.replicas": ("1",),
    "segment.bytes": ("300000", "1000000", "4000000"),
}
"""Configuration that changes the path that records take."""
ALTERED = {
    STEADY: PATHS,
    ANEW: PATHS | {"retention.bytes": ("200000",), "min.insync.replicas": ("2",)},
    COMPACTED: PATHS | {"cleanup.policy": ("delete", "compact,delete")},
}
MOVED = ("NONE", "UNKNOWN_TOPIC_OR_PARTITION", "NONE, UNKNOWN_TOPIC_OR_PARTITION")
"""Outcomes of a reassignment that worked, or whose topic is gone or recreated with fewer partitions."""
USUAL = {"min.insync.replicas": "2", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""The cluster's values of the keys that are restored after each fault."""


class Faults(Roles):
    """Strikes a cluster; records in the history which broker each fault hit."""

    @contextlib.contextmanager
    def strike(self, fault: Fault) -> Iterator[str]:
        """Yield the fault's text, naming its target. Raises NothingToStrikeError."""
        with _KINDS[fault.kind](self, fault) as whom:
            yield f"{fault.kind.text}: {whom}"

    # Processes

    @contextlib.contextmanager
    def killed(self, number: int) -> Iterator[str]:
        self.lab.brokers[number].kill()
        try:
            yield f"broker {number}"
        finally:
            self.lab.brokers[number].start()

    @contextlib.contextmanager
    def paused(self, number: int) -> Iterator[str]:
        self.lab.brokers[number].pause()
        try:
            yield f"broker {number}"
        finally:
            self.lab.brokers[number].resume()

    @contextlib.contextmanager
    def stopped(self, number: int) -> Iterator[str]:
        status = self.lab.brokers[number].stop()
        if status:
            raise RuntimeError(f"broker {number} ended with status {status} after SIGTERM")
        try:
            yield f"broker {number}"
        finally:
            self.lab.brokers[number].start()

    @contextlib.contextmanager
    def all_killed(self, _: Fault) -> Iterator[str]:
        for broker in self.lab.brokers.values():
            assert broker.process is not None
            broker.process.kill()
        for broker in self.lab.brokers.values():
            broker.kill()
        try:
            yield "all"
        finally:
            self.lab.launch(list(self.lab.brokers.values()))

    @contextlib.contextmanager
    def rolling(self, _: Fault) -> Iterator[str]:
        for number in self.lab.brokers:
            with self.stopped(number):
                pass
            self.watch.await_whole(WHOLE_S)
        yield "each broker in turn"

    # Network

    @contextlib.contextmanager
    def cut_brokers(self, fault: Fault, there: bool, back: bool) -> Iterator[str]:
        leader = self.leader(fault)
        follower = random.Random(fault.target).choice([one for one in self.lab.brokers if one != leader])
        with contextlib.ExitStack() as cuts:
            if there:
                cuts.enter_context(self._cut(leader, follower))
            if back:
                cuts.enter_context(self._cut(follower, leader))
            yield f"brokers {leader} and {follower}"

    @contextlib.contextmanager
    def cut_zookeeper(self, number: int, there: bool = True) -> Iterator[str]:
        """Drop what ZooKeeper sends; with ``there``, also drop what the broker sends."""
        network, ports = self.lab.network, self.lab.zookeeper_ports
        assert network is not None
        network.cut_from(ports, number)
        if there:
            network.cut_to(number, ports)
        try:
            yield f"broker {number}"
        finally:
            network.mend_from(ports, number)
            if there:
                network.mend_to(number, ports)

    @contextlib.contextmanager
    def isolated(self, number: int) -> Iterator[str]:
        """Cut off from the brokers and ZooKeeper; clients still reach it."""
        with contextlib.ExitStack() as cuts:
            for other in self.lab.brokers:
                if other != number:
                    cuts.enter_context(self._cut(number, other))
                    cuts.enter_context(self._cut(other, number))
            yield cuts.enter_context(self.cut_zookeeper(number))

    @contextlib.contextmanager
    def rejected(self, number: int) -> Iterator[str]:
        """Brokers' connections to it break and new ones are refused, as if its process were gone."""
        network, port = self.lab.network, self.lab.inter_broker_port(number)
        assert network is not None
        network.reject(number, port)
        try:
            yield f"broker {number}"
        finally:
            network.accept(number, port)

    @contextlib.contextmanager
    def _cut(self, sender: int, receiver: int) -> Iterator[None]:
        network = self.lab.network
        assert network is not None
        network.cut(sender, receiver)
        try:
            yield
        finally:
            network.mend(sender, receiver)

    # Disks

    @contextlib.contextmanager
    def full_disk(self, number: int) -> Iterator[str]:
        disk = self.lab.disks[number]
        disk.fill()
        try:
            yield f"broker {number}"
        finally:
            disk.free()

    @contextlib.contextmanager
    def wiped(self, number: int) -> Iterator[str]:
        """A broker restarts with an empty disk. All other brokers must be in sync first."""
        self.await_whole()
        self.lab.brokers[number].kill()
        self.lab.discarded(number)
        empty(self.lab.brokers[number].data)
        try:
            yield f"broker {number}"
        finally:
            self.lab.brokers[number].start()

    @contextlib.contextmanager
    def restored(self, fault: Fault) -> Iterator[str]:
        """A broker restarts with its disk as it was some seconds ago."""
        number = self.leader(fault)
        broker = self.lab.brokers[number]
        self.await_whole()
        broker.kill()
        with tempfile.TemporaryDirectory() as saved:
            shutil.copytree(broker.data, saved, dirs_exist_ok=True)
            broker.start()
            time.sleep(fault.seconds)
            self.await_whole()
            broker.kill()
            self.lab.discarded(number)
            empty(broker.data)
            shutil.copytree(saved, broker.data, dirs_exist_ok=True)
        try:
            yield f"broker {number}"
        finally:
            broker.start()

    # ZooKeeper

    @contextlib.contextmanager
    def server_killed(self, fault: Fault) -> Iterator[str]:
        server = self.server(fault)
        server.kill()
        try:
            yield f"server {server.number}"
        finally:
            server.launch_server()
            server.await_serving()

    @contextlib.contextmanager
    def server_paused(self, fault: Fault) -> Iterator[str]:
        server = self.server(fault)
        server.pause()
        try:
            yield f"server {server.number}"
        finally:
            server.resume()

    @contextlib.contextmanager
    def zookeeper_away(self, _: Fault) -> Iterator[str]:
        for server in self.lab.servers:
            server.kill()
        try:
            yield "all servers"
        finally:
            for server in self.lab.servers:
                server.launch_server()
            for server in self.lab.servers:
                server.await_serving()

    # Administration

    @contextlib.contextmanager
    def moving(self, fault: Fault) -> Iterator[str]:
        """Move to two brokers, then to another set and order; a removed replica is copied from scratch."""
        name, partition = self.partition(fault)
        order = random.Random(fault.target).sample(sorted(self.lab.brokers), 3)
        last = order[: PLANS[name].replicas]
        told = self.lab.administration.reassign(name, {partition: order[1:]})
        try:
            yield f"{name}-{partition} to {order[1:]} ({told}) and to {last}"
        finally:
            deadline = time.monotonic() + WHOLE_S
            while self.lab.administration.reassign(name, {partition: last}) not in MOVED:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name}-{partition} could not be moved to {last}")
                time.sleep(0.2)

    @contextlib.contextmanager
    def moving_leaders(self, fault: Fault) -> Iterator[str]:
        """Change the replicas or their order, then elect the preferred leaders."""
        orders = random.Random(fault.target)
        name, _ = self.partition(fault)
        count = self.lab.administration.topics[name].partitions
        targets = {
            partition: orders.sample(sorted(self.lab.brokers), PLANS[name].replicas)
            for partition in range(count)
        }
        told = self.lab.administration.reassign(name, targets)
        yield f"{name}: reassignment {told}, election {self.lab.administration.elect_preferred(name, count)}"

    @contextlib.contextmanager
    def moving_coordinators(self, fault: Fault) -> Iterator[str]:
        """Change the order of the replicas of coordinators' topics, then elect the preferred leaders."""
        orders = random.Random(fault.target)
        told = []
        for name in INTERNAL:
            targets = {
                partition: orders.sample(sorted(self.lab.brokers), BROKERS)
                for partition in range(COORDINATOR_PARTITIONS)
            }
            moved = self.lab.administration.reassign(name, targets)
            elected = self.lab.administration.elect_preferred(name, COORDINATOR_PARTITIONS)
            told.append(f"{name}: reassignment {moved}, election {elected}")
        yield "; ".join(told)

    @contextlib.contextmanager
    def anew(self, name: str, fault: Fault) -> Iterator[str]:
        yield self.lab.administration.make_anew(name, random.Random(fault.target).choice((0.0, 0.0, 0.5)))

    @contextlib.contextmanager
    def records_deleted(self, fault: Fault) -> Iterator[str]:
        count = self.lab.administration.topics[ANEW].partitions
        part = random.Random(fault.target).choice((0.3, 0.8, 1.0))
        yield self.lab.administration.delete_records(ANEW, fault.target % count, part)

    @contextlib.contextmanager
    def listed_deleted(self, fault: Fault) -> Iterator[str]:
        """Readers that are some seconds behind find all the same what they want."""
        partition = fault.target % self.lab.administration.topics[LISTS].partitions
        yield self.lab.administration.delete_records(LISTS, partition, 0.3, COPIERS)

    @contextlib.contextmanager
    def partition_added(self, _: Fault) -> Iterator[str]:
        if self.lab.administration.topics[ANEW].partitions >= MOST_PARTITIONS:
            raise NothingToStrikeError(f"{ANEW} has {MOST_PARTITIONS} partitions")
        yield self.lab.administration.add_partition(ANEW)

    @contextlib.contextmanager
    def altered(self, fault: Fault) -> Iterator[str]:
        drawn = random.Random(fault.target)
        name = drawn.choice(list(ALTERED))
        key = drawn.choice(list(ALTERED[name]))
        value = drawn.choice(ALTERED[name][key])
        self.lab.administration.alter(name, {key: value})
        try:
            yield f"{name}: {key}={value}"
        finally:
            if key in USUAL:
                self.lab.administration.alter(name, {key: PLANS[name].config.get(key, USUAL[key])})

    @contextlib.contextmanager
    def group_deleted(self, _: Fault) -> Iterator[str]:
        yield self.lab.administration.delete_group()

    @contextlib.contextmanager
    def group_reset(self, fault: Fault) -> Iterator[str]:
        part = random.Random(fault.target).random()
        try:
            yield self.lab.administration.reset_group(ANEW, part)
        except KeyError:
            raise NothingToStrikeError(f"{ANEW} is being made anew") from None

    # Hostility

    @contextlib.contextmanager
    def hostile(self, fault: Fault, is_forging: bool) -> Iterator[str]:
        """Attack while the fault lasts, and stop when it ends."""
        client = Hostile(self.lab.listeners, fault.target)
        answers = client.forge(fault.seconds) if is_forging else client.send_odd_batches(fault.seconds)
        yield ", ".join(f"{count} {answer}" for answer, count in answers.most_common())


_Strike = Callable[[Faults, Fault], contextlib.AbstractContextManager[str]]
_KINDS: dict[Kind, _Strike] = {
    Kind.KILL_LEADER: lambda faults, fault: faults.killed(faults.leader(fault)),
    Kind.KILL_FOLLOWER: lambda faults, fault: faults.killed(faults.follower(fault)),
    Kind.KILL_CONTROLLER: lambda faults, fault: faults.killed(faults.controller(fault)),
    Kind.KILL_ALL: Faults.all_killed,
    Kind.PAUSE_LEADER: lambda faults, fault: faults.paused(faults.leader(fault)),
    Kind.PAUSE_FOLLOWER: lambda faults, fault: faults.paused(faults.follower(fault)),
    Kind.PAUSE_CONTROLLER: lambda faults, fault: faults.paused(faults.controller(fault)),
    Kind.KILL_COORDINATOR: lambda faults, fault: faults.killed(faults.coordinator(fault)),
    Kind.PAUSE_COORDINATOR: lambda faults, fault: faults.paused(faults.coordinator(fault)),
    Kind.STOP_LEADER: lambda faults, fault: faults.stopped(faults.leader(fault)),
    Kind.ROLLING_RESTART: Faults.rolling,
    Kind.CUT_FOLLOWER: lambda faults, fault: faults.cut_brokers(fault, True, True),
    Kind.CUT_FROM_LEADER: lambda faults, fault: faults.cut_brokers(fault, True, False),
    Kind.CUT_TO_LEADER: lambda faults, fault: faults.cut_brokers(fault, False, True),
    Kind.CUT_ZOOKEEPER: lambda faults, fault: faults.cut_zookeeper(faults.leader(fault)),
    Kind.CUT_FROM_ZOOKEEPER: lambda faults, fault: faults.cut_zookeeper(faults.leader(fault), False),
    Kind.CUT_CONTROLLER: lambda faults, fault: faults.cut_zookeeper(faults.controller(fault)),
    Kind.ISOLATE_LEADER: lambda faults, fault: faults.isolated(faults.leader(fault)),
    Kind.REJECT_LEADER: lambda faults, fault: faults.rejected(faults.leader(fault)),
    Kind.REJECT_CONTROLLER: lambda faults, fault: faults.rejected(faults.controller(fault)),
    Kind.ISOLATE_COORDINATOR: lambda faults, fault: faults.isolated(faults.coordinator(fault)),
    Kind.FULL_DISK: lambda faults, fault: faults.full_disk(faults.leader(fault)),
    Kind.WIPE_DISK: lambda faults, fault: faults.wiped(faults.leader(fault)),
    Kind.RESTORE_DISK: Faults.restored,
    Kind.REORDER_DIRECTORIES: directories.reordered,
    Kind.EXCHANGE_DIRECTORIES: directories.exchanged,
    Kind.REMOVE_DIRECTORY: directories.removed,
    Kind.ADD_DIRECTORY: directories.added,
    Kind.SWAP_DIRECTORIES: directories.swapped,
    Kind.REMOVE_FOLDER: directories.folder_removed,
    Kind.KILL_ZOOKEEPER: Faults.server_killed,
    Kind.PAUSE_ZOOKEEPER: Faults.server_paused,
    Kind.ZOOKEEPER_AWAY: Faults.zookeeper_away,
    Kind.ZOOKEEPER_LONG_AWAY: Faults.zookeeper_away,
    Kind.MOVE_REPLICAS: Faults.moving,
    Kind.MOVE_LEADERS: Faults.moving_leaders,
    Kind.MOVE_COORDINATORS: Faults.moving_coordinators,
    Kind.MAKE_ANEW: lambda faults, fault: faults.anew(ANEW, fault),
    Kind.COMPACTED_ANEW: lambda faults, fault: faults.anew(COMPACTED, fault),
    Kind.DELETE_RECORDS: Faults.records_deleted,
    Kind.DELETE_LISTED: Faults.listed_deleted,
    Kind.ADD_PARTITION: Faults.partition_added,
    Kind.ALTER_CONFIG: Faults.altered,
    Kind.DELETE_GROUP: Faults.group_deleted,
    Kind.RESET_GROUP: Faults.group_reset,
    Kind.ODD_BATCHES: lambda faults, fault: faults.hostile(fault, is_forging=False),
    Kind.FORGED_REQUESTS: lambda faults, fault: faults.hostile(fault, is_forging=True),
    Kind.WRONG_PATH: trees.wrong_path,
    Kind.EMPTY_ZOOKEEPER: lambda faults, fault: trees.replaced(faults, fault, is_foreign=False),
    Kind.FOREIGN_ZOOKEEPER: lambda faults, fault: trees.replaced(faults, fault, is_foreign=True),
    Kind.RESTORE_ZOOKEEPER: lambda faults, fault: trees.restored(faults, fault, is_live=False),
    Kind.RESTORE_ZOOKEEPER_LIVE: lambda faults, fault: trees.restored(faults, fault, is_live=True),
    Kind.CLOCK_AHEAD: lambda faults, fault: clocks.shifted(faults, fault, clocks.HOUR_NS),
    Kind.ROTATE_CERTIFICATES: rights.certificates,
    Kind.ROTATE_AUTHORITY: rights.authority,
    Kind.CHANGE_PASSWORD: rights.password,
    Kind.REVOKE_RULES: rights.revoked,
    Kind.THROTTLE: rights.throttled,
    Kind.CLOCK_BEHIND: lambda faults, fault: clocks.shifted(faults, fault, -clocks.HOUR_NS),
}
