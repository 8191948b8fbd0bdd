"""Mode Identity between two clusters of three brokers when things break: every replica has equal logs."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.ledger import Load, check
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce, read_batches, stored
from millstream_harness.mirror_conditions import conditions_of, is_degraded
from millstream_harness.mortal import Died, Life
from millstream_harness.promoting import World
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import iter_batches, read_header
from millstream_operator.kafka.mirror_records import group_of
from millstream_operator.kafka.mirrored import notes_of
from millstream_operator.reconcile.mirror.promotion_apply import FOR_A_LEADER

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
PARTITIONS = 2
STEPS = [("worker", 0), ("target", 0), ("source", 0), ("target", 1), ("worker", 0), ("source", 1)]
"""The processes to kill, and the partition whose leader is meant."""
TENS = {"batch_num_messages": 10, "linger_ms": 200}
"""Batches of ten records, so those of two histories lie at the same offsets."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("source")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("target")) as cluster:
        yield cluster


def start(
    start_mirror: StartMirror, source: InProcessCluster, target: InProcessCluster, topic: str
) -> MirrorProcess:
    admin(source).create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    source.await_in_sync(topic)
    mirror = start_worker(start_mirror, source, target, topic)
    until(lambda: len(target.partitions(topic)) == PARTITIONS, f"{topic} is in the target")
    return mirror


def start_worker(
    start_mirror: StartMirror, source: InProcessCluster, target: InProcessCluster, topic: str
) -> MirrorProcess:
    return start_mirror(
        {"source": source.bootstrap},
        target.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
    )


def shares(*workers: MirrorProcess) -> list[int]:
    return [one.status()["sources"][0]["partitions"] for one in workers]


def is_a_prefix(source: InProcessCluster, target: InProcessCluster, topic: str) -> None:
    """Every replica in the target equals the source, byte for byte, as far as it goes."""
    for partition in range(PARTITIONS):
        copies = [stored(broker, topic, partition) for broker in target.brokers.values()]
        original = stored(source.leader(topic, partition), topic, partition)
        for copy in copies:
            assert original.startswith(copy), f"{topic}-{partition}"


def is_the_same(source: InProcessCluster, target: InProcessCluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        original = stored(source.leader(topic, partition), topic, partition)
        assert original
        for number, broker in target.brokers.items():
            what = f"{topic}-{partition} in broker {number} has {len(original)} bytes"
            until(partial(has_size, broker, topic, partition, len(original)), what)
            assert stored(broker, topic, partition) == original


def has_size(broker: InProcessBroker, topic: str, partition: int, size: int) -> bool:
    return len(stored(broker, topic, partition)) == size


def is_moving(mirror: MirrorProcess) -> None:
    wanted = mirror.records() + 50
    eventually(mirror.records, lambda count: count > wanted, "records mirrored")


@pytest.mark.timeout(400)
def test_kills_leave_replica_equal(
    source: InProcessCluster, target: InProcessCluster, start_mirror: StartMirror
) -> None:
    topic = unique("killed")
    mirror = start(start_mirror, source, target, topic)
    with Load(source.bootstrap, topic, partitions=range(PARTITIONS), pause_s=0.001) as load:
        load.until(200)
        for what, partition in STEPS:
            is_moving(mirror)
            time.sleep(random.uniform(0, 0.3))  # anywhere between two steps
            if what == "worker":
                mirror.kill()
                mirror.start()
            else:
                cluster = target if what == "target" else source
                victim = cluster.leader(topic, partition)
                victim.kill()
                is_moving(mirror)
                victim.start()
                cluster.await_in_sync(topic)
            is_a_prefix(source, target, topic)
    check(source.bootstrap, topic, [load])
    check(target.bootstrap, topic, [load])
    is_the_same(source, target, topic)
    for partition, seen in enumerate(target.partitions(topic)):
        epochs = [
            header.partition_leader_epoch
            for _, header in iter_batches(stored(target.brokers[1], topic, partition))
        ]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) > 1, "the source had other leaders"
        assert seen.leader_epoch > epochs[-1], "a client may never see an epoch above its leader's"


@pytest.mark.timeout(400)
def test_new_leader_makes_task_compare_logs(
    source: InProcessCluster, target: InProcessCluster, start_mirror: StartMirror
) -> None:
    """Even if the worker was connected to it all the time: it may lack records, after an unclean election."""
    topic = unique("elected")
    mirror = start(start_mirror, source, target, topic)
    produce(source, topic, range(100), PARTITIONS)
    arrived(target, topic, [50, 50])
    # A worker that starts may compare the logs of one task before it connects to the leader of the other. Tasks that
    # open again find all connections open.
    other = start_worker(start_mirror, source, target, topic)
    eventually(lambda: shares(mirror, other), lambda now: now == [1, 1], "a task each")
    other.stop()
    eventually(lambda: shares(mirror), lambda now: now == [2], "the tasks open again")
    victim = source.leader(topic)
    victim.kill()
    produce(source, topic, range(100, 200), PARTITIONS)
    arrived(target, topic, [100, 100])
    # The other error: a third broker has named the new leader before that broker leads.
    refused = re.compile(rf"{topic}-0: fetching from source: (FENCED_LEADER_EPOCH|NOT_LEADER_OR_FOLLOWER)")
    eventually(mirror.said, lambda said: refused.search(said) is not None, "the new leader refuses a fetch")
    victim.start()
    source.await_in_sync(topic)


