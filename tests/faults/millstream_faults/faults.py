"""Each kind of fault: `strike` does it to a running cluster, and undoes it when the block ends."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from millstream_harness.zookeeper import ZooKeeperProcess

from .lab import PARTITIONS, Lab, Watch
from .plan import Fault, Kind

WHOLE_S = 60.0


class NothingToStrikeError(Exception):
    """There is nobody in that role just now: the fault does not happen."""


class Faults:
    """Strikes a cluster; what it says of each (who it was) goes into the history."""

    def __init__(self, lab: Lab, watch: Watch) -> None:
        self.lab, self.watch = lab, watch

    @contextlib.contextmanager
    def strike(self, fault: Fault) -> Iterator[str]:
        """The fault's text, with who it struck. Raises NothingToStrikeError."""
        with _KINDS[fault.kind](self, fault) as whom:
            yield f"{fault.kind.text}: {whom}"

    # Roles

    def leader(self, fault: Fault) -> int:
        return _somebody(self.watch.await_leader(fault.target % PARTITIONS), "leads")

    def follower(self, fault: Fault) -> int:
        leader = self.leader(fault)
        return random.Random(fault.target).choice([one for one in self.lab.brokers if one != leader])

    def controller(self, _: Fault) -> int:
        return _somebody(self.watch.controller(), "is the controller")

    def server(self, fault: Fault) -> ZooKeeperProcess:
        return self.lab.servers[fault.target % len(self.lab.servers)]

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
            begun = {number: broker.printed() for number, broker in self.lab.brokers.items()}
            for broker in self.lab.brokers.values():
                broker.launch(broker.command)
            for number, broker in self.lab.brokers.items():
                broker.await_ready(broker.is_ready, begun[number])

    @contextlib.contextmanager
    def rolling(self, _: Fault) -> Iterator[str]:
        for number in self.lab.brokers:
            with self.stopped(number):
                pass
            deadline = time.monotonic() + WHOLE_S
            while not self.watch.whole() and time.monotonic() < deadline:
                time.sleep(0.1)
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
        """What ZooKeeper sends does not arrive; with ``there``, neither does what the broker sends."""
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
        """From the brokers and ZooKeeper; clients still reach it."""
        with contextlib.ExitStack() as cuts:
            for other in self.lab.brokers:
                if other != number:
                    cuts.enter_context(self._cut(number, other))
                    cuts.enter_context(self._cut(other, number))
            yield cuts.enter_context(self.cut_zookeeper(number))

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
        """A replica less, and another order; then the third again, which copies all of it."""
        partition = fault.target % PARTITIONS
        order = random.Random(fault.target).sample(sorted(self.lab.brokers), 3)
        told = self.lab.reassign({partition: order[:2]})
        try:
            yield f"partition {partition} to {order[:2]} ({told}) and to {order}"
        finally:
            deadline = time.monotonic() + WHOLE_S
            while self.lab.reassign({partition: order}) != "NONE":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"partition {partition} could not be moved to {order}")
                time.sleep(0.2)

    @contextlib.contextmanager
    def moving_leaders(self, fault: Fault) -> Iterator[str]:
        """Another order of the same replicas, and the preferred leaders elected."""
        orders = random.Random(fault.target)
        targets = {partition: orders.sample(sorted(self.lab.brokers), 3) for partition in range(PARTITIONS)}
        told = self.lab.reassign(targets)
        yield f"reassignment {told}, election {self.lab.elect_preferred()}"


def _somebody(number: int | None, does: str) -> int:
    if number is None:
        raise NothingToStrikeError(f"nobody {does}")
    return number


_Strike = Callable[[Faults, Fault], contextlib.AbstractContextManager[str]]
_KINDS: dict[Kind, _Strike] = {
    Kind.KILL_LEADER: lambda faults, fault: faults.killed(faults.leader(fault)),
    Kind.KILL_FOLLOWER: lambda faults, fault: faults.killed(faults.follower(fault)),
    Kind.KILL_CONTROLLER: lambda faults, fault: faults.killed(faults.controller(fault)),
    Kind.KILL_ALL: Faults.all_killed,
    Kind.PAUSE_LEADER: lambda faults, fault: faults.paused(faults.leader(fault)),
    Kind.PAUSE_FOLLOWER: lambda faults, fault: faults.paused(faults.follower(fault)),
    Kind.PAUSE_CONTROLLER: lambda faults, fault: faults.paused(faults.controller(fault)),
    Kind.STOP_LEADER: lambda faults, fault: faults.stopped(faults.leader(fault)),
    Kind.ROLLING_RESTART: Faults.rolling,
    Kind.CUT_FOLLOWER: lambda faults, fault: faults.cut_brokers(fault, True, True),
    Kind.CUT_FROM_LEADER: lambda faults, fault: faults.cut_brokers(fault, True, False),
    Kind.CUT_TO_LEADER: lambda faults, fault: faults.cut_brokers(fault, False, True),
    Kind.CUT_ZOOKEEPER: lambda faults, fault: faults.cut_zookeeper(faults.leader(fault)),
    Kind.CUT_FROM_ZOOKEEPER: lambda faults, fault: faults.cut_zookeeper(faults.leader(fault), False),
    Kind.CUT_CONTROLLER: lambda faults, fault: faults.cut_zookeeper(faults.controller(fault)),
    Kind.ISOLATE_LEADER: lambda faults, fault: faults.isolated(faults.leader(fault)),
    Kind.FULL_DISK: lambda faults, fault: faults.full_disk(faults.leader(fault)),
    Kind.KILL_ZOOKEEPER: Faults.server_killed,
    Kind.PAUSE_ZOOKEEPER: Faults.server_paused,
    Kind.ZOOKEEPER_AWAY: Faults.zookeeper_away,
    Kind.ZOOKEEPER_LONG_AWAY: Faults.zookeeper_away,
    Kind.MOVE_REPLICAS: Faults.moving,
    Kind.MOVE_LEADERS: Faults.moving_leaders,
}
