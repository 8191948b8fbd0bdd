"""Tasks that have nothing to send: which of them the target has lost records of."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from millstream_harness.broker import BrokerProcess
from millstream_harness.mirror import admin, create, produce
from millstream_harness.scenario import unique
from millstream_kafka.client import ClusterClient
from millstream_mirror.aggregate.target_losses import TargetLosses
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.partitions.partition_task import PartitionTask
from millstream_mirror.partitions.task_state import Skip

pytestmark = pytest.mark.process


def task(topic: str, target_offset: int, partition: int = 0) -> PartitionTask:
    progress = Progress(0, 1, 0, 0, target_offset, "", "", 0)
    one = PartitionTask(topic, partition, topic, progress)
    one.end_recovery()
    return one


async def found(client: ClusterClient, *tasks: PartitionTask) -> dict[PartitionTask, int]:
    """The tasks that have lost records, and where their logs end."""
    lost: dict[PartitionTask, int] = {}
    await TargetLosses(client, client, lost.update).check(tasks)
    return lost


async def test_shorter_log_has_lost_records(east: BrokerProcess) -> None:
    topic = unique("ends")
    create(east, topic, 4)
    produce(east, topic, range(80), 4)
    deleted = TopicPartition(topic, 3, 20)
    admin(east).delete_records([deleted])[deleted].result(20)
    at_end, before, beyond = task(topic, 20), task(topic, 7, 1), task(topic, 21, 2)
    deleted_since, absent = task(topic, 7, 3), task(unique("absent"), 5)
    async with ClusterClient(east.bootstrap) as client:
        assert await found(client, at_end, before, beyond, deleted_since, absent) == {beyond: 20}


async def test_busy_task_is_not_checked_for_losses(east: BrokerProcess) -> None:
    topic = unique("busy")
    create(east, topic, 4)
    unopened, failed, skips, idle = (task(topic, 21, number) for number in range(4))
    unopened.start_recovery()
    failed.fail("refused")
    skips.skip = Skip(5)
    idle.observe_end(0)
    async with ClusterClient(east.bootstrap) as client:
        assert await found(client, unopened, failed, skips, idle) == {idle: 0}
        idle.lost(0)
        assert await found(client, idle) == {}
    assert idle.error == f"{topic}-3: the target has lost records: its log ends at offset 0, and ended at 21"
    assert idle.findings.target_missing
    idle.observe_end(0)
    assert idle.is_lag_unknown(1), "nobody knows yet how many records are missing"


async def test_former_leader_is_queried_once(east: BrokerProcess) -> None:
    topic = unique("moved")
    create(east, topic)
    one = task(topic, 21)
    async with ClusterClient(east.bootstrap) as client:
        assert await found(client, one) == {one: 0}
        admin(east).delete_topics([topic])[topic].result(20)
        one.acknowledged = replace(one.acknowledged, target_offset=22)
        assert await found(client, one) == {}
        assert client.known_leaders({one.target}) == {}


class Stale(ClusterClient):
    """Takes a broker that is gone for the leader of every partition that it has heard of."""

    def known_leaders(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {where: 77 for where in partitions if where[0].startswith("away")}


async def test_missing_broker_delays_no_other_check(east: BrokerProcess) -> None:
    topic, away = unique("led"), unique("away")
    create(east, topic)
    one, other = task(topic, 21), task(away, 21)
    told: asyncio.Queue[dict[PartitionTask, int]] = asyncio.Queue()
    async with ClusterClient(east.bootstrap, timeout=3600.0) as client, Stale(east.bootstrap) as stale:
        look = asyncio.create_task(TargetLosses(client, stale, told.put_nowait).check([one, other]))
        assert await told.get() == {one: 0}
        look.cancel()  # it would look for the other broker for an hour
