"""Partitions that wait hold up no other; after a while they are a problem, until they open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import NewTopic

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.gated_cluster import GatedCluster
from millstream_harness.mirror import MirrorProcess, admin, arrived, produce
from millstream_harness.mirror_maker import a_mirror
from millstream_harness.scenario import eventually, unique
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.client import ClusterClient
from millstream_mirror.lane import RECORD_TOO_LARGE, Lane
from millstream_mirror.member import LaneName
from millstream_mirror.numbering import NumberingFlow
from millstream_mirror.opening import Keeper
from millstream_mirror.progress import Gap, Progress
from millstream_mirror.stats import Counters, Reachability
from millstream_mirror.waiting import LONG_S, OPENING, Cause, Waits, cause_of, failed, messages, no_leader
from millstream_operator.conditions import Condition
from millstream_operator.reconcile import mirror as plan

StartMirror = Callable[..., MirrorProcess]
LONG = LONG_S + 60


def name(partition: int = 0, topic_id: str = "old") -> LaneName:
    return LaneName("orders", "orders", topic_id, partition)


def test_a_wait_lasts_until_the_partition_is_mirrored_whatever_its_cause() -> None:
    waits = Waits()
    waits.observe({name(): OPENING, name(1): OPENING}, 100.0)
    waits.observe({name(): no_leader("source")}, 110.0)
    assert waits.since(30, 129.9) == {}
    assert waits.since(30, 130.0) == {name(): no_leader("source")}
    waits.observe({}, 131.0)
    waits.observe({name(): OPENING}, 132.0)
    assert waits.since(30, 161.0) == {}, "it was mirrored in between"


def test_a_topic_that_was_created_again_begins_to_wait_then() -> None:
    waits = Waits()
    waits.observe({name(): no_leader("source")}, 100.0)
    waits.observe({name(topic_id="new"): no_leader("source")}, 140.0)
    assert waits.since(30, 150.0) == {}


def test_partitions_with_one_cause_share_a_message() -> None:
    waiting = {name(partition): no_leader("target") for partition in range(7)}
    assert messages({**waiting, name(9): Cause("source", "its disk is full", "empty it")}) == [
        "orders-0, orders-1, orders-2, orders-3, orders-4 and 2 more: no leader in the target: not mirrored for 30"
        " seconds or longer: start a broker that has an in-sync replica",
        "orders-9: its disk is full: not mirrored for 30 seconds or longer: empty it",
    ]


def test_a_lane_waits_from_a_failure_until_its_next_success() -> None:
    lane = Lane("orders", 0, "orders", progress := Progress(0, 7, 0, 0, 0, "topic", "cluster", 0))
    assert cause_of(lane) == OPENING
    lane.recovering = False
    assert cause_of(lane) == no_leader("source")
    lane.leader = 1
    assert cause_of(lane) is None
    lane.fail("refused", side="source")
    lane.rewind(progress)
    assert cause_of(lane) == failed("source", "refused"), "it may be refused again"
    lane.saw(10)
    assert cause_of(lane) is None, "the source has answered"
    lane.fail("refused")
    lane.rewind(progress)
    lane.saw(10)
    assert cause_of(lane) == failed("target", "refused"), "the source's answer says nothing about the target"
    lane.fail("too large", reason=RECORD_TOO_LARGE)
    assert cause_of(lane) is None, "it has a reason of its own"
    lane.reason, lane.stopped_at = "", Gap(0, 1, 0)
    assert cause_of(lane) is None


class Leaderless(ClusterClient):
    """A partition has no leader until it is elected; there is no broker."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", timeout=0.1)
        self.asked, self.elected = asyncio.Event(), asyncio.Event()

    async def leader(self, topic: str, partition: int) -> int:
        self.asked.set()
        await self.elected.wait()
        return 1


class Ready(Keeper):
    async def _open(self, names: Sequence[LaneName]) -> tuple[list[Lane], dict[LaneName, Cause]]:
        return [], {}

    async def recover(self, lane: Lane) -> None:
        lane.rewind(lane.acknowledged)


