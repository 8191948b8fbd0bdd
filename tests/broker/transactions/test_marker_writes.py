"""A slow partition delays no other partition's marker, and gets one marker however often it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker import api
from millstream_broker.api.marker_writes import ANSWER_S, KEPT_S, MarkerWrites, Wanted
from millstream_broker.cluster.own_connection import OwnConnection
from millstream_broker.controller.reach import Caller
from millstream_broker.coordination import BrokerRecord, ClusterState
from millstream_broker.coordinator.effects import TransactionMarker
from millstream_broker.groups.driver import GroupDriver
from millstream_broker.network.handlers import REGISTERED
from millstream_broker.security.acl.authorizer import Authorizer
from millstream_broker.transactions.markers import RETRY_S, TransactionMarkerSender
from millstream_broker.transactions.messages import Markers
from millstream_broker.transactions.peers import Peers
from millstream_harness.group_drivers import SharedTopic, drivers
from millstream_harness.replica import THEM, US, Clock, Replicating, led_by, replicating, state, topic
from millstream_harness.transactions import write
from millstream_harness.virtual_time import turns
from millstream_kafka.batch import read_header
from millstream_kafka.protocol import write_txn_markers
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

FAST, SLOW, OFFSETS = ("fast", 0), ("slow", 0), ("__consumer_offsets", 0)
PRODUCER = 5
NONE, LATE = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT


class Leading:
    """Broker 1 leads what broker 2 follows; a coordinator of transactions in broker 1 sends the markers."""

    def __init__(self, broker: Replicating, groups: GroupDriver, stored: SharedTopic, clock: Clock) -> None:
        self.broker, self.stored, self.clock = broker, stored, clock
        self.topics = [topic(name, led_by(US)) for name in ("fast", "slow")]
        self.writes = MarkerWrites(groups, broker.replicas)
        api.load()
        parts = {Authorizer: Authorizer(), MarkerWrites: self.writes}
        self.handlers = {write_txn_markers.API.key: REGISTERED[write_txn_markers.API.key].bound(parts)}
        self.done: list[TopicPartition] = []
        self.sender = TransactionMarkerSender(broker.replicas, Peers(self.reach, "test"))
        self.sender.report_to(lambda markers, partitions: self.done.extend(sorted(partitions)))

    async def reach(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        return OwnConnection(self.handlers, "PLAINTEXT", broker.broker_id, broker.epoch)

    async def told(self, image: ClusterState) -> None:
        await self.broker.told(image)

    def send(self, *partitions: TopicPartition, producer: int = PRODUCER) -> None:
        self.sender.send(Markers(f"id-{producer}", 0, producer, 1, 3, True, 2, frozenset(partitions)))

    def begin(self, *partitions: TopicPartition, producer: int = PRODUCER) -> None:
        """Records of an open transaction."""
        for where in partitions:
            write(self.broker.replicas.partition(*where), producer)

    def replicate(self, *partitions: TopicPartition) -> None:
        """The follower gets all there is."""
        for where in partitions:
            partition = self.broker.replicas.partition(*where)
            partition.fetched(THEM, partition.log.log_end_offset, 0)

    def markers(self, where: TopicPartition) -> int:
        batches = self.broker.replicas.partition(*where).log.batches_from(0)
        return sum(read_header(batch).is_control for batch in batches)


@pytest.fixture
async def leading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leading]:
    stored = SharedTopic()
    async with drivers(stored, 1) as (groups,), replicating(tmp_path) as broker:
        found = Leading(broker, groups, stored, Clock(monkeypatch))
        await broker.told(state(*found.topics, topic("__consumer_offsets", led_by(US))))
        yield found
        await found.sender.close()
        await found.writes.close()


async def test_a_slow_partition_delays_no_other_marker(leading: Leading) -> None:
    """Neither of its own transaction, nor of those that come later."""
    leading.begin(FAST, SLOW)
    leading.send(FAST, SLOW)
    await turns()
    leading.replicate(FAST)
    await leading.clock.advance(ANSWER_S)
    assert leading.done == [FAST]
    await leading.clock.advance(RETRY_S)  # the coordinator asks again
    leading.begin(FAST, producer=6)
    leading.send(FAST, producer=6)
    await turns()
    leading.replicate(FAST)
    await turns()
    assert leading.done == [FAST, FAST]
    leading.replicate(SLOW)
    await leading.clock.advance(RETRY_S)
    assert leading.done == [FAST, FAST, SLOW]
    assert (leading.markers(FAST), leading.markers(SLOW)) == (2, 1)


async def test_a_slow_group_coordinator_delays_no_other_marker(leading: Leading) -> None:
    leading.stored.writable.clear()
    leading.begin(FAST)
    leading.send(FAST, OFFSETS)
    await turns()
    leading.replicate(FAST)
    await leading.clock.advance(ANSWER_S)
    assert leading.done == [FAST]
    leading.stored.writable.set()
    await leading.clock.advance(RETRY_S)
    assert leading.done == [FAST, OFFSETS]
    assert sum(read_header(batch).is_control for batch in leading.stored.batches) == 1


def wanted(epoch: int = 1, coordinator_epoch: int = 3) -> Wanted:
    return Wanted(*SLOW, TransactionMarker(PRODUCER, epoch, coordinator_epoch, True, 2))


async def attempted(leading: Leading, *markers: Wanted) -> list[ErrorCode]:
    """The answer, which comes within ANSWER_S."""
    answer = asyncio.create_task(leading.writes.attempted(markers))
    await leading.clock.advance(ANSWER_S)
    assert answer.done()
    return answer.result()


async def at_once(leading: Leading, *markers: Wanted) -> list[ErrorCode]:
    """The answer, which comes without a wait."""
    answer = asyncio.create_task(leading.writes.attempted(markers))
    await turns()
    assert answer.done()
    return answer.result()


async def test_a_write_that_is_still_under_way_is_written_again_later(leading: Leading) -> None:
    """Whatever became of the first, a transaction never waits for it alone."""
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    await leading.clock.advance(KEPT_S - 0.01)
    assert await at_once(leading, wanted()) == [LATE]
    assert leading.markers(SLOW) == 1
    await leading.clock.advance(0.01)
    assert await attempted(leading, wanted()) == [LATE]
    assert leading.markers(SLOW) == 2
    leading.replicate(SLOW)
    await turns()
    assert await at_once(leading, wanted()) == [NONE]


async def test_an_outcome_is_told_once(leading: Leading) -> None:
    """An equal marker that comes after it is one of another transaction of an old client."""
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    leading.replicate(SLOW)
    await turns()
    assert await at_once(leading, wanted()) == [NONE]
    assert await attempted(leading, wanted()) == [LATE]
    assert leading.markers(SLOW) == 2


async def test_an_outcome_is_not_that_of_the_next_transaction(leading: Leading) -> None:
    """The coordinator had its answer from a request beside it, or from a leader in between."""
    partition = leading.broker.replicas.partition(*SLOW)
    marker = Wanted(*SLOW, TransactionMarker(PRODUCER, 1, 3, True, 1))  # of a client that keeps its epoch
    write(partition, PRODUCER, epoch=1)
    assert await attempted(leading, marker) == [LATE]
    leading.replicate(SLOW)
    await turns()
    write(partition, PRODUCER, 1, epoch=1)
    assert await attempted(leading, marker) == [LATE]
    assert leading.markers(SLOW) == 2
    leading.replicate(SLOW)
    await turns()
    assert await at_once(leading, marker) == [NONE]
    assert not partition.log.producers.transactions.open


@pytest.mark.parametrize(
    "other", [wanted(epoch=2), wanted(coordinator_epoch=4)], ids=["other-epoch", "other-coordinator"]
)
async def test_a_write_counts_for_its_own_marker_alone(leading: Leading, other: Wanted) -> None:
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    assert await attempted(leading, other) == [LATE]
    assert leading.markers(SLOW) == 2


async def test_a_topic_that_was_created_again_gets_its_own_marker(leading: Leading) -> None:
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    fast, _ = leading.topics
    await leading.told(state(fast))
    await leading.told(state(fast, topic("slow", led_by(US))))
    assert await attempted(leading, wanted()) == [LATE]
    assert leading.markers(SLOW) == 1


async def test_a_deposed_leader_says_so(leading: Leading) -> None:
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    fast, slow = leading.topics
    await leading.told(state(fast, replace(slow, partitions=(led_by(THEM, epoch=1),))))
    await leading.clock.advance(KEPT_S)
    assert await at_once(leading, wanted()) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_an_administrator_waits_for_all_replicas(leading: Leading) -> None:
    leading.begin(SLOW)
    answer = asyncio.create_task(leading.writes.completed([wanted()]))
    await leading.clock.advance(60)
    assert not answer.done()
    leading.replicate(SLOW)
    await turns()
    assert answer.result() == [NONE]


async def test_the_end_of_the_broker_ends_its_writes(leading: Leading) -> None:
    leading.begin(SLOW)
    assert await attempted(leading, wanted()) == [LATE]
    await leading.writes.close()
    assert not leading.writes._running
