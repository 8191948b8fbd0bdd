"""Output to one client: bytes and ranges of segment files, in order.

Neither the client nor the disk may block the loop. If a range is not ready (`channel`), a thread loads it while the
loop continues. After a number of bytes the other clients have their turn.

`blocked`: something waits for the client or the disk; `drained` is called when everything has been sent after that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..log.files import FileSlice, NotCachedError
from ..runtime.stats import Stats
from .channel import MORE, ClientChannel

SEND_AT_BYTES = 256 * 1024
"""Bytes are handed to the channel when this many are ready, or when nothing follows at once."""
PIECE_BYTES = 1024 * 1024
"""Most bytes of a file to send at a time."""
SEND_AT_ONCE_BYTES = 8 * PIECE_BYTES
"""Bytes sent to one client before the others have their turn."""
LEAST_BYTES = 32 * 1024
"""Shorter pieces count as this many bytes, since system calls take time too."""


def _nobody(*_: object) -> None:
    """Callback of a closed connection."""


class Outbox:
    """Errors are raised where `put` and `send` are called, and given to `failed` where the loop calls.

    An OSError with a file name is an error of the disk.
    """

    __slots__ = (
        "_bytes",
        "_channel",
        "_drained",
        "_failed",
        "_loop",
        "_parts",
        "_stats",
        "_watching",
        "blocked",
    )

    def __init__(
        self,
        channel: ClientChannel,
        loop: asyncio.AbstractEventLoop,
        stats: Stats,
        drained: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._channel = channel
        self._loop = loop
        self._stats = stats
        self._drained = drained
        self._failed = failed
        self._parts: deque[Any] = deque()
        self._bytes = 0
        self._watching = False
        self.blocked = False

    def put(self, part: Any) -> None:
        """Add bytes or a FileSlice; they are sent by `send`, or once there are many."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def put_all(self, parts: Iterable[Any], size: int) -> None:
        """`put` each part; `size` is their total in bytes."""
        self._parts.extend(parts)
        self._bytes += size
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def send(self) -> None:
        """Send until everything is sent, or until the client or the disk would block."""
        parts, channel = self._parts, self._channel
        missing: FileSlice | None = None
        room = SEND_AT_ONCE_BYTES
        while parts and room > 0:
            part = parts.popleft()
            try:
                if isinstance(part, FileSlice):
                    count = channel.send_file(part, PIECE_BYTES)
                    if count < part.length:
                        parts.appendleft(part.after(count))
                else:
                    if parts:
                        part = self._join(part)
                    count = channel.send(part, MORE if parts else 0)
                    if count < len(part):
                        parts.appendleft(memoryview(part)[count:])
            except (BlockingIOError, InterruptedError):
                parts.appendleft(part)
                break
            except NotCachedError:
                parts.appendleft(part)
                missing = part
                break
            room -= max(count, LEAST_BYTES)
            self._bytes -= count
            self._stats.bytes_out += count
        self.blocked = bool(parts)
        self._watch(self.blocked and missing is None)
        if missing is not None:
            loading = self._loop.run_in_executor(None, channel.load, missing)
            loading.add_done_callback(self._loaded)

    def _join(self, first: Any) -> Any:
        """The bytes up to the next range of a file, as one."""
        parts, joined = self._parts, [first]
        while parts and not isinstance(parts[0], FileSlice):
            joined.append(parts.popleft())
        return b"".join(joined) if len(joined) > 1 else first

    def _watch(self, wanted: bool) -> None:
        """Start or stop watching for a channel that takes bytes."""
        if wanted != self._watching:
            self._watching = wanted
            if wanted:
                self._channel.watch_writable(self._go_on)
            else:
                self._channel.unwatch_writable()

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        """The thread is done; sending repeats any error, and can report it."""
        if not loading.cancelled():
            loading.exception()
        if not self._channel.is_closed:
            self._go_on()

    def _go_on(self) -> None:
        try:
            self.send()
            if not self.blocked:
                self._drained()
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Send nothing more; call it before the channel is closed."""
        self._watch(False)
        self._parts.clear()
        self._drained = self._failed = _nobody  # breaks a reference cycle
