"""Since when a task is behind: the age of the oldest record that is missing in the target. No I/O.

A task that never catches up completely, because records keep arriving, is behind only by the time that a record takes.
So the ends of the source's log are kept with the times when they were first seen, until they are mirrored.
"""

from __future__ import annotations

from collections import deque

LEAST_MS = 50
"""Ends that are seen closer together count as one: the later end at the earlier time."""
MOST = 256
"""Of each task; more are merged in pairs, so a task that is far behind knows the times less exactly."""


class EndOffsets:
    """Not mirrored yet: the source's ends, in their order, each with the time when it was first seen."""

    __slots__ = ("_ends", "_spacing")

    def __init__(self) -> None:
        self._ends: deque[tuple[int, int]] = deque()
        self._spacing = LEAST_MS

    def observe(self, end: int, now_ms: int) -> None:
        """Note the end of the source's log; if it is lower than before, its last records are gone."""
        while self._ends and self._ends[-1][0] > end:
            self._ends.pop()
        if not self._ends or end > self._ends[-1][0]:
            if self._ends and now_ms - self._ends[-1][1] < self._spacing:
                self._ends[-1] = (end, self._ends[-1][1])
            else:
                self._ends.append((end, now_ms))
        if len(self._ends) > MOST:
            ends = list(self._ends)
            self._ends = deque(
                (later, at) for (_, at), (later, _) in zip(ends[::2], ends[1::2], strict=False)
            )
            if len(ends) % 2:
                self._ends.append(ends[-1])
            self._spacing *= 2

    def behind_since(self, offset: int) -> int | None:
        """When the end was first seen that follows this offset, in ms; None if everything is mirrored.

        Forgets the ends up to the offset: call it with rising offsets.
        """
        while self._ends and self._ends[0][0] <= offset:
            self._ends.popleft()
        if not self._ends:
            self._spacing = LEAST_MS
            return None
        return self._ends[0][1]
