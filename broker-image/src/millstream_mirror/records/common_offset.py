"""Finds the last common offset of two logs: before it both have the same batches, byte for byte. No I/O.

    search = CommonOffset(start, bound)
    while (offset := search.next_offset) is not None:
        search.compare(first batch that ends after the offset in the one log, and in the other)

Equality is monotone: if two logs share a batch, they share all batches before it. A batch contains its offset and the
leader epoch under which it was appended. One leader appended it after the log that it had, and replicas and identity
mirrors accept it only after an equal log (KIP-101; `protocol.mirror_append`). So any batch determines the log before
it, as in Raft. The search compares whole batches, because a cluster restored from an older copy reuses epochs for other
records.

So the search may skip: it gallops back from the bound, since logs usually diverge near their end, and then bisects.
It compares about 2·log2(n) batches of n, however large they are. If equality is not monotone after all (one of the logs
was compacted once), the offset found may be too low, never too high, because it always follows an equal batch. Then
more records are copied than needed, and none is lost.
"""

from __future__ import annotations

from millstream_kafka.batch import read_header

Batch = bytes | memoryview


class CommonOffset:
    """``offset`` is the common offset once ``next_offset`` is None; ``epoch`` is the leader epoch of the last common
    batch.

    ``is_found`` is False if no batch is equal; then ``offset`` is the start of the search.
    """

    def __init__(self, start: int, bound: int) -> None:
        """``start`` is the later start of the two logs; no common batch ends after ``bound``."""
        self.offset = start
        self.epoch = -1
        self.is_found = False
        self._bound = max(start, bound)
        self._step = 1

    @property
    def next_offset(self) -> int | None:
        """The offset to compare next; None at the end of the search."""
        if self.offset >= self._bound:
            return None
        if self.is_found:
            return (self.offset + self._bound) // 2
        return max(self.offset, self._bound - self._step)

    def compare(self, batch: Batch | None, other: Batch | None) -> None:
        """Pass the first whole batch of each log that ends after ``next_offset``, or None if there is none."""
        requested = self.next_offset
        assert requested is not None
        headers = [read_header(found) for found in (batch, other) if found is not None]
        if batch is not None and other is not None and batch == other:
            self.offset, self.epoch = headers[0].next_offset, headers[0].partition_leader_epoch
            self.is_found = True
            return
        # Common batches end before both: a common batch that ends later would have come first in both logs.
        self._bound = min([requested, *(header.base_offset for header in headers)])
        self._step *= 2
