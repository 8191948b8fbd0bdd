"""Memory of received requests, over all connections: bounded by `queued.max.request.bytes`.

It counts the received parts of incomplete requests, beyond the first FREE_BYTES of each, and batches in the
append queue. An announced size does not count: a client that announces 100 MB and sends one byte costs one byte.

Beyond the limit, incomplete requests of more than FREE_BYTES are not received any further, except one: the first keeps
its turn until it is complete, so that requests which together fill the memory all finish, one after the other. If
others wait and nothing has been freed for STALLED_S, connections are closed: those whose clients have almost nothing
left to send, the largest first, until there is room; or else the connection that has had its turn.

So the memory is bounded by the limit, the rest of one request, and FREE_BYTES for each connection.
"""

from __future__ import annotations

import asyncio
import mmap
from typing import Protocol

STALLED_S = 2.0
"""How long connections wait without progress before others are closed to make room."""
LARGE_FRAME_BYTES = 2 * 1024 * 1024
"""Frames from this size on are received into pages of their own, which take no memory before bytes arrive."""
FREE_BYTES = 256 * 1024
"""Bytes of each connection that do not count."""
IDLE_BYTES = 4096
"""A client that has sent less than this, and less than is missing, has next to nothing to send."""
MOST_AT_ONCE = 1024 * 1024
"""Largest part of a large frame to receive at a time."""
GROWTH = 4
"""A smaller frame's buffer grows by this factor at most, as bytes arrive."""


class Receiver(Protocol):
    """A connection that receives frames."""

    def feed(self) -> None:
        """Continue receiving: there may be room."""

    def ready(self) -> int:
        """Bytes that have arrived and are not yet received."""

    def close(self, reason: str) -> None: ...


class CutOffFrame:
    """An incompletely received frame, including its size field."""

    __slots__ = ("_buffer", "_filled", "_is_large", "_memory", "held", "size")

    def __init__(self, memory: RequestMemory, size: int, start: memoryview) -> None:
        self._memory = memory
        self.size = size
        self.held = 0
        """Bytes that count towards the limit."""
        self._is_large = size >= LARGE_FRAME_BYTES
        if self._is_large:
            self._buffer = memoryview(mmap.mmap(-1, size))
        else:
            self._buffer = memoryview(bytearray(self._capacity(len(start))))
        self._buffer[: len(start)] = start
        self._filled = len(start)
        self._count()

    def _capacity(self, needed: int) -> int:
        return needed if self._memory.is_full else min(self.size, GROWTH * needed)

    def _count(self) -> None:
        taken = self._filled if self._is_large else len(self._buffer)
        held = max(0, taken - FREE_BYTES)
        self._memory.hold(held - self.held)
        self.held = held

    @property
    def missing(self) -> int:
        return self.size - self._filled

    def buffers(self, spare: memoryview) -> list[memoryview]:
        """Buffers for the next bytes: first this frame, then `spare` for the rest."""
        room = self._buffer[self._filled : self._filled + MOST_AT_ONCE]
        return [room] if self._is_large and len(room) < self.missing else [room, spare]

    def received(self, count: int) -> None:
        """`count` bytes were received into the first of `buffers`."""
        self._filled += count
        if self._is_large:
            self._count()

    def take(self, more: memoryview) -> None:
        """Add bytes that were received into `spare`."""
        end = self._filled + len(more)
        if end > len(self._buffer):
            grown = memoryview(bytearray(self._capacity(end)))
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        self._buffer[self._filled : end] = more
        self._filled = end
        self._count()

    def whole(self) -> memoryview:
        """The complete frame."""
        return self._buffer[: self.size]


class RequestMemory:
    """All calls are made on the loop."""

    __slots__ = ("_frames", "_is_freed", "_starved", "_timer", "_turn", "held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._frames: dict[Receiver, CutOffFrame] = {}
        self._starved: dict[Receiver, None] = {}
        """The receivers that wait for room, in order of arrival."""
        self._turn: Receiver | None = None
        """The receiver that may exceed the limit."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_freed = False
        """Whether memory was freed since the timer was set."""

    @property
    def is_full(self) -> bool:
        return self.held >= self.limit

    def hold(self, size: int) -> None:
        """Count `size` more bytes, regardless of the limit."""
        self.held += size

    def free(self, size: int) -> None:
        self.held -= size
        self._is_freed = True
        if self._starved:
            self._resume()

    # Incomplete frames: one per connection

    def begin(self, receiver: Receiver, size: int, start: memoryview) -> CutOffFrame:
        """Begin a frame of `size` bytes with the bytes in `start`. They are held until `end`."""
        frame = self._frames[receiver] = CutOffFrame(self, size, start)
        return frame

    def may_receive(self, receiver: Receiver) -> bool:
        """Whether to receive more of this frame; if not, its `feed` will be called."""
        if self.held < self.limit or self._turn is receiver or self._frames[receiver].size <= FREE_BYTES:
            return True
        if self._turn is None:
            self._turn = receiver
            return True
        self._starved[receiver] = None
        if self._timer is None:
            self._set_timer()
        return False

    def end(self, receiver: Receiver) -> None:
        """The frame has been handled, or never will be."""
        frame = self._frames.pop(receiver)
        self._starved.pop(receiver, None)
        if self._turn is receiver:
            self._turn = None
        self.free(frame.held)

    def _resume(self) -> None:
        """Resume receivers while there is room; at least one if no receiver has the turn."""
        room = self.limit - self.held
        if room <= 0 and self._turn is not None:
            return
        loop = asyncio.get_running_loop()
        while self._starved:
            receiver = next(iter(self._starved))
            del self._starved[receiver]
            loop.call_soon(receiver.feed)
            room -= self._frames[receiver].missing
            if room <= 0:
                break

    def _set_timer(self) -> None:
        self._is_freed = False
        self._timer = asyncio.get_running_loop().call_later(STALLED_S, self._relieve)

    def _relieve(self) -> None:
        self._timer = None
        if self._starved and not self._is_freed:
            self._make_room()
        if self._starved:
            self._set_timer()

    def _make_room(self) -> None:
        """Give the turn to another receiver; if incomplete frames fill the memory, free a quarter of it."""
        had_turn, self._turn = self._turn, None
        frames = self._frames
        if (
            sum(frame.held for frame in frames.values()) >= self.limit // 2
        ):  # otherwise the append queue holds it, and frees it
            idle = [
                receiver
                for receiver, frame in frames.items()
                if frame.held and receiver.ready() < min(frame.missing, IDLE_BYTES)
            ]
            idle.sort(key=lambda receiver: -frames[receiver].held)
            if not idle and had_turn is not None:
                idle = [had_turn]
            for receiver in idle:
                if self.held <= self.limit - self.limit // 4:
                    break
                receiver.close(f"a request that is cut off while others waited {STALLED_S:g} s for its room")
        self._resume()