def test_promotion_under_load_keeps_acknowledged_records(
    source: InProcessCluster, target: InProcessCluster, start_mirror: StartMirror
) -> None:
    topic = unique("promoted")
    mirror = start(start_mirror, source, target, topic)
    operator = World(target.bootstrap, topic, source.bootstrap)
    with (
        closing(operator),
        Load(source.bootstrap, topic, partitions=range(PARTITIONS), name="source", pause_s=0.001),
    ):
        is_moving(mirror)
        operator.ask("under-load", topic)
        last = eventually(
            lambda: operator.look().get("lastPromotion", {}),
            lambda last: last.get("state") == "Done",
            "it is done",
        )
        with Load(target.bootstrap, topic, partitions=range(PARTITIONS), name="own", pause_s=0.001) as own:
            for round_ in range(2):
                own.until(own.ledger.count + 200)
                victim = target.leader(topic, round_ % PARTITIONS)
                victim.kill()
                own.until(own.ledger.count + 200)
                victim.start()
                target.await_in_sync(topic)
    is_promoted(source, target, topic, own, last)


class Incident(Life):
    """Something that happens right before, or right after, the operator's nth write; then the operator may die."""

    def __init__(self, number: int, happens: Callable[[], None], *, after: bool, dies: bool) -> None:
        super().__init__()
        self._left, self._happens, self._after, self._dies = number, happens, after, dies

    def write(self, deed: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left != 0:
            return deed()
        done = deed() if self._after else None
        self._happens()
        if self._dies:
            raise Died
        return done if self._after else deed()


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("dies", [False, True], ids=["the operator lives", "the operator dies"])
def test_promotion_survives_loss_of_worker_and_leader(
    source: InProcessCluster, target: InProcessCluster, start_mirror: StartMirror, after: bool, dies: bool
) -> None:
    """Both are killed when the operator deletes the topic's setting: the request has begun, and is not done."""
    topic = unique("survives")
    mirror = start(start_mirror, source, target, topic)
    operator = World(target.bootstrap, topic, sources=[{"name": "source", "bootstrap": source.bootstrap}])
    group = group_of(topic, "source")
    told = set()
    with (
        closing(operator),
        Load(source.bootstrap, topic, partitions=range(PARTITIONS), name="source", pause_s=0.001),
    ):
        is_moving(mirror)
        eventually(
            lambda: notes_of(operator.admin, [group])[group],
            lambda notes: len(notes) == PARTITIONS,
            "the worker has noted which topic it writes to",
        )
        victim = target.leader(topic)

        def both_end() -> None:
            assert operator.manifest["status"]["lastPromotion"]["state"] == "Running"
            mirror.kill()
            victim.kill()

        operator.ask("r", topic)
        try:
            operator.look(Incident(2, both_end, after=after, dies=dies))
        except Died:
            assert dies
        assert not victim.is_running

        def look() -> dict[str, Any]:
            last: dict[str, Any] = operator.look()["lastPromotion"]
            told.add((operator.condition() or ())[:2])
            return last

        last = eventually(look, lambda last: last["state"] != "Running", "it ends")
        assert last["state"] == "Done"
        with Load(target.bootstrap, topic, partitions=range(PARTITIONS), name="own", pause_s=0.001) as own:
            own.until(200)
            mirror.start()
            own.until(own.ledger.count + 200)
            victim.start()
            target.await_in_sync(topic)
            own.until(own.ledger.count + 200)
            eventually(
                lambda: mirror.status()["sources"][0]["promoted"],
                lambda promoted: promoted == [topic],
                "the worker leaves it alone",
            )
    assert told <= {("False", "Promoting"), ("False", "TargetUnreachable"), ("True", "Promoted")}
    is_promoted(source, target, topic, own, last)


def test_promotion_waits_for_missing_leader(target: InProcessCluster) -> None:
    """The topic is promoted at once. Where its mirrored records end, only a leader knows."""
    world = World(target.bootstrap, unique("leaderless"))
    with closing(world):
        for returns in (True, False):
            topic = f"{world.name}-{returns}"
            world.replica(topic, config={"min.insync.replicas": "1"})
            victim = target.leader(topic)
            victim.kill()
            until(partial(has_no_leader, target, topic), "its only replica is gone")
            world.ask(f"r-{returns}", topic)
            waits = (
                f"request r-{returns}: waits for a leader of {topic}-0, to read where mirrored records end"
            )
            eventually(
                lambda: (world.look(), world.condition())[1],
                lambda told, wanted=waits: told == ("False", "Promoting", wanted),
                "it waits",
            )
            until(lambda here=topic: world.writable(here) == [True], "every broker knows that it is writable")
            if returns:
                victim.start()
            else:
                world.now += FOR_A_LEADER
            last = eventually(
                lambda: world.look()["lastPromotion"], lambda found: found["state"] == "Done", "it is done"
            )
            assert last["topics"][0]["ends"] == [3 if returns else -1]
        assert last["message"].endswith("where mirrored records end is not known of 1 partition")
        victim.start()


def has_no_leader(cluster: InProcessCluster, topic: str) -> bool:
    return [one.leader_id for one in cluster.partitions(topic)] == [-1]


def is_promoted(
    source: InProcessCluster, target: InProcessCluster, topic: str, own: Load, last: dict[str, Any]
) -> None:
    """The source's batches up to the recovery point, then those of the target's own producer, none of which is lost."""
    assert not own.ledger.failed
    check(target.bootstrap, topic, [own], ignore=b"source:.*")
    (row,) = last["topics"]
    for partition in range(PARTITIONS):
        ours = asyncio.run(read_batches(target.bootstrap, topic, partition))
        theirs = asyncio.run(read_batches(source.bootstrap, topic, partition))
        mirrored = [batch for batch in ours if b"source:" in batch]
        assert mirrored == ours[: len(mirrored)] == theirs[: len(mirrored)]
        assert len(ours) > len(mirrored) > 0
        before, first = read_header(mirrored[-1]), read_header(ours[len(mirrored)])
        assert first.partition_leader_epoch > before.partition_leader_epoch
        assert first.base_offset == before.next_offset == row["ends"][partition]
        for broker in target.brokers.values():
            whole = b"".join(ours)
            until(partial(has_size, broker, topic, partition, len(whole)), "the replicas are equally long")
            assert stored(broker, topic, partition) == whole


def test_log_start_without_records_reaches_every_replica(
    source: InProcessCluster, target: InProcessCluster, start_mirror: StartMirror
) -> None:
    topic = unique("emptied")
    admin(source).create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(30)
    source.await_in_sync(topic)
    with Load(source.bootstrap, topic, partitions=range(PARTITIONS)) as load:
        load.until(1000)
    ends = [load.ledger.sent[partition] for partition in range(PARTITIONS)]
    before = [TopicPartition(topic, partition, end) for partition, end in enumerate(ends)]
    for future in admin(source).delete_records(before).values():
        future.result(30)
    mirror = start_mirror(
        {"source": source.bootstrap},
        target.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
    )
    until(lambda: len(target.partitions(topic)) == PARTITIONS, f"{topic} is in the target")
    eventually(
        lambda: bounds(target, topic), lambda found: found == [(end, end) for end in ends], "its start"
    )
    with Load(source.bootstrap, topic, partitions=range(PARTITIONS), name="more") as more:
        more.until(300)
    wanted = [(end, end + more.ledger.sent[partition]) for partition, end in enumerate(ends)]
    eventually(lambda: bounds(target, topic), lambda found: found == wanted, "what came later")
    victim = target.leader(topic)
    victim.kill()
    eventually(lambda: bounds(target, topic), lambda found: found == wanted, "after a failover")
    victim.start()
    target.await_in_sync(topic)
    assert mirror.status()["sources"][0]["missingRecords"] == 0


def bounds(cluster: InProcessCluster, topic: str) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "bounds", "log_level": 0})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            for partition in range(PARTITIONS)
        ]
    except KafkaException:
        return []
    finally:
        consumer.close()


