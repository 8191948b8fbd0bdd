"""Partitions that wait hold up no other; after a while they are a problem, until they open."""

from __future__ import annotations

import functools
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from millstream_harness.gated_cluster import GatedCluster
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, Peer, arrived, create, produce
from millstream_harness.mirror_maker import a_mirror
from millstream_harness.scenario import eventually, unique
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.client import ClusterClient, ConnectFailed
from millstream_mirror import source
from millstream_mirror.aggregate.flow import NumberingFlow
from millstream_mirror.config.config import parse
from millstream_mirror.kafka.progress import Gap, Progress
from millstream_mirror.membership.member import TaskName
from millstream_mirror.membership.peer_liveness import WorkerEndpoint
from millstream_mirror.partitions import pipeline as flow
from millstream_mirror.partitions.assignment import TaskRecovery
from millstream_mirror.partitions.partition_task import RECORD_TOO_LARGE, PartitionTask, Side
from millstream_mirror.partitions.stats import Counters, Reachability
from millstream_mirror.partitions.waiting import (
    POSITION_UNKNOWN,
    Cause,
    Waits,
    cause_of,
    failed,
    messages,
    no_leader,
)
from millstream_operator.models.conditions import Condition
from millstream_operator.models.mirror_reports import WorkerReport, Workers
from millstream_operator.reconcile.mirror import plan as plan

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
SIDES: tuple[Side, ...] = ("source", "target", "source", "")
SHORT_S = 5
IMPATIENT = (
    "import sys; from millstream_mirror.partitions import assignment, waiting;"
    f" waiting.LONG_S, assignment.BACKOFF_MAX_S = {SHORT_S}, 1.0; from millstream_mirror import main, source;"
    " source.WATCH_S = 0.25; sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker for which waits are long soon, and which retries more often."""
MODES: dict[str, dict[str, str]] = {"Identity": {}, "Aggregate": {"naming": "Prefixed"}}
"""Both at once: with the prefix, their topics differ."""


OLD, NEW = (str(uuid.UUID(int=number)) for number in (1, 2))


def name(partition: int = 0, topic_id: str = OLD) -> TaskName:
    return TaskName("orders", "orders", topic_id, partition)


def test_wait_lasts_until_partition_is_mirrored() -> None:
    waits = Waits()
    waits.observe({name(): POSITION_UNKNOWN, name(1): POSITION_UNKNOWN}, 100.0)
    waits.observe({name(): no_leader("source")}, 110.0)
    assert waits.since(30, 129.9) == {}
    assert waits.since(30, 130.0) == {name(): no_leader("source")}
    waits.observe({}, 131.0)
    waits.observe({name(): POSITION_UNKNOWN}, 132.0)
    assert waits.since(30, 161.0) == {}, "it was mirrored in between"


def test_wait_of_recreated_topic_begins_anew() -> None:
    waits = Waits()
    waits.observe({name(): no_leader("source")}, 100.0)
    waits.observe({name(topic_id=NEW): no_leader("source")}, 140.0)
    assert waits.since(30, 150.0) == {}


def test_partitions_with_same_cause_share_message() -> None:
    waiting = {name(partition): no_leader("target") for partition in range(7)}
    assert messages({**waiting, name(9): Cause("source", "its disk is full", "empty it")}) == [
        "orders-0, orders-1, orders-2, orders-3, orders-4 and 2 more: no leader in the target: not mirrored for 30"
        " seconds or longer: start a broker that has an in-sync replica",
        "orders-9: its disk is full: not mirrored for 30 seconds or longer: empty it",
    ]


def test_task_waits_from_failure_until_success() -> None:
    task = PartitionTask("orders", 0, "orders", progress := Progress(0, 7, 0, 0, 0, "topic", "cluster", 0))
    assert cause_of(task) == POSITION_UNKNOWN
    task.end_recovery()
    assert cause_of(task) == no_leader("source")
    task.leader = 1
    assert cause_of(task) is None
    task.fail("refused", side="source")
    task.rewind(progress)
    assert cause_of(task) == failed("source", "refused"), "it may be refused again"
    task.observe_end(10)
    assert cause_of(task) is None, "the source has answered"
    task.fail("refused")
    task.rewind(progress)
    task.observe_end(10)
    assert cause_of(task) == failed("target", "refused"), "the source's answer says nothing about the target"
    task.fail("too large", reason=RECORD_TOO_LARGE)
    assert cause_of(task) is None, "it has a reason of its own"
    task.reason = ""
    task.stop_at(Gap(0, 1, 0))
    assert cause_of(task) is None


CONFIG = {
    "name": "m",
    "sources": [{"name": "west", "bootstrap": "127.0.0.1:1"}],
    "target": {"bootstrap": "127.0.0.1:2"},
    "topics": {"include": [".*"]},
}


class Clock:
    """The module ``time``, with another clock."""

    now = 0.0
    time = staticmethod(time.time)

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("lost", ["source", "target"])
async def test_cluster_outage_restarts_waits(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "time", clock := Clock())
    config = parse(json.dumps(CONFIG))
    mirror = source.SourceMirror(config, config.sources[0], WorkerEndpoint("127.0.0.1", 3, config.target))
    sides = {"source": mirror._reachability, "target": mirror._target_reachability}
    for side in sides.values():
        side.found()
    mirror._flow.assignment.assigned([name()])
    mirror._target_error = "a broker does not respond"  # so new topics wait, too

    def problems(now: float) -> list[str]:
        clock.now = now
        status = mirror.status
        assert status.waiting == sum("new topics" not in one.message for one in status.problems)
        return [one.message.partition(":")[0] for one in status.problems]

    assert problems(0) == problems(20) == []
    sides[lost].lost(OSError("no connection"))
    assert problems(25) == problems(1000) == []
    sides[lost].found()
    assert problems(1001) == problems(1029.9) == [], "brokers that come back need time"
    assert problems(1030) == ["new topics and partitions"]
    assert problems(1031) == ["orders-0", "new topics and partitions"]
    await mirror._clients.close()


class Led(ClusterClient):
    """All its partitions have a leader; there is no broker."""

    async def leader(self, topic: str, partition: int) -> int:
        return 1


class Failing(TaskRecovery):
    """Recoveries fail with these errors before one succeeds; notes why the task waited before each."""

    def __init__(self, at_source: ClusterClient, at_target: ClusterClient, errors: list[Exception]) -> None:
        super().__init__(at_source, at_target)
        self.errors = errors
        self.waited: list[Cause | None] = []

    async def _open(self, names: Sequence[TaskName]) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        return [], {}

    async def recover(self, task: PartitionTask) -> None:
        self.waited.append(cause_of(task))
        if self.errors:
            raise self.errors.pop(0)
        task.rewind(task.acknowledged)


async def test_cause_of_wait_names_side_of_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "BACKOFF_S", 0.0)
    here, there = Led("127.0.0.1:1"), Led("127.0.0.1:2")
    errors = [ConnectFailed("127.0.0.1", port, "refused") for port in (1, 2, 1, 3)]
    recovery = Failing(here, there, [*errors])
    tasks = NumberingFlow("west", here, there, recovery, Reachability("west", ""), Counters())
    task = PartitionTask("orders", 0, "orders", Progress(0, 7, 0, 0, 0, "topic", "cluster", 0))
    task.fail("producing failed")
    task.start_recovery()
    await tasks._recover(task)
    assert recovery.waited == [
        failed("target", "producing failed"),
        *(failed(side, str(one)) for side, one in zip(SIDES, errors, strict=True)),
    ]


