"""A task whose partition has no leader in the target waits for the election alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millstream_harness.scenario import BASE_TIMESTAMP_MS
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream_kafka.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream_mirror.aggregate.flow import NumberingFlow
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.membership.member import TaskName
from millstream_mirror.partitions.assignment import TaskRecovery
from millstream_mirror.partitions.partition_task import PartitionTask
from millstream_mirror.partitions.pipeline import Part
from millstream_mirror.partitions.stats import Counters, Reachability
from millstream_mirror.partitions.waiting import Cause

pytestmark = pytest.mark.process

TOPIC, LED, LEADERLESS, ABSENT = "orders", 0, 1, 2


class Electing(ClusterClient):
    """One partition has no leader until it is ``elected``; there is no broker."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", timeout=1.0, retry_backoff=0.01)
        self.requested, self.elected, self.is_deleted = 0, False, False
        self.is_asked = asyncio.Event()

    async def _any_connection(self) -> Any:
        return None

    async def _call(self, *_: Any) -> Any:
        self.requested += 1
        self.is_asked.set()
        leaders = {LED: 1, LEADERLESS: 1 if self.elected else -1}
        partitions = [MetadataResponsePartition(0, number, leader) for number, leader in leaders.items()]
        topic = MetadataResponseTopic(ErrorCode.NONE, TOPIC, partitions=partitions)
        if self.is_deleted:
            topic = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOPIC)
        return MetadataResponse(brokers=[MetadataResponseBroker(1, "127.0.0.1", 1)], topics=[topic])


class Ready(TaskRecovery):
    async def _open(self, names: Sequence[TaskName]) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        return [], {}

    async def recover(self, task: PartitionTask) -> None:
        task.rewind(task.acknowledged)


class Sends(NumberingFlow):
    """Notes what is sent, and how often the target has looked up leaders before."""

    def __init__(self, target: Electing) -> None:
        self.target = target
        self.sent: list[tuple[int, int]] = []
        super().__init__("west", target, target, Ready(target, target), Reachability("west", ""), Counters())

    def opened(self, partition: int) -> PartitionTask:
        task = a_task(partition)
        task.end_recovery()
        self.tasks[task.source] = task
        return task

    async def _produce(self, node: int, parts: list[Part]) -> None:
        self.sent += [(task.partition, self.target.requested) for task, _, _ in parts]


def a_task(partition: int) -> PartitionTask:
    return PartitionTask(TOPIC, partition, TOPIC, Progress(0, 7, 0, 0, 0, "topic", "cluster", 0))


def fetched(*partitions: int) -> FetchResponse:
    """A record for each."""
    batch = build_batch([Record(b"key", b"value", BASE_TIMESTAMP_MS)], base_offset=0)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                TOPIC,
                partitions=[
                    PartitionData(one, 0, 1, records=memoryview(bytearray(batch))) for one in partitions
                ],
            )
        ]
    )


async def test_election_in_target_delays_no_other_task() -> None:
    flow = Sends(target := Electing())
    leaderless, led = flow.opened(LEADERLESS), flow.opened(LED)
    requested = {one.source: (0, -1) for one in (leaderless, led)}
    await flow._forward(fetched(LEADERLESS, LED), requested)
    assert flow.sent == [(LED, 1)], "sent after one look at the leaders"
    assert led.in_flight
    assert not led.has_failed
    assert leaderless.has_failed, "its recovery waits for the leader"
    assert leaderless.error == f"{TOPIC}-{LEADERLESS}: no leader in the target"
    target.elected = True
    await flow._recover(leaderless)
    await flow._forward(fetched(LEADERLESS), requested)
    assert [partition for partition, _ in flow.sent] == [LED, LEADERLESS]
    await target.close()


async def test_known_leaders_stay_in_use_without_response() -> None:
    flow = Sends(target := Electing())
    await target.metadata([TOPIC])
    led, other = flow.opened(LED), flow.opened(LEADERLESS)
    target._any_connection = ClusterClient("127.0.0.1:1", connect_timeout=1.0)._any_connection  # type: ignore[method-assign]
    await flow._forward(fetched(LEADERLESS, LED), {one.source: (0, -1) for one in (led, other)})
    assert flow.sent == [(LED, 1)]
    assert "127.0.0.1:1" in other.error
    assert not other.findings.target_missing
    await target.close()


async def test_task_of_deleted_target_partition_restarts() -> None:
    """Its recovery finds out whether the progress is deleted, too."""
    flow = Sends(target := Electing())
    leaderless, absent = flow.opened(LEADERLESS), flow.opened(ABSENT)
    await flow._forward(fetched(LEADERLESS, ABSENT), {one.source: (0, -1) for one in (leaderless, absent)})
    assert [(one.has_failed, one.findings.target_missing) for one in (leaderless, absent)] == [
        (True, False),
        (True, True),
    ]
    leaderless.rewind(leaderless.acknowledged)
    target.is_deleted = True
    await flow._forward(fetched(LEADERLESS), {leaderless.source: (0, -1)})
    assert leaderless.findings.target_missing
    await target.close()


async def test_task_without_target_leader_is_not_fetched() -> None:
    """A fetch is for many tasks: it must not wait for the leader of one."""
    flow = Sends(target := Electing())
    task = a_task(LEADERLESS)
    task.fail("no leader")
    task.start_recovery()
    recovery, requested = (
        asyncio.create_task(flow._recover(task)),
        asyncio.create_task(target.is_asked.wait()),
    )
    await asyncio.wait([recovery, requested], return_when=asyncio.FIRST_COMPLETED)
    assert task.is_recovering
    assert not task.may_fetch(1 << 20)
    target.elected = True
    await asyncio.gather(recovery, requested)
    assert task.may_fetch(1 << 20)
    await target.close()
