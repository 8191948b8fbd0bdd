"""Finds the last common offset of two logs: before it both have the same batches, byte for byte. No I/O.

    search = CommonOffset(start, bound)
    while (offset := search.asks) is not None:
        search.told(first batch at or behind the offset in the one log, and in the other)

Equality is monotone: where two logs have an equal batch, they have equal batches before it. A batch names its offset
and the leader epoch under which it was appended. One leader appended it, behind the log that it had, and every replica
and every identity mirror takes it behind an equal log only (KIP-101; `protocol.mirror_append`). So a log is determined
by any of its batches, as in Raft. The whole batch is compared, since a cluster that was restored from an older copy
gives epochs a second time, to other records.

So a search may skip: it gallops back from the bound, since logs usually part near their end, and then halves the range.
It compares about 2·log2(n) batches of n, however large they are. If equality is not monotone after all (one of the logs
was compacted once), the offset found may be too low, never too high: an equal batch is before it. Then more records are
set aside than needed, and none is lost.
"""

from __future__ import annotations

from millstream_kafka.batch import read_header

Batch = bytes | memoryview


class CommonOffset:
    """``offset``: the common offset, when ``asks`` is None. ``epoch``: the leader epoch of the last common batch.

    ``is_found`` is False if no batch is equal; then ``offset`` is where the search began.
    """

    def __init__(self, start: int, bound: int) -> None:
        """``start``: where the later of the two logs starts. ``bound``: no common batch ends behind it."""
        self.offset = start
        self.epoch = -1
        self.is_found = False
        self._bound = max(start, bound)
        self._step = 1

    @property
    def asks(self) -> int | None:
        """The offset to compare next; None: the search is over."""
        if self.offset >= self._bound:
            return None
        if self.is_found:
            return (self.offset + self._bound) // 2
        return max(self.offset, self._bound - self._step)

    def told(self, one: Batch | None, other: Batch | None) -> None:
        """The first whole batch of each log that reaches behind ``asks``; None where there is none."""
        asked = self.asks
        assert asked is not None
        headers = [read_header(batch) for batch in (one, other) if batch is not None]
        if one is not None and other is not None and one == other:
            self.offset, self.epoch = headers[0].next_offset, headers[0].partition_leader_epoch
            self.is_found = True
            return
        # Common batches end before both: a common one that reaches behind would have been found first in both logs.
        self._bound = min([asked, *(header.base_offset for header in headers)])
        self._step *= 2
