"""Finds the target's offset for a source offset that the worker does not remember, by reading the target.

Sequence numbers count a lane's records, so the number of the record at a source offset follows from any later record
with a known offset and number, if the source has no holes between them. With holes (transactions, compaction) the
number is too small, by at most the number of missing offsets: a group would read some records again, and skip none.
The search then looks in the target, whose batches carry the numbers, for the record with that number: at the offset
that it would have if the lane were alone there, else by bisection.
"""

from __future__ import annotations

from contextlib import aclosing

from millstream_kafka.batch import INT32_MAX, BatchHeader
from millstream_kafka.client import ClusterClient

from .lane import HALF_OF_SEQUENCES, Lane
from .reading import EARLIEST, LATEST, headers, offset_at

FIRST_BYTES, MOST_BYTES = 64 << 10, 4 << 20
SEARCHED_BYTES = 256 << 20
"""A search gives up after this many bytes: other writers send much more to that partition than this lane."""


class TooFar(Exception):
    """The offset cannot be translated; the message says why."""


class Lookup:
    def __init__(self, at_target: ClusterClient) -> None:
        self._at_target = at_target

    async def find(self, lane: Lane, offset: int) -> int:
        """Raises TooFar, BrokerError, ApiError."""
        anchor, progress = lane.offsets.start, lane.acknowledged
        back = max(0, anchor.offset - offset)
        start = await offset_at(self._at_target, lane.target, EARLIEST)
        if offset <= progress.first and progress.producer_epoch == 0:
            return start  # before all mirrored records
        if back > HALF_OF_SEQUENCES or (back and progress.first < 0) or offset < progress.first:
            raise TooFar(f"{lane}: offset {offset} is from before the numbers of this mirror")
        end = await offset_at(self._at_target, lane.target, LATEST)
        if not back:  # all of the lane's records lie before
            return min(max(anchor.target_offset, start), end)
        last = (anchor.sequence - back - 1) & INT32_MAX
        guess = min(max(anchor.target_offset - back - 1, start), end)
        return await _Search(self._at_target, lane, last).between(start, end, guess)


class _Search:
    """Searches for the offset after the record with the number ``last``."""

    def __init__(self, cluster: ClusterClient, lane: Lane, last: int) -> None:
        self._cluster = cluster
        self._lane = lane
        self._last = last
        self._bytes = 0

    async def between(self, low: int, high: int, guess: int) -> int:
        middle = guess
        while low < high:
            header = await self._next(middle)
            if header is None or (ahead := self._ahead(header)) >= HALF_OF_SEQUENCES:
                high = min(middle, header.base_offset) if header else middle
            elif ahead <= header.last_offset_delta:
                return header.base_offset + ahead + 1
            else:
                low = header.next_offset
            middle = (low + high) // 2
        return low

    def _ahead(self, header: BatchHeader) -> int:
        """Records from this batch's first to the last one; half of all numbers or more: the last one is earlier."""
        return (self._last - header.base_sequence) & INT32_MAX

    async def _next(self, offset: int) -> BatchHeader | None:
        """The lane's next batch from an offset on."""
        progress = self._lane.acknowledged
        mine = (progress.producer_id, progress.producer_epoch)
        found = headers(self._cluster, self._lane.target, offset, first=FIRST_BYTES, most=MOST_BYTES)
        async with aclosing(found):
            async for header in found:
                self._bytes += header.size
                if (header.producer_id, header.producer_epoch) == mine:
                    return header
                if self._bytes > SEARCHED_BYTES:
                    raise TooFar(f"{self._lane}: its records lie too far apart in the target")
        return None
