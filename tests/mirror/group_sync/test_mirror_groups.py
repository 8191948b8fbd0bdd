"""Positions of consumer groups, translated into the target, beside real consumers on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from millstream_harness.broker import BrokerProcess
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import OF_MIRRORS, MirrorProcess, Peer, admin, arrived, create, produce
from millstream_harness.mirror_groups import commit, committed, follows, in_step, values
from millstream_harness.scenario import eventually, unique
from millstream_kafka.client import ClusterClient
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.selection.other_mirrors import progress_of

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]


def start_following(
    start_mirror: StartMirror, west: InProcessBroker, east: InProcessBroker, topic: str, group: str
) -> MirrorProcess:
    """A mirror of one topic from west to east, with the positions of one group."""
    return start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, groups={"include": [group]}
    )


def consumer(broker: Peer, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def test_moved_group_continues_at_its_position(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("moves"), unique("app")
    create(west, topic, 2)
    produce(west, topic, range(1000), 2)
    start_following(start_mirror, west, east, topic, group)
    here = consumer(west, group)
    here.subscribe([topic])
    read = []
    while len(read) < 600:
        read += [message.value() for message in here.consume(50, timeout=1)]
    here.commit(asynchronous=False)
    at = [one.offset for one in here.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])]
    follows(east, group, topic, *at)  # while the group still has a member in the source
    here.close()

    there = consumer(east, group)
    there.subscribe([topic])
    while len(read) < 1000:
        read += [message.value() for message in there.consume(50, timeout=1)]
    assert not there.consume(1, timeout=1)
    there.close()
    assert sorted(read) == sorted(b"value-%d" % value for value in range(1000))


async def test_positions_beside_other_writers_are_exact(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("beside"), unique("app")
    create(west, topic)
    create(east, topic)
    mirror = start_following(start_mirror, west, east, topic, group)
    produce(west, topic, range(7))
    arrived(east, topic, [7])
    produce(east, topic, range(2_000_000, 2_000_013))  # 7 to 20 in the target are all positions after these 7
    for number in range(10):
        produce(west, topic, range(7 + number * 100, 107 + number * 100), batch_num_messages=7, linger_ms=0)
        produce(east, topic, range(1_000_000 + number * 13, 1_000_013 + number * 13))
        arrived(east, topic, [20 + (number + 1) * 113])
    source, target = await values(west, topic), await values(east, topic)

    def follows_exactly(offset: int) -> None:
        commit(west, group, topic, offset)
        eventually(
            lambda: committed(east, group, topic),
            lambda now: len(now) == 1 and in_step(source, target, offset, now[0]),
            f"a position after the records before {offset}",
        )

    for offset in (350, 7, 1000, 4):  # back, too, because the mirror had set the position
        follows_exactly(offset)
    for offset in (7, 570, 1000):
        mirror.kill()
        mirror.start()
        follows_exactly(offset)


def test_consumers_of_target_keep_their_positions(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group, other = unique("first"), unique("app"), unique("other")
    create(west, topic)
    produce(west, topic, range(100))
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group, other]},
    )
    arrived(east, topic, [100])
    commit(west, group, topic, 10)
    follows(east, group, topic, 10)
    there = consumer(east, group)
    there.subscribe([topic])
    got: list[Message] = []
    while len(got) < 40:
        got += there.consume(40 - len(got), timeout=1)
    assert [message.offset() for message in got] == list(range(10, 50))
    commit(west, group, topic, 20)
    said = f"group {group}: it has members in the target, so the mirror leaves its positions there alone"
    eventually(
        lambda: mirror.status()["sources"][0]["lastError"], lambda now: now == said, "what is in the way"
    )
    there.commit(offsets=[TopicPartition(topic, 0, 50)], asynchronous=False)
    there.close()
    commit(west, group, topic, 30)
    eventually(
        lambda: mirror.status()["sources"][0]["lastError"], lambda now: now == "", "nothing in the way"
    )
    for offset in (1, 2, 3):  # three rounds
        commit(west, other, topic, offset)
        follows(east, other, topic, offset)
    assert committed(east, group, topic) == [50], "a position of the target's consumers never moves back"
    commit(west, group, topic, 60)
    follows(east, group, topic, 60)


def test_selected_groups_follow_new_partitions(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, prefix = unique("selected"), unique("team")
    create(west, topic)
    produce(west, topic, range(50))
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [f"{prefix}-.*"], "exclude": [".*-test"]},
        naming="Prefixed",
    )
    arrived(east, f"west.{topic}", [50])
    for name in ("one", "two", "test"):
        commit(west, f"{prefix}-{name}", topic, 25)
    for name in ("one", "two"):
        follows(east, f"{prefix}-{name}", f"west.{topic}", 25)
    assert committed(east, f"{prefix}-test", f"west.{topic}") == []
    admin(west).create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    producer = Producer({"bootstrap.servers": west.bootstrap})
    eventually(lambda: len(producer.list_topics(topic).topics[topic].partitions), lambda n: n == 2, "growth")
    produce(west, topic, range(50, 90), 2)
    arrived(east, f"west.{topic}", [70, 20])
    commit(west, f"{prefix}-one", topic, 70, 11)
    follows(east, f"{prefix}-one", f"west.{topic}", 70, 11)
    status = mirror.status()["sources"][0]
    assert (status["groups"], status["lastError"]) == (2, "")
    assert 'millstream_mirror_groups{source="west"} 2' in mirror.get("/metrics")


def test_group_pattern_without_group_is_reported(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("unmatched"), unique("app")
    create(west, topic)
    commit(west, group, topic, 0)
    worker = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group, f"{group}-late"]},
    )

    def unmatched() -> list[str] | None:
        found: list[str] | None = worker.status()["sources"][0]["unmatchedGroups"]
        return found

    eventually(unmatched, lambda found: found == [f"{group}-late"], "the pattern without a group")
    commit(west, f"{group}-late", topic, 0)
    eventually(unmatched, lambda found: found == [], "no pattern, as the group exists")


def test_group_ahead_of_mirror_stays_at_its_end(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Records that are still missing follow its position, so it reads them again and misses none."""
    topic, group = unique("behind"), unique("app")
    create(west, topic)
    produce(west, topic, range(100))
    mirror = start_following(start_mirror, west, east, topic, group)
    arrived(east, topic, [100])
    commit(west, group, topic, 100)
    follows(east, group, topic, 100)
    mirror.pause()
    produce(west, topic, range(100, 200))
    commit(west, group, topic, 200)
    mirror.resume()
    follows(east, group, topic, 200)