async def test_a_lane_is_not_fetched_before_its_leader_in_the_target_is_known() -> None:
    """A fetch is for many lanes: it must not wait for the leader of one."""
    target = Leaderless()
    flow = NumberingFlow("west", target, target, Ready(target, target), Reachability("west", ""), Counters())
    lane = Lane("orders", 0, "orders", Progress(0, 7, 0, 0, 0, "topic", "cluster", 0))
    lane.fail("no leader")
    lane.recovering = True
    recovery, asked = asyncio.create_task(flow._recover(lane)), asyncio.create_task(target.asked.wait())
    await asyncio.wait([recovery, asked], return_when=asyncio.FIRST_COMPLETED)
    assert lane.recovering
    assert not lane.may_fetch(1 << 20)
    target.elected.set()
    await asyncio.gather(recovery, asked)
    assert lane.may_fetch(1 << 20)
    await target.close()


def problem(mirror: MirrorProcess) -> str:
    """What the worker says about partitions that wait."""
    found = mirror.status()["sources"][0]["problems"]
    return "; ".join(one["message"] for one in found if one["reason"] == "PartitionWaiting")


def conditions(mirror: MirrorProcess) -> dict[str, Condition]:
    """The conditions that the operator makes of the worker's report."""
    report = msgspec.json.decode(mirror.get("/status"), type=plan.WorkerReport)
    status = plan.status_of(a_mirror(), plan.Workers(1, 1, (report,)), datetime(2026, 11, 21, tzinfo=UTC))
    return {one.type: one for one in status.conditions or ()}


def waiting(mirror: MirrorProcess) -> int:
    (found,) = (
        line.split()[-1]
        for line in mirror.get("/metrics").splitlines()
        if line.startswith("millstream_mirror_waiting_partitions{")
    )
    return int(float(found))


def is_degraded(mirror: MirrorProcess, words: str) -> None:
    """Wait until the partitions are a problem everywhere, in these words."""
    assert eventually(lambda: problem(mirror), bool, "a problem", LONG) == words
    found = conditions(mirror)
    for kind, status in (("Degraded", "True"), ("Ready", "False")):
        assert (found[kind].status, found[kind].reason, found[kind].message) == (
            status,
            "PartitionWaiting",
            words,
        )


def without_leader(topic: str, side: str) -> str:
    return (
        f"{topic}-0: no leader in the {side}: not mirrored for 30 seconds or longer: start a broker that has an in-sync"
        " replica"
    )


def is_well(mirror: MirrorProcess) -> None:
    eventually(lambda: problem(mirror), lambda found: not found, "no problem", 60)
    assert conditions(mirror)["Degraded"].status == "False"
    assert waiting(mirror) == 0


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_a_partition_without_a_leader_in_the_source(
    cluster: ClusterProcesses, east: BrokerProcess, start_mirror: StartMirror, mode: str
) -> None:
    topic = unique("lost")
    admin(cluster).create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    produce(cluster, topic, range(10))
    away = cluster.leader(topic)
    away.kill()
    eventually(lambda: cluster.partitions(topic)[0].leader_id, lambda leader: leader < 0, "no leader")
    mirror = start_mirror({"west": cluster.bootstrap}, east.bootstrap, topics={"include": [topic]}, mode=mode)
    is_degraded(mirror, without_leader(topic, "source"))
    assert waiting(mirror) == 1
    away.start()
    arrived(east, topic, [10])
    is_well(mirror)


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_a_partition_that_loses_its_leader_in_the_target(
    west: BrokerProcess, cluster: ClusterProcesses, start_mirror: StartMirror, mode: str
) -> None:
    """Its lane was open before. The group of the mirror keeps its coordinator."""
    topic = unique("lost")
    admin(west).create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    produce(west, topic, range(10))
    mirror = start_mirror({"west": west.bootstrap}, cluster.bootstrap, topics={"include": [topic]}, mode=mode)
    arrived(cluster, topic, [10])
    away = cluster.leader(topic)
    away.kill()
    produce(west, topic, range(10))
    is_degraded(mirror, without_leader(topic, "target"))
    away.start()
    arrived(cluster, topic, [20])
    is_well(mirror)


