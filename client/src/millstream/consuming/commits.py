"""The commits of a stream: what is committed in its partitions, by whom, and what a commit would add.

``processed`` commits come again with the next one, so their problems are logged; a commit by the caller raises them. A
producer commits a stream's positions with its transaction, and one that is aborted returns to the last of these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from millstream.consuming.message import Partition, Position
from millstream.errors import MillstreamError

log = logging.getLogger("millstream.streams")


class Commits:
    """All calls are made with the stream's lock held."""

    def __init__(self, topic: str, send: Callable[[dict[Partition, int], bool], None]) -> None:
        """``send`` commits positions, and waits for it if the second argument is True; it raises MillstreamError."""
        self._topic = topic
        self._send = send
        self._began: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._by_caller: dict[Partition, int] = {}
        self.safe: dict[Partition, int] = {}
        """Where a transaction that is aborted returns to."""

    def begin(self, partitions: Mapping[Partition, int]) -> None:
        """The stream has taken these partitions, at these offsets; what is committed there is not known."""
        self._began.update(partitions)
        self.safe.update(partitions)
        for at in partitions:
            self._committed.pop(at, None)

    def forget(self, at: Partition) -> None:
        """The stream has left its position in the partition."""
        self._committed.pop(at, None)
        self._by_caller.pop(at, None)

    def standing(self, at: Partition) -> Position:
        """The committed or first position: committing it skips nothing."""
        return Position(*at, self._committed.get(at, self._began[at]))

    def processed(self, positions: Mapping[Partition, int], *, wait: bool) -> None:
        """Commit processed messages; problems are logged, because the next commit covers this one."""
        # The caller may have committed more.
        new = self._new({at: max(offset, self._by_caller.get(at, 0)) for at, offset in positions.items()})
        if not new:
            return
        try:
            self._send(new, wait)
        except MillstreamError as error:
            log.warning("%s: commit failed, retrying with the next one: %s", self._topic, error)
        else:
            self._committed.update(new)

    def by_caller(self, positions: Mapping[Partition, int]) -> None:
        """Commit what the caller says, and wait for it. MillstreamError."""
        if new := self._new(positions):
            self._send(new, True)
            self.by_producer(new)

    def by_producer(self, positions: Mapping[Partition, int]) -> None:
        """A transaction has committed these, for the caller."""
        for known in (self._committed, self._by_caller, self.safe):
            known.update(positions)

    def reported(self, error: KafkaError | None, partitions: Iterable[Any]) -> None:
        """Handle librdkafka's report of a commit: failed ones are repeated when the next one is due."""
        for at in partitions:
            if error is not None or at.error is not None:
                self._committed.pop((at.topic, at.partition), None)

    def unsafe(self, positions: Mapping[Partition, int]) -> Collection[Partition]:
        """Those of these positions that a transaction would add."""
        return [at for at, offset in positions.items() if self.safe[at] != offset]

    def _new(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        return {at: offset for at, offset in positions.items() if self._committed.get(at) != offset}
