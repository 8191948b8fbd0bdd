"""Members of a group as processes that join, stop, are killed, paused and cut off, with both kinds of coordination.

Their own records show that each partition has one owner at a time, that nothing is skipped, and that duplicates are
younger than the last commit.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import millstream
from millstream.topics import create_topic
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.gate import Gate
from millstream_harness.gated_cluster import GatedCluster
from millstream_harness.scenario import unique
from millstream_harness.stream_member import StreamMember, all_events, check, owners
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

PARTITIONS = 6
SESSION_S = 3.0
WAYS = ("zookeeper", "cooperative-sticky", "range")
Start = Callable[[], StreamMember]


@pytest.fixture(scope="module")
def brokers(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    config = {"group.min.session.timeout.ms": "1000"}
    with ClusterProcesses(
        tmp_path_factory.mktemp("brokers"), 1, config, zookeeper=shared_zookeeper
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated(
    shared_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatedCluster]:
    """Three brokers, each of which leads some partitions."""
    config = {"group.min.session.timeout.ms": "1000"}
    with GatedCluster(tmp_path_factory.mktemp("gated"), 3, config, zookeeper=shared_zookeeper) as cluster:
        yield cluster


@pytest.fixture
def zookeeper_gate(shared_zookeeper: ZooKeeperProcess) -> Iterator[Gate]:
    gate = Gate(int(shared_zookeeper.connect.partition("/")[0].rpartition(":")[2]))
    yield gate
    gate.flow()
    gate.shut()


class Group:
    """A topic, its members so far, and a producer that fills it."""

    def __init__(self, brokers: ClusterProcesses, folder: Path, way: str) -> None:
        self.brokers, self.folder = brokers, folder
        self.topic, self.name = unique("members"), unique("group")
        self.options: dict[str, Any] = {"session_timeout_s": SESSION_S}
        if way == "zookeeper":
            self.options |= {"coordination": "zookeeper", "zookeeper": brokers.connect}
        else:
            self.options |= {"strategy": way, "processing_timeout_s": 10}
        self.way = way
        self.members: list[StreamMember] = []
        self.sent = 0
        create_topic(millstream.Cluster(brokers.bootstrap), self.topic, partitions=PARTITIONS)
        self.producer = millstream.Producer(brokers.bootstrap)

    def start(self, **options: Any) -> StreamMember:
        bootstrap = options.pop("bootstrap", self.brokers.bootstrap)
        member = StreamMember(
            self.folder, len(self.members), bootstrap, self.name, self.topic, {**self.options, **options}
        )
        self.members.append(member.start())
        return member

    def send(self, each: int = 10) -> None:
        """Send this many more messages to each partition."""
        for number in range(each):
            for partition in range(PARTITIONS):
                self.producer.send(self.topic, b"%d" % number, partition=partition)
        self.producer.flush()
        self.sent += each

    @contextmanager
    def fed(self) -> Iterator[None]:
        """Produces messages continuously during the block."""
        enough = threading.Event()

        def feed() -> None:
            while not enough.wait(0.05):  # members of a slow machine must keep up
                self.send(1)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield
        finally:
            enough.set()
            feeder.join()

    def settled(self, *members: StreamMember) -> bool:
        """Whether these members own all partitions, at least one each."""
        found = owners(self.members)
        return len(found) == PARTITIONS and set(found.values()) == {member.number for member in members}

    def await_settled(self, *members: StreamMember, timeout: float = 90.0) -> None:
        until(lambda: self.settled(*members), f"{[one.number for one in members]} own all", timeout)

    def registered(self) -> set[str]:
        """The consumers in ZooKeeper."""
        zookeeper = KazooClient(self.brokers.connect)
        zookeeper.start(60)
        try:
            return {*zookeeper.get_children(f"/consumers/{self.name}/ids")}
        finally:
            zookeeper.stop()
            zookeeper.close()

    def end(self) -> None:
        self.producer.close()
        for member in self.members:
            member.kill()

    def await_all(self) -> None:
        """Wait until every message was returned by a stream."""

        def complete() -> bool:
            seen = {(one.partition, one.offset) for one in all_events(self.members) if one.what == "message"}
            return len(seen) == PARTITIONS * self.sent

        until(complete, "all is handed out", 120)


@pytest.fixture(params=WAYS)
def group(request: pytest.FixtureRequest, brokers: ClusterProcesses, tmp_path: Path) -> Iterator[Group]:
    group = Group(brokers, tmp_path, request.param)
    yield group
    group.end()


def test_members_that_come_and_go(group: Group) -> None:
    patient = {} if group.way == "zookeeper" else {"session_timeout_s": 300, "processing_timeout_s": 300}
    one = group.start(**patient)
    group.send()
    group.await_settled(one)
    alone = group.registered() if group.way == "zookeeper" else set()
    two, three = group.start(), group.start()
    group.send()
    group.await_settled(one, two, three)
    group.send()
    one.stop(60)
    if group.way == "zookeeper":
        assert not group.registered() & alone, "it has left by itself"
    group.await_settled(two, three)  # long before its session ends
    group.send()
    three.kill()
    group.await_settled(two)
    group.send()
    group.await_all()
    check(group.members)


def test_a_member_that_is_paused(group: Group) -> None:
    """The others take over; after it wakes up, it returns no message of their partitions."""
    one, two = group.start(), group.start()
    group.await_settled(one, two)
    group.send(60)  # more than it has returned when it is paused
    until(lambda: any(event.what == "message" for event in one.events()), "it is at work")
    one.pause()
    group.await_settled(two)
    group.send()
    one.resume()
    group.await_settled(one, two)
    group.send()
    group.await_all()
    check(group.members)


@pytest.mark.parametrize("cut", ["shut", "stall"])
def test_a_member_that_is_cut_from_zookeeper(
    brokers: ClusterProcesses, tmp_path: Path, zookeeper_gate: Gate, cut: str
) -> None:
    """It stops before another member can own its partitions, although it still reaches the brokers."""
    group = Group(brokers, tmp_path, "zookeeper")
    try:
        chroot = brokers.connect.partition("/")[2]
        one, two = group.start(), group.start(zookeeper=f"127.0.0.1:{zookeeper_gate.port}/{chroot}")
        group.await_settled(one, two)
        group.send(300)  # more than it has returned when it is cut off
        until(lambda: any(event.what == "message" for event in two.events()), "it is at work")
        getattr(zookeeper_gate, cut)()
        group.await_settled(one)
        zookeeper_gate.mend()
        group.await_settled(one, two)
        group.await_all()
        check(group.members)
    finally:
        group.end()


@pytest.mark.parametrize(
    ("way", "cut", "options"),
    [
        ("cooperative-sticky", "shut", {"commit_every": 1_000_000}),
        ("range", "stall", {"commit": "processed", "commit_interval_s": 0.5}),
        ("cooperative-sticky", "late", {"commit": "processed", "commit_interval_s": 60}),
        ("range", "late", {"commit_every": 1_000_000}),
    ],
)
def test_a_member_that_is_cut_from_its_coordinator(
    gated: GatedCluster, tmp_path: Path, way: str, cut: str, options: dict[str, Any]
) -> None:
    """It stops before the coordinator gives its partitions to another member, although it still reaches the others.

    "late": the last responses from its coordinator were long in flight.
    """
    session_s = 9.0  # so that the lease ends long before librdkafka itself gives up
    group = Group(gated, tmp_path, way)
    group.options["session_timeout_s"] = session_s
    try:
        one, two = group.start(**options), group.start(bootstrap=gated.gated_bootstrap, **options)
        group.await_settled(one, two)
        gate = gated.coordinator_gate(group.name)
        at = 0

        def went_on() -> bool:
            return any(event.what == "message" and event.at > at for event in two.events())

        with group.fed():
            until(went_on, "it is at work")
            if cut == "late":
                gate.hold_answers()
                time.sleep(session_s * 0.6)
                at = time.monotonic_ns()
                gate.flow()
                until(went_on, "it goes on")
            else:
                at = time.monotonic_ns()
            if cut == "stall":
                gate.stall()
            else:
                gate.shut()
            group.await_settled(one)
            assert went_on(), "it received messages from other brokers"
            until(lambda: "so no message is returned" in two.said(), "it says that it waits")
            gate.mend()
            group.await_settled(one, two)
        group.await_all()
        check(group.members)
    finally:
        group.end()


@pytest.mark.parametrize(("seed", "commit"), [(1, "manual"), (2, "processed")])
@pytest.mark.parametrize("way", WAYS)
def test_members_at_random(
    gated: GatedCluster, zookeeper_gate: Gate, tmp_path: Path, way: str, seed: int, commit: str
) -> None:
    """In any order, members join, leave, are killed, paused, and cut off from the coordinator."""
    dice = random.Random(seed)
    group = Group(gated, tmp_path, way)
    group.options |= {"commit": commit, "commit_interval_s": 0.3}
    through_gate: dict[str, str] = {"bootstrap": gated.gated_bootstrap}
    if way == "zookeeper":
        chroot = gated.connect.partition("/")[2]
        through_gate = {"zookeeper": f"127.0.0.1:{zookeeper_gate.port}/{chroot}"}
    behind_gate: set[StreamMember] = set()
    cut: list[Gate] = []
    paused: list[StreamMember] = []

    def start() -> None:
        behind = not cut and dice.random() < 0.5
        running.append(group.start(**(through_gate if behind else {})))
        if behind:
            behind_gate.add(running[-1])

    def mend() -> None:
        cut.pop().mend()

    try:
        running = [group.start(), group.start(**through_gate)]
        behind_gate.add(running[1])
        group.await_settled(*running)
        with group.fed():
            for _ in range(8):
                what = dice.choice(
                    ["start", "start", "kill", "stop", "pause", "resume", "cut", "cut", "mend"]
                )
                if what == "start" and len(running) + len(paused) < 4:
                    start()
                elif what in ("kill", "stop") and len(running) > 1:
                    member = running.pop(dice.randrange(len(running)))
                    is_cut_off = bool(cut) and member in behind_gate
                    member.kill() if what == "kill" or is_cut_off else member.stop(60)
                elif what == "pause" and len(running) > 1:
                    paused.append(running.pop(dice.randrange(len(running))))
                    paused[-1].pause()
                elif what == "resume" and paused:
                    paused[0].resume()
                    running.append(paused.pop(0))
                elif what == "cut" and not cut:
                    cut.append(zookeeper_gate if way == "zookeeper" else gated.coordinator_gate(group.name))
                    dice.choice([cut[0].shut, cut[0].stall, cut[0].hold_answers])()
                elif what == "mend" and cut:
                    mend()
                time.sleep(dice.random() * SESSION_S)
            if cut:
                mend()
            for member in paused:
                member.resume()
            group.await_settled(*running, *paused)
        group.await_all()
        check(group.members)
    finally:
        if cut:
            mend()
        group.end()


@pytest.mark.parametrize("way", WAYS)
def test_fifty_members_settle(brokers: ClusterProcesses, way: str) -> None:
    """Fifty streams over two hundred partitions: four each. Here they are threads of one process."""
    members, partitions = 50, 200
    cluster, topic, group = millstream.Cluster(brokers.bootstrap), unique("fifty"), unique("group")
    create_topic(cluster, topic, partitions=partitions)
    options: dict[str, Any] = {"session_timeout_s": 60.0} if way == "zookeeper" else {"strategy": way}
    if way == "zookeeper":
        options |= {"coordination": "zookeeper", "zookeeper": brokers.connect}
    connectors: list[millstream.Connector] = []
    threads: list[threading.Thread] = []
    streams: list[millstream.MessageStream] = []
    try:
        for _ in range(members):
            connectors.append(millstream.connect(cluster, group=group, **options))
            streams += connectors[-1].create_message_streams({topic: 1})[topic]
            threads.append(threading.Thread(target=list, args=[streams[-1]]))
            threads[-1].start()

        def settled() -> bool:
            owned = [stream.partitions for stream in streams]
            return {len(one) for one in owned} == {partitions // members} and len(
                {*sum(owned, ())}
            ) == partitions

        until(settled, "each has its four", 150)
    finally:
        closing = [threading.Thread(target=connector.close) for connector in connectors]
        for thread in closing:
            thread.start()
        for thread in [*closing, *threads]:
            thread.join(60)
