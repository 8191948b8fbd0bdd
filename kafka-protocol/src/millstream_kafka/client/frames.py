"""Buffers for large responses, reused once nothing refers to their bytes.

A new buffer is not free: the kernel maps it page by page, and Python fills it with zeros. In programs that only pass
records on (a mirror's worker, a follower), that was a tenth of the CPU time.

CPython counts references, and each memoryview of a bytearray, slices included, holds one. So a kept buffer to which
only the list refers has no reader.
"""

from __future__ import annotations

import sys
from typing import Final

SMALLEST: Final = 64 * 1024
"""Smaller buffers, in bytes, are not kept: a new one costs less than the search."""
MOST_KEPT: Final = 8 * 1024 * 1024
"""Limit of one connection's kept buffers, in bytes. A buffer beyond it serves one response."""
_UNUSED: Final = 3
"""References to an unused buffer: the list's, the loop variable's, and the argument's of the count."""


class Frames:
    """The buffers of one connection."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A writable buffer of ``size`` bytes with arbitrary content; nobody else gets it while a view of it exists."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        buffer = self._unused(size)
        if buffer is None:
            step = 1 << (size.bit_length() - 3)
            buffer = bytearray(-(-size // step) * step)
            self._keep(buffer)
        return memoryview(buffer)[:size]

    def _unused(self, size: int) -> bytearray | None:
        for buffer in self._kept:
            if size <= len(buffer) <= 2 * size and sys.getrefcount(buffer) == _UNUSED:
                return buffer
        return None

    def _keep(self, added: bytearray) -> None:
        """Keep a buffer, in place of unused ones of other sizes if need be; not if that would exceed MOST_KEPT."""
        excess = sum(map(len, self._kept)) + len(added) - MOST_KEPT
        still: list[bytearray] = []
        for buffer in self._kept:
            if excess > 0 and sys.getrefcount(buffer) == _UNUSED:
                excess -= len(buffer)
            else:
                still.append(buffer)
        if excess <= 0:
            still.append(added)
        self._kept = still
