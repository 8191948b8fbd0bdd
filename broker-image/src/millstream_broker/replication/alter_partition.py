"""Writes the ISRs of the partitions that this broker leads, and higher leader epochs if it needs them.

`replication.isr` decides what to write and what a result means; this module has the clock, coordination, and the loop
that notices silent followers. Each partition has at most one write in flight.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from millstream_process import supervision

from ..coordination import Conflict, CoordinationError, PartitionRecord
from ..runtime.stats import Stats
from .partition import Partition, now_ms
from .replicas import Replicas

RETRY_S = 0.5
"""Pause before repeating a write with an unknown outcome."""

log = logging.getLogger(__name__)


class Records(Protocol):
    """The store of partitions' records."""

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        """See `Coordination.write_partition`."""


class AlterPartitionManager:
    """All calls are made on the loop."""

    def __init__(
        self,
        replicas: Replicas,
        records: Records,
        stats: Stats,
        max_lag_s: float,
        seen: Callable[[Partition, PartitionRecord], None] = lambda partition, stored: None,
    ) -> None:
        """A follower that has not caught up for `max_lag_s` leaves the ISR. `seen` is called with each stored state."""
        self._seen = seen
        self._replicas = replicas
        self._records = records
        self._stats = stats
        self._max_lag_s = max_lag_s
        self._writes = supervision.Tasks()
        self._raising: set[tuple[uuid.UUID, int]] = set()
        """Partitions whose leader epoch is being raised."""
        self._is_failing = False  # logged once, for any number of partitions and any duration

    async def run(self) -> None:
        """Look for followers that lag, until it is cancelled."""
        while True:
            await asyncio.sleep(max(self._max_lag_s / 2, 0.01))
            for partition in list(self._replicas.partitions.values()):
                self.review(partition)

    async def close(self) -> None:
        await self._writes.cancel()

    def fetched(self, partition: Partition, replica: int, offset: int, log_start: int) -> None:
        """A follower has everything from `log_start` to `offset`."""
        partition.fetched(replica, offset, log_start)
        isr = partition.isr
        assert isr is not None
        if replica not in isr.record.isr or offset < isr.high_watermark:
            self.review(partition)

    def review(self, partition: Partition) -> None:
        """Write the ISR if it should change."""
        if partition.isr is None or (record := partition.isr.propose(now_ms())) is None:
            return
        self._writes.add(supervision.run("ISR writes", self._write(partition, record)))

    def raise_epoch(self, partition: Partition, above: int, epoch: int) -> None:
        """Take this leader epoch, unless the latest one is above `above` already. The leader and its ISR stay.

        The write replaces only the known record, so it fails if a controller elects another leader.
        """
        key = partition.topic_id, partition.index
        if key not in self._raising:
            self._raising.add(key)
            self._writes.add(supervision.run("leader epochs", self._raise(partition, above, epoch)))

    async def _raise(self, partition: Partition, above: int, epoch: int) -> None:
        try:
            record = self._replicas.known_record(partition)
            if record is None or record.leader != self._replicas.broker_id or record.leader_epoch > above:
                return
            raised = replace(record, leader_epoch=epoch)
            await self._records.write_partition(partition.topic, partition.index, raised)
            log.info("%s: the leader epoch rises from %d to %d", partition, record.leader_epoch, epoch)
        except Conflict:
            pass  # partitions that still need the epoch request it again
        except CoordinationError as error:
            log.warning("%s: leader epoch not written, retrying: %s", partition, error)
        finally:
            self._raising.discard((partition.topic_id, partition.index))

    async def _write(self, partition: Partition, record: PartitionRecord) -> None:
        isr = partition.isr
        assert isr is not None
        before, is_known = isr.record.isr, True
        try:
            stored = await self._records.write_partition(partition.topic, partition.index, record)
        except Conflict:
            known = self._replicas.known_record(partition)
            is_known = known is not None and isr.conflicted(known)
        except CoordinationError as error:
            if not self._is_failing:
                log.warning("%s: ISR write failed, retrying: %s", partition, error)
            self._is_failing, is_known = True, False
        except Exception as error:
            supervision.failed("ISR writes", error, f": {partition}, retrying")
            is_known = False
        else:
            self._is_failing = False
            self._seen(partition, stored)
            isr.written(stored)
            self._note(partition, before, stored.isr)
        if not is_known:
            await asyncio.sleep(RETRY_S)  # in flight until then, so that no fetch proposes it immediately
            if isr.pending is record:
                isr.unknown()
        if self._replicas.partitions.get((partition.topic, partition.index)) is partition:
            partition.isr_changed()
            self.review(partition)

    def _note(self, partition: Partition, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        left, joined = set(before) - set(after), set(after) - set(before)
        self._stats.isr_shrinks += len(left)
        self._stats.isr_expands += len(joined)
        if left or joined:  # otherwise only the elr changed
            log.info(
                "%s: the ISR changes from %s to %s",
                partition,
                ",".join(map(str, before)),
                ",".join(map(str, after)),
            )
