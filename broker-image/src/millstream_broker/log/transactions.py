"""The transactions of a log: which are open, and which have ended with a marker that may not be replicated yet.

The *last stable offset* is the end of reads of committed records: whether a record before it counts is known and never
changes. It is the smallest of

- the high watermark,
- the first offset of each open transaction,
- the first offset of each ended transaction whose marker is at or above the high watermark, because a new leader may
  lack the marker.

A log's start beyond such an offset takes its place: DeleteRecords has removed the records before it.

Invariants: a producer has one open transaction at most; first offsets are unique, and transactions begin in their
order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from millstream_kafka.batch import BatchHeader, Buffer
from millstream_kafka.control_batch import EndTransactionMarker, read_marker

_NONE: dict[int, EndTransactionMarker] = {}


class EndedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    """The first offset of its records."""
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """That of the log after this marker, if its high watermark were the end."""
    committed: bool


class Transactions:
    __slots__ = ("_open", "_unreplicated")

    def __init__(self, transactions: Iterable[tuple[int, int]] = ()) -> None:
        """Each open transaction: its first offset and producer id."""
        self._open = OrderedDict(sorted(transactions))
        """Producer ids by first offset, in ascending order."""
        self._unreplicated: list[tuple[int, int]] = []
        """Heap of first offsets of ended transactions, each with its marker's offset."""

    def __bool__(self) -> bool:
        """Whether any may keep the last stable offset below the high watermark."""
        return bool(self._open) or bool(self._unreplicated)

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def oldest(self) -> int | None:
        """The producer id of the open transaction that began first; None without one."""
        return next(iter(self._open.values()), None)

    @property
    def open(self) -> dict[int, int]:
        """Producer ids by first offset, in ascending order."""
        return dict(self._open)

    def begin(self, first_offset: int, producer_id: int) -> None:
        self._open[first_offset] = producer_id

    def end(
        self, first_offset: int, producer_id: int, marker_offset: int, *, committed: bool
    ) -> EndedTransaction:
        """End the producer's transaction, which began there."""
        self._open.pop(first_offset, None)
        heappush(self._unreplicated, (first_offset, marker_offset))
        stable = next(iter(self._open), marker_offset + 1)
        return EndedTransaction(producer_id, first_offset, marker_offset, stable, committed)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open or has ended at or above the high watermark; None without one.

        Markers below the high watermark are forgotten: it never goes back below them.
        """
        ended = self._unreplicated
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first = next(iter(self._open), None)
        if ended and (first is None or ended[0][0] < first):
            return ended[0][0]
        return first

    def last_stable_offset(self, high_watermark: int, log_start: int) -> int:
        """See the module."""
        unstable = self.first_unstable(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return min(high_watermark, max(unstable, log_start))


def markers_of(batches: Buffer, headers: Sequence[BatchHeader]) -> dict[int, EndTransactionMarker]:
    """The markers in these batches, by their base offsets."""
    if not any(header.is_control for header in headers):
        return _NONE
    found, position, view = {}, 0, memoryview(batches)
    for header in headers:
        end = position + header.size
        if header.is_control and (marker := read_marker(view[position:end])) is not None:
            found[header.base_offset] = marker
        position = end
    return found
