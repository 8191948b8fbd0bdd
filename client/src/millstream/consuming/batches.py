"""A stream's messages in lists, for work that costs less for many messages together, such as a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from millstream.consuming.message import Message
from millstream.errors import BadInput

MAX_BATCH: Final = 10_000
"""Largest batch: librdkafka's messages are Python objects by then."""


def check_maximum(maximum: object) -> None:
    """BadInput for a size of batches that is not allowed."""
    if type(maximum) is not int or not 1 <= maximum <= MAX_BATCH:
        raise BadInput(f"maximum: {maximum!r} is not allowed", f"write a number from 1 to {MAX_BATCH:,}")


@dataclass(frozen=True, slots=True)
class Batches:
    """Iterate with ``for`` or ``async for``: lists of messages, none empty, until the connector is closed.

    A list has what is there, up to the maximum; it never waits for more. Its messages may be of several partitions,
    each partition's in order. They count as processed when the next list is taken. Created by `MessageStream.batches`.
    """

    _prepare: Callable[[], bool]
    """Let the stream's membership work if that is due."""
    _hand_out: Callable[[], list[Message]]
    """Messages that have been fetched; none if they were lost meanwhile."""
    _fetch: Callable[[], bool]
    """Fetch messages; False if the stream is closed."""
    _aside: Callable[[Callable[[], bool]], Awaitable[bool]]
    """Call it in a thread."""

    def __iter__(self) -> Iterator[list[Message]]:
        while True:
            self._prepare()
            if batch := self._hand_out():
                yield batch
            elif not self._fetch():
                return

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        while True:
            await self._aside(self._prepare)
            if batch := self._hand_out():
                yield batch
            elif not await self._aside(self._fetch):
                return
