"""ISR writes while coordination is away: tried again at a pace, told once, and made when it is back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_broker.coordination import CoordinationError, PartitionRecord
from millstream_broker.partition import now_ms
from millstream_broker.replication import membership
from millstream_broker.replication.isr import Isr


@dataclass
class Away:
    """Coordination that cannot be reached until it is told to be back."""

    asked: int = 0
    is_back: bool = False

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        self.asked += 1
        if not self.is_back:
            raise CoordinationError("ZooKeeper cannot be reached")
        return replace(record, version=record.version + 1)


@dataclass
class Led:
    """As much of a partition as the ISR's writer knows."""

    isr: Isr
    index: int
    topic: str = "t"
    changes: list[tuple[int, ...]] = field(default_factory=list)

    def fetched(self, replica: int, offset: int, log_start: int) -> None:
        self.isr.fetched(replica, offset, 0, now_ms(), log_start)

    def isr_changed(self) -> None:
        self.changes.append(self.isr.record.isr)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


async def test_coordination_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "RETRY_S", 0.1)
    partitions: dict[tuple[str, int], Any] = {}
    for index in range(5):
        isr = Isr(
            1,
            PartitionRecord((1, 2), 1, 0, (1,)),
            log_end=0,
            high_watermark=0,
            min_isr=1,
            max_lag_ms=10_000,
            alive=(1, 2),
            now_ms=now_ms(),
        )
        partitions["t", index] = Led(isr, index)
    away = Away()
    broker: Any = SimpleNamespace(
        partitions=partitions, coordination=away, stats=SimpleNamespace(isr_expands=0, isr_shrinks=0)
    )
    writer = membership.Membership(broker)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while away.asked < 3 * len(partitions):
        for partition in partitions.values():
            writer.fetched(partition, 2, 0, 0)
        await asyncio.sleep(0.001)
    assert loop.time() - begun >= 0.2, (
        "a follower that fetches all the time does not have it written all the time"
    )
    said = [record.getMessage() for record in caplog.records]
    assert said == ["t-0: the ISR cannot be written, trying on: ZooKeeper cannot be reached"]
    away.is_back = True
    deadline = loop.time() + 10
    while any(set(one.isr.record.isr) != {1, 2} for one in partitions.values()):
        assert loop.time() < deadline
        await asyncio.sleep(0.01)
    assert broker.stats.isr_expands == len(partitions)
    await writer.close()