def is_reachable(mirror: MirrorProcess, side: str) -> bool:
    status = mirror.status()
    found: bool = (status["sources"][0] if side == "west" else status["target"])["reachable"]
    return found


@pytest.mark.parametrize("side", ["west", "east"])
def test_group_continues_after_cluster_outage(
    west: InProcessBroker,
    east: InProcessBroker,
    start_mirror: StartMirror,
    start_broker_process: Callable[..., BrokerProcess],
    side: str,
) -> None:
    topic, group = unique("away"), unique("app")
    broker = start_broker_process(OF_MIRRORS)
    west, east = (broker, east) if side == "west" else (west, broker)
    create(west, topic)
    produce(west, topic, range(10))
    mirror = start_following(start_mirror, west, east, topic, group)
    arrived(east, topic, [10])
    commit(west, group, topic, 4)
    follows(east, group, topic, 4)
    broker.pause()
    try:
        eventually(lambda: is_reachable(mirror, side), lambda found: not found, "the mirror notices it")
    finally:
        broker.resume()
    commit(west, group, topic, 9)
    follows(east, group, topic, 9)


def test_positions_follow_source_backwards(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Also if the group is made anew: otherwise it would skip records in the target."""
    topic, group = unique("back"), unique("app")
    create(west, topic)
    produce(west, topic, range(1000))
    mirror = start_following(start_mirror, west, east, topic, group)
    arrived(east, topic, [1000])
    commit(west, group, topic, 900)
    follows(east, group, topic, 900)
    admin(west).delete_consumer_groups([group])[group].result(20)
    eventually(lambda: mirror.status()["sources"][0]["groups"], lambda now: now == 0, "the group is gone")
    commit(west, group, topic, 10)
    follows(east, group, topic, 10)
    commit(west, group, topic, 800)
    follows(east, group, topic, 800)
    commit(west, group, topic, 300)
    follows(east, group, topic, 300)


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_restarted_worker_knows_its_positions(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    """Two groups are reset backwards while no worker runs; somebody else has set the position of one in the target."""
    topic, group, other = unique("reset"), unique("app"), unique("app")
    create(west, topic)
    produce(west, topic, range(1000))
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        name=topic,
        mode=mode,
        topics={"include": [topic]},
        groups={"include": [group, other]},
    )
    arrived(east, topic, [1000])
    for one in (group, other):
        commit(west, one, topic, 900)
        follows(east, one, topic, 900)
    stored = f"millstream-mirror.{topic}.west"
    eventually(
        lambda: asyncio.run(progress_in(east, stored))[topic, 0],
        lambda now: (now.committed_for(group), now.committed_for(other)) == (900, 900),
        "progress with both",
    )
    mirror.kill()
    commit(east, other, topic, 901)
    for one in (group, other):
        commit(west, one, topic, 10)
    mirror.start()
    follows(east, group, topic, 10)
    assert committed(east, other, topic) == [901]


async def progress_in(broker: Peer, group: str) -> dict[tuple[str, int], Progress]:
    async with ClusterClient(broker.bootstrap) as cluster:
        await cluster.metadata([])
        return await progress_of(cluster, group)


def test_administrators_position_stays_until_group_moves(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group, other = unique("set"), unique("app"), unique("app")
    create(west, topic)
    produce(west, topic, range(1000))
    start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [group, other]},
    )
    arrived(east, topic, [1000])
    for one in (group, other):
        commit(west, one, topic, 500)
        follows(east, one, topic, 500)
    commit(east, group, topic, 100)
    commit(west, other, topic, 600)
    follows(east, other, topic, 600)  # so a round has passed
    assert committed(east, group, topic) == [100]
    commit(west, group, topic, 501)
    follows(east, group, topic, 501)


def test_group_at_end_of_compacted_topic_stays_after_restart(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("compacted"), unique("app")
    create(west, topic, cleanup_policy="compact")
    produce(west, topic, range(1000))
    mirror = start_following(start_mirror, west, east, topic, group)
    arrived(east, topic, [1000])
    mirror.stop()
    mirror.start()
    commit(west, group, topic, 1000)
    eventually(lambda: committed(east, group, topic), bool, "a position")
    follows(east, group, topic, 1000)
    assert mirror.status()["sources"][0]["lastError"] == ""
