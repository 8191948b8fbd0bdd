"""Reads a partition of an internal topic, when this broker begins to lead it.

An incomplete load would serve wrong state, so a load is retried until it succeeds or is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Generic, Protocol, TypeVar

from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.errors import ApiError
from millstream_process import supervision

from .replay import Skipped
from .writer import InternalTopic

RETRY_S, LONGEST_RETRY_S = 0.1, 10.0
"""First and longest pause between attempts to load a partition; each is twice the previous one."""

logger = logging.getLogger(__name__)


class Loaded(Protocol):
    """What a partition's log contains."""

    @property
    def skipped(self) -> Skipped: ...

    def __len__(self) -> int:
        """The number of entries: groups, transactional ids."""


L = TypeVar("L", bound=Loaded)


class CoordinatorLoader(Generic[L]):
    """Loads partitions in the background, each in a thread."""

    def __init__(
        self,
        topic: InternalTopic,
        reader: Callable[[int], Callable[[Iterable[Buffer]], L]],
        loaded: Callable[[int, L], None],
        entries: str,
    ) -> None:
        """``reader`` returns the function that reads a partition's batches; it runs in a thread.

        ``entries`` names what a partition contains, in messages of the log.
        """
        self._topic = topic
        self._reader = reader
        self._loaded = loaded
        self._entries = entries
        self._loads: dict[int, asyncio.Task[None]] = {}
        self.unreadable = 0
        """Records that were skipped, since the start."""

    def load(self, partition: int) -> None:
        self._loads[partition] = supervision.keep(
            f"loading of {self._entries}", partial(self._load, partition), pause_s=RETRY_S
        )

    def cancel(self, partition: int) -> None:
        if (load := self._loads.pop(partition, None)) is not None:
            load.cancel()

    def cancel_all(self) -> None:
        for task in self._loads.values():
            task.cancel()

    @property
    def running(self) -> Collection[asyncio.Task[None]]:
        """The loads that have not ended."""
        return self._loads.values()

    def is_loading(self, partition: int) -> bool:
        return partition in self._loads

    async def _load(self, partition: int) -> None:
        pause_s = RETRY_S
        while True:
            try:
                read = self._reader(partition)
                loaded = await asyncio.to_thread(read, self._topic.read_all(partition))
                self._loaded(partition, loaded)
                break
            except (ApiError, OSError) as error:
                logger.error(
                    "%s-%d: cannot load its %s, retrying in %g s: %s",
                    self._topic.name,
                    partition,
                    self._entries,
                    pause_s,
                    error,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        del self._loads[partition]
        self._report(partition, loaded)

    def _report(self, partition: int, loaded: L) -> None:
        if count := len(loaded):
            logger.info("%s-%d: %d %s loaded", self._topic.name, partition, count, self._entries)
        if (skipped := loaded.skipped).unreadable:
            self.unreadable += skipped.unreadable
            logger.error(
                "%s-%d: skipped %d records that cannot be read; the first: %s",
                self._topic.name,
                partition,
                skipped.unreadable,
                "; ".join(skipped.examples),
            )