def problems(mirror: MirrorProcess) -> list[str]:
    """What the worker says about partitions that wait."""
    found = mirror.status()["sources"][0]["problems"]
    return [one["message"] for one in found if one["reason"] == "PartitionWaiting"]


def conditions(mirror: MirrorProcess) -> dict[str, Condition]:
    """The conditions that the operator makes of the worker's report."""
    report = msgspec.json.decode(mirror.get("/status"), type=WorkerReport)
    status = plan.status_of(a_mirror(), Workers(1, 1, (report,)), datetime(2026, 11, 21, tzinfo=UTC))
    return {one.type: one for one in status.conditions or ()}


def waiting(mirror: MirrorProcess) -> int:
    (found,) = (
        line.split()[-1]
        for line in mirror.get("/metrics").splitlines()
        if line.startswith("millstream_mirror_waiting_partitions{")
    )
    return int(float(found))


def is_degraded(mirror: MirrorProcess, words: str, count: int, *, alone: bool = True) -> None:
    """Wait until these partitions are a problem everywhere, in these words: ``alone``, or beside other problems.

    On a busy machine others may wait for a while, too.
    """

    def seen() -> tuple[list[str], dict[str, Condition], int]:
        return problems(mirror), conditions(mirror), waiting(mirror)

    def is_it(now: tuple[list[str], dict[str, Condition], int]) -> bool:
        told, found, partitions = now
        return (
            (told == [words] if alone else words in told)
            and partitions == count
            and all(
                (found[kind].status, found[kind].reason) == (status, "PartitionWaiting")
                and (found[kind].message == words if alone else words in (found[kind].message or ""))
                for kind, status in (("Degraded", "True"), ("Ready", "False"))
            )
        )

    eventually(seen, is_it, "a problem", 120)


def is_well(mirror: MirrorProcess) -> None:
    eventually(
        lambda: (problems(mirror), conditions(mirror)["Degraded"].status, waiting(mirror)),
        lambda now: now == ([], "False", 0),
        "no problem",
        120,
    )