@pytest.fixture
def gated(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[GatedCluster]:
    with GatedCluster(tmp_path, zookeeper=shared_zookeeper) as cluster:
        yield cluster


class Split:
    """A mirrored topic with leaders on all brokers of the source; one of them can be cut off from mirrors.

    The cluster names that leader all the time, and its address accepts connections without an answer.
    """

    def __init__(
        self, source: GatedCluster, east: BrokerProcess, start_mirror: StartMirror, mode: str
    ) -> None:
        self.topic = unique("split")
        self._source, self._east = source, east
        self._start = start_mirror
        self._mode = mode
        admin(source).create_topics([NewTopic(self.topic, 6, 1)])[self.topic].result(20)
        source.await_in_sync(self.topic, replicas=1)
        leaders = [one.leader_id for one in source.partitions(self.topic)]
        self.node = leaders[0]
        self.gate = source.gates[self.node]
        self.cut_off = [number for number, leader in enumerate(leaders) if leader == self.node]
        assert 0 < len(self.cut_off) < 6
        self.produce()

    def start(self) -> MirrorProcess:
        sources = {"west": self._source.gated_bootstrap}
        return self._start(sources, self._east.bootstrap, topics={"include": [self.topic]}, mode=self._mode)

    def produce(self) -> None:
        """Ten more records for each partition."""
        produce(self._source, self.topic, range(60), 6)

    def arrived(self, others: int, cut_off: int) -> None:
        """Wait until partitions have this many records."""
        arrived(self._east, self.topic, [cut_off if one in self.cut_off else others for one in range(6)])


@pytest.fixture(params=["Aggregate", "Identity"])
def split(
    gated: GatedCluster, east: BrokerProcess, start_mirror: StartMirror, request: pytest.FixtureRequest
) -> Split:
    return Split(gated, east, start_mirror, request.param)


def test_a_leader_that_nobody_reaches_holds_up_no_other_when_a_worker_starts(split: Split) -> None:
    mirror = split.start()
    split.arrived(10, 10)
    mirror.stop()
    split.gate.stall()
    split.produce()
    mirror = split.start()
    split.arrived(20, 10)
    listed = ", ".join(f"{split.topic}-{number}" for number in split.cut_off)
    said = eventually(lambda: problem(mirror), lambda found: listed in found, "a problem", LONG)
    assert said.startswith(
        f"{listed}: the leader in the source, broker {split.node}, does not respond (127.0.0.1:{split.gate.port}: no"
        " connection within 3 s): not mirrored for 30 seconds or longer: check that broker, its advertised address, and"
        " the network between it and the workers"
    )
    assert waiting(mirror) == len(split.cut_off)
    found = conditions(mirror)
    assert [(found[kind].status, found[kind].reason) for kind in ("Degraded", "Ready")] == [
        ("True", "PartitionWaiting"),
        ("False", "PartitionWaiting"),
    ]
    split.gate.flow()
    split.arrived(20, 20)
    is_well(mirror)


def test_a_leader_that_nobody_reaches_holds_up_no_other_when_workers_share_anew(split: Split) -> None:
    """All workers open their lanes again when one joins."""
    mirror = split.start()
    split.arrived(10, 10)
    split.gate.stall()
    other = split.start()
    eventually(lambda: shares(mirror, other), lambda found: len(found) == 2, "both have lanes", 60)
    split.produce()
    split.arrived(20, 10)
    split.gate.flow()
    split.arrived(20, 20)
    for one in (mirror, other):
        is_well(one)


def shares(*workers: MirrorProcess) -> list[int]:
    """The numbers of partitions of workers that have any."""
    found = [one.status()["sources"][0]["partitions"] for one in workers]
    return [one for one in found if one]
