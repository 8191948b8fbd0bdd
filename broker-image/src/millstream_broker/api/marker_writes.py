"""Markers that this broker writes as the leader of their partitions, and in __consumer_offsets as group coordinator.

A transaction coordinator gets its answer ANSWER_S after a request, with REQUEST_TIMED_OUT for partitions whose replicas
have no marker yet, and asks for these again. So a slow partition delays no marker of another. When it asks again, the
write that is under way counts, and the answer comes at once. After KEPT_S the marker is written once more, which
changes nothing: the first write may have been lost with a change of leaders. A write that is done does not count if the
producer has begun another transaction: an old client's next one ends with an equal marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from millstream_kafka.protocol.errors import COORDINATOR_ERRORS, ApiError, ErrorCode
from millstream_process import supervision

from ..coordinator.effects import TransactionMarker
from ..groups.driver import GroupDriver
from ..replication.markers import append_marker
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively
from ..topic_rules.internal_topics import OFFSETS_TOPIC

ANSWER_S = 0.1
KEPT_S = 5.0


class Wanted(NamedTuple):
    """A marker for a partition."""

    topic: str
    partition: int
    marker: TransactionMarker


Write = asyncio.Task[ErrorCode]


class MarkerWrites:
    """All calls are made on the loop."""

    def __init__(self, groups: GroupDriver, replicas: Replicas) -> None:
        self._groups = groups
        self._replicas = replicas
        self._late: dict[tuple[UUID, Wanted], Write] = {}
        """Writes that were not done when their request was answered, for KEPT_S."""
        self._running: set[Write] = set()

    async def completed(self, wanted: Iterable[Wanted]) -> list[ErrorCode]:
        """Write these markers; returns their errors, in order, once all in-sync replicas have them."""
        return [await write for write in [self._begun(each) async for each in cooperatively(wanted)]]

    async def attempted(self, wanted: Iterable[Wanted]) -> list[ErrorCode]:
        """The same within ANSWER_S; REQUEST_TIMED_OUT for those that are still being written."""
        writes: list[tuple[tuple[UUID, Wanted], Write]] = []
        new: list[Write] = []
        async for each in cooperatively(wanted):
            key = self._replicas.topic_id(each.topic), each
            write = self._late.get(key)
            if write is not None and write.done() and self._is_open(each):
                self._forget(key, write)
                write = None
            if write is None:
                new.append(write := self._begun(each))
            writes.append((key, write))
        if new:
            await asyncio.wait(new, timeout=ANSWER_S)
        return [self._outcome(key, write) for key, write in writes]

    def _outcome(self, key: tuple[UUID, Wanted], write: Write) -> ErrorCode:
        if write.done():
            self._forget(key, write)
            return write.result()
        if key not in self._late:
            self._late[key] = write
            asyncio.get_running_loop().call_later(KEPT_S, self._forget, key, write)
        return ErrorCode.REQUEST_TIMED_OUT

    def _is_open(self, wanted: Wanted) -> bool:
        """Whether the partition has an open transaction that this marker ends."""
        try:
            log = self._replicas.partition(wanted.topic, wanted.partition).log
        except ApiError:  # led elsewhere
            return False
        return log.producers.is_open(wanted.marker.producer_id, wanted.marker.producer_epoch)

    def _forget(self, key: tuple[UUID, Wanted], write: Write) -> None:
        if self._late.get(key) is write:
            del self._late[key]

    def _begun(self, wanted: Wanted) -> Write:
        """Appended at once, so that the markers of a request are committed together."""
        write = asyncio.create_task(self._write(*wanted), name=f"marker of {wanted.topic}-{wanted.partition}")
        self._running.add(write)
        write.add_done_callback(self._running.discard)
        return write

    async def _write(self, topic: str, index: int, marker: TransactionMarker) -> ErrorCode:
        try:
            if topic == OFFSETS_TOPIC:
                error = await self._groups.complete_transaction(index, marker)
                return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in COORDINATOR_ERRORS else error
            await append_marker(
                self._replicas.partition(topic, index),
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                committed=marker.committed,
                transaction_version=marker.transaction_version,
            )
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    async def close(self) -> None:
        """Nobody waits for the writes that are left."""
        await supervision.cancel(self._running)