class Copy:
    """A topic that is mirrored in one mode, by any number of workers."""

    def __init__(self, start_mirror: StartMirror, topic: str, mode: str, source: str, target: Peer) -> None:
        self.topic = topic
        self.workers: list[MirrorProcess] = []
        self._name = f"west.{topic}" if mode == "Aggregate" else topic
        self._target = target
        self._start = functools.partial(
            *(start_mirror, {"west": source}, target.bootstrap),
            **{
                "name": f"{topic}.{mode}".lower(),
                "mode": mode,
                "topics": {"include": [topic]},
                **MODES[mode],
            },
            entering=(sys.executable, "-c", IMPATIENT),
        )

    def start(self) -> None:
        self.workers.append(self._start())

    def arrived(self, counts: list[int]) -> None:
        arrived(self._target, self._name, counts)

    def led_by(self, node: int) -> list[int]:
        """The partitions in the target that this broker leads."""
        assert isinstance(self._target, InProcessCluster)
        return led_by(self._target, self._name, node)

    def shares(self) -> list[int]:
        """The number of open partitions of each worker."""
        return [worker.status()["sources"][0]["partitions"] for worker in self.workers]


def led_by(cluster: InProcessCluster, topic: str, node: int) -> list[int]:
    """The partitions that this broker leads: some, and not all."""
    leaders = [one.leader_id for one in cluster.partitions(topic)]
    found = [number for number, leader in enumerate(leaders) if leader == node]
    assert 0 < len(found) < len(leaders)
    return found


def listed(topic: str, partitions: list[int]) -> str:
    return ", ".join(f"{topic}-{number}" for number in partitions)


@pytest.mark.timeout(600)
def test_partitions_without_leader_are_reported_as_waiting(
    west: InProcessBroker, cluster: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """In the source, while no worker runs; and in the target, where tasks are open."""
    here, there = unique("here"), unique("there")
    for broker, topic in ((cluster, here), (west, there)):
        create(broker, topic, 3)
        produce(broker, topic, range(30), 3)
    into = [Copy(start_mirror, there, mode, west.bootstrap, cluster) for mode in MODES]
    out_of = [Copy(start_mirror, here, mode, cluster.bootstrap, east) for mode in MODES]
    for copy in into:
        copy.start()
    for copy in into:
        copy.arrived([10, 10, 10])
    away = cluster.leader(here)
    node = next(number for number, broker in cluster.brokers.items() if broker is away)
    lost = [copy.led_by(node) for copy in into]
    away.kill()
    produce(west, there, range(30), 3)
    eventually(lambda: cluster.partitions(here)[0].leader_id, lambda leader: leader < 0, "no leader", 90)
    for copy in out_of:
        copy.start()
    for copy, partitions, side in (
        *((copy, partitions, "target") for copy, partitions in zip(into, lost, strict=True)),
        *((copy, [0], "source") for copy in out_of),
    ):
        is_degraded(
            copy.workers[0],
            f"{listed(copy.topic, partitions)}: no leader in the {side}: not mirrored for {SHORT_S} seconds or longer:"
            " start a broker that has an in-sync replica",
            len(partitions),
        )
    for copy in out_of:
        copy.arrived([0, 10, 10])
    away.start()
    for copy in into:
        copy.arrived([20, 20, 20])
    for copy in out_of:
        copy.arrived([10, 10, 10])
    for copy in (*into, *out_of):
        is_well(copy.workers[0])


@pytest.fixture
def gated(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[GatedCluster]:
    with GatedCluster(tmp_path, zookeeper=shared_zookeeper) as cluster:
        yield cluster


@pytest.mark.timeout(600)
def test_unreachable_leader_delays_no_other_partition(
    gated: GatedCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """When a worker starts, and when workers share anew: all of them open their tasks again when one joins.

    The cluster names that leader all the time, and its address accepts connections without an answer.
    """
    starting, sharing = unique("starting"), unique("sharing")
    for topic in (starting, sharing):
        create(gated, topic, 6)
        gated.await_in_sync(topic, replicas=1)
        produce(gated, topic, range(60), 6)
    node = gated.partitions(starting)[0].leader_id
    cut_off = {topic: led_by(gated, topic, node) for topic in (starting, sharing)}
    begun, shared = (
        [Copy(start_mirror, topic, mode, gated.gated_bootstrap, east) for mode in MODES]
        for topic in (starting, sharing)
    )

    def all_arrived(others: int, of_cut_off: int) -> None:
        for copy in (*begun, *shared):
            copy.arrived([of_cut_off if number in cut_off[copy.topic] else others for number in range(6)])

    for copy in (*begun, *shared):
        copy.start()
    all_arrived(10, 10)
    for copy in begun:
        copy.workers.pop().stop()
    gate = gated.gates[node]
    gate.stall()
    produce(gated, starting, range(60), 6)
    for copy in (*begun, *shared):
        copy.start()
    for copy in shared:
        eventually(copy.shares, lambda found: len(found) == 2 and min(found) > 0, "both have tasks", 120)
    produce(gated, sharing, range(60), 6)
    all_arrived(20, 10)
    for copy in begun:
        is_degraded(
            copy.workers[0],
            f"{listed(starting, cut_off[starting])}: the leader in the source, broker {node}, does not respond"
            f" (127.0.0.1:{gate.port}: no connection within 3 s): not mirrored for {SHORT_S} seconds or longer: check"
            " that broker, its advertised address, and the network between it and the workers",
            len(cut_off[starting]),
            alone=False,  # topics wait, too
        )
    gate.flow()
    all_arrived(20, 20)
    for copy in (*begun, *shared):
        for worker in copy.workers:
            is_well(worker)
