"""A Fetch that waits for records: a long poll of a consumer, or of a follower's session.

Its creator registers it with the partitions in the same step that read them, and unregisters it when `response` is
done: answered, timed out, or cancelled because the client has disconnected. So it misses no change of the partitions
after that step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream_kafka.protocol.fetch import FetchResponse
from millstream_process import supervision

from ..runtime.slices import begin, finish
from ..runtime.steps import Steps


class DelayedFetch:
    """Waits for `missing` more bytes, `wait_s` at most."""

    __slots__ = ("_is_over", "_loop", "_missing", "_read", "_timer", "response")

    def __init__(self, missing: int, wait_s: float, read: Callable[[], Steps[FetchResponse]]) -> None:
        """`read` builds the response; it is started once, in the turn after the wait is over."""
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
        """Respond in the next turn, with everything from this one."""
        if not self._is_over:
            self._is_over = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        if self.response.done():
            return
        steps = self._read()
        try:
            done = begin(steps)
        except Exception as error:
            self.response.set_exception(error)
            return
        if done is not None:
            self.response.set_result(done[0])
        else:
            reading = supervision.run("delayed fetches", self._finish(steps))
            self.response.add_done_callback(lambda _: reading.cancel())

    async def _finish(self, steps: Steps[FetchResponse]) -> None:
        try:
            response = await finish(steps)
        except Exception as error:
            if not self.response.done():
                self.response.set_exception(error)
        else:
            if not self.response.done():
                self.response.set_result(response)

    def _done(self, _: asyncio.Future[FetchResponse]) -> None:
        self._timer.cancel()