def test_restored_source_has_diverged(
    tmp_path: Path, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """The source has reused the leader epoch for other records, and more of them than the target has."""
    topic = unique("restored")
    west = InProcessBroker(tmp_path / "west").keep_port().start()
    try:
        create(west, topic, 2)
        produce(west, topic, range(100), 2)
        config: dict[str, Any] = {"name": topic, "mode": "Identity", "topics": {"include": [topic]}}
        mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, **config)
        arrived(east, topic, [50, 50])
        west.stop()
        shutil.copytree(west.data, tmp_path / "copy")
        west.start()
        produce(west, topic, range(60), 1, **TENS)  # to the first partition
        arrived(east, topic, [110, 50])
        mirror.pause()
        west.stop()
        shutil.rmtree(west.data)
        (tmp_path / "copy").rename(west.data)
        west.start()
        produce(west, topic, range(1000, 1200), 2, **TENS)
        mirror.resume()
        arrived(east, topic, [110, 150])
        said = is_degraded(mirror, "Diverged")
        assert mirror.status()["sources"][0]["lastError"] == said
        assert said.startswith(f"{topic}-0: diverged: the target's log ")
        assert "Nothing is overwritten: promote topic" in said
        there = b"".join(asyncio.run(read_batches(east.bootstrap, topic, 0)))
        assert b"value-59" in there
        assert b"value-1000" not in there
        admin(east).delete_topics([topic])[topic].result(20)
        arrived(east, topic, [150, 150])
        eventually(
            lambda: conditions_of(mirror).get("Ready", ("",) * 3),
            lambda now: now[0] == "True",
            "ready again",
        )
    finally:
        west.kill()
