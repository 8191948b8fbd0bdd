"""A Fetch that waits for records: a long poll of a consumer, or of a follower's session.

Its maker registers it with the partitions in the very step that has read them, and takes it back when `response` is
done, whichever way: answered, timed out, or cancelled because the client has gone. So nothing that happens to the
partitions after they were read can pass it by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream_kafka.protocol.fetch import FetchResponse


class DelayedFetch:
    """Waits for `missing` more bytes, `wait_s` at most."""

    __slots__ = ("_is_over", "_loop", "_missing", "_read", "_timer", "response")

    def __init__(self, missing: int, wait_s: float, read: Callable[[], FetchResponse]) -> None:
        """`read` makes the response; it is called once, in the turn after the wait is over."""
        self._loop = asyncio.get_running_loop()
        self.response: asyncio.Future[FetchResponse] = self._loop.create_future()
        self.response.add_done_callback(self._done)
        self._missing = missing
        self._read = read
        self._is_over = False
        self._timer = self._loop.call_later(wait_s, self.over)

    def advanced(self, size: int) -> None:
        """See `partition.Waiter`."""
        self._missing -= size
        if self._missing <= 0 or not size:
            self.over()

    def over(self) -> None:
        """Answer in the next turn, with all that this one brings."""
        if not self._is_over:
            self._is_over = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        if self.response.done():
            return
        try:
            self.response.set_result(self._read())
        except Exception as error:
            self.response.set_exception(error)

    def _done(self, _: asyncio.Future[FetchResponse]) -> None:
        self._timer.cancel()
