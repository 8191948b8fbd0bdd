"""Leader epochs where clients see them: in batches, in OffsetForLeaderEpoch, and in positions of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewTopic

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, Peer, admin, arrived, produce, read_batches
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import read_header
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import offset_for_leader_epoch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream_mirror.kafka.group_offsets import Position, commit, positions_of

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]


def epochs_of(broker: Peer, topic: str) -> list[int]:
    """Of each batch."""
    batches = asyncio.run(read_batches(broker.bootstrap, topic, 0))
    return [read_header(batch).partition_leader_epoch for batch in batches]


def end_of(broker: Peer, topic: str, epoch: int) -> tuple[int, int]:
    """As a consumer asks that validates its position."""

    async def ask() -> tuple[int, int]:
        async with ClusterClient(broker.bootstrap) as cluster:
            requested = OffsetForLeaderTopic(topic, [OffsetForLeaderPartition(0, -1, epoch)])
            request = OffsetForLeaderEpochRequest(topics=[requested])
            response = await cluster.call_leader(topic, 0, offset_for_leader_epoch.API, request)
            answer = response.topics[0].partitions[0]
            assert not answer.error_code
            return answer.leader_epoch, answer.end_offset

    return asyncio.run(ask())


def position_in(broker: Peer, group: str, topic: str) -> Position | None:
    async def ask() -> Position | None:
        async with ClusterClient(broker.bootstrap) as cluster:
            await cluster.metadata([])
            try:
                return (await positions_of(cluster, group)).get((topic, 0))
            except ApiError:  # the coordinator moves
                return None

    return asyncio.run(ask())


def commit_in(broker: Peer, group: str, topic: str, position: Position) -> None:
    """Commit, even while the group's coordinator moves: a broker that came back leads partitions again."""

    async def ask() -> ErrorCode:
        async with ClusterClient(broker.bootstrap) as cluster:
            await cluster.metadata([])
            return (await commit(cluster, group, {(topic, 0): position}))[topic, 0]

    moves = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    answer = eventually(lambda: asyncio.run(ask()), lambda code: code not in moves, "the coordinator")
    assert answer is ErrorCode.NONE


def several_epochs(source: InProcessCluster, topic: str) -> None:
    """Each time that a leader ends, another one begins an epoch."""
    admin(source).create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    for number in range(3):
        source.await_in_sync(topic)
        produce(source, topic, range(number * 20, number * 20 + 20), batch_num_messages=5)
        victim = source.leader(topic)
        victim.kill()
        eventually(
            lambda: source.leader(topic), lambda now, before=victim: now is not before, "another leader"
        )
        victim.start()
    source.await_in_sync(topic)
    produce(source, topic, range(60, 80), batch_num_messages=5)


def test_replica_has_epochs_of_source(
    cluster: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group, ahead = unique("epochs"), unique("app"), unique("ahead")
    several_epochs(cluster, topic)
    there = epochs_of(cluster, topic)
    assert len({*there}) >= 3, "the source had several leaders"
    mirror = start_mirror(
        {"west": cluster.bootstrap},
        east.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
        groups={"include": [group, ahead]},
    )
    arrived(east, topic, [80])
    assert epochs_of(east, topic) == there
    for epoch in range(there[-1] + 1):
        assert end_of(east, topic, epoch) == end_of(cluster, topic, epoch)
    for offset, epoch in ((30, there[0]), (50, there[-1] - 1), (50, there[-1]), (80, there[-1])):
        wanted = Position(offset, f"checkpoint of {offset}", epoch)
        commit_in(cluster, group, topic, wanted)
        eventually(
            lambda: position_in(east, group, topic), lambda now, to=wanted: now == to, "the position", 30
        )
    mirror.pause()
    produce(cluster, topic, range(80, 100), batch_num_messages=5)
    commit_in(cluster, ahead, topic, Position(100, "ahead", there[-1]))
    mirror.resume()
    eventually(
        lambda: position_in(east, ahead, topic),
        lambda now: now == Position(100, "ahead", there[-1]),
        "the position when the record is there",
    )


def test_aggregate_topic_has_its_own_epochs(
    cluster: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("own-epochs"), unique("app")
    several_epochs(cluster, topic)
    start_mirror(
        {"west": cluster.bootstrap},
        east.bootstrap,
        name=topic,
        topics={"include": [topic]},
        groups={"include": [group]},
    )
    arrived(east, topic, [80])
    commit_in(cluster, group, topic, Position(50, "checkpoint", epochs_of(cluster, topic)[-1]))
    eventually(
        lambda: position_in(east, group, topic),
        lambda now: now == Position(50, "checkpoint", -1),
        "the position without an epoch",
    )
