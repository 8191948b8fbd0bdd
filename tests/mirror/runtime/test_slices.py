"""A partition of thousands of small batches does not hold the worker's loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_harness.mirrored import Source
from millstream_kafka.protocol.fetch import PartitionData
from millstream_mirror.aggregate.flow import AT_MOST, NumberingFlow
from millstream_mirror.identity.flow import CopyFlow, ReplicaTask
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.partitions.partition_task import PartitionTask
from millstream_mirror.partitions.pipeline import Flow
from millstream_mirror.partitions.stats import Counters
from millstream_mirror.runtime.slices import AT_ONCE

BATCHES = 3000
MODES: list[tuple[type[Flow], type[PartitionTask]]] = [
    (NumberingFlow, PartitionTask),
    (CopyFlow, ReplicaTask),
]


def task_of(kind: type[PartitionTask]) -> PartitionTask:
    task = kind("t", 0, "t", Progress(0, 7, 0, 0, 0, str(uuid.uuid4()), "c", 0))
    task.end_recovery()
    task.probing = False
    return task


async def numbered(
    flow: type[Flow], task: PartitionTask, each_turn: Callable[[int], None]
) -> tuple[Any, int]:
    """The parts of many batches, and how often others had a turn meanwhile."""
    source = Source()
    records = memoryview(bytearray(b"".join(source.add(1) for _ in range(BATCHES))))
    data = PartitionData(0, 0, high_watermark=BATCHES, log_start_offset=0, records=records)
    working = SimpleNamespace(_counters=Counters(), _wake=asyncio.Event())
    numbering = asyncio.create_task(flow._number(working, task, data))  # type: ignore[arg-type]
    turns = 0
    while not numbering.done():
        each_turn(turns)
        turns += 1
        await asyncio.sleep(0)
    return numbering.result(), turns


@pytest.mark.parametrize(("flow", "kind"), MODES)
async def test_numbering_yields_to_other_tasks(flow: type[Flow], kind: type[PartitionTask]) -> None:
    parts, turns = await numbered(flow, task_of(kind), lambda _: None)
    assert turns > BATCHES // AT_ONCE
    assert [batch.next_offset for batches, _ in parts for batch in batches] == list(range(1, BATCHES + 1))
    if flow is NumberingFlow:
        assert [len(batches) for batches, _ in parts] == [AT_MOST, AT_MOST, BATCHES - 2 * AT_MOST]
        assert sum(len(data) for _, data in parts) == sum(
            len(one.data) for batches, _ in parts for one in batches
        )


@pytest.mark.parametrize(("flow", "kind"), MODES)
@pytest.mark.parametrize("change", ["fails", "is rewound"])
async def test_task_changed_during_numbering_sends_nothing(
    flow: type[Flow], kind: type[PartitionTask], change: str
) -> None:
    task = task_of(kind)

    def each_turn(turn: int) -> None:
        if turn != 3:
            return
        if change == "fails":
            task.fail("an election")
        else:
            task.rewind(Progress(5, 7, 1, 0, 5, task.acknowledged.topic_id, "c", 0))
            task.probing = False

    assert (await numbered(flow, task, each_turn))[0] == []
    assert not task.in_flight
