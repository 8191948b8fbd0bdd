"""Runs a coordinator's state machine on the event loop: time, callers that wait, appends and loading.

Each call passes the time and the event to the shard, and carries out the effects in order. One timer on the loop serves
the shard's earliest deadline. The reply of a caller whose connection has ended is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_process import supervision

from ..runtime.slices import cooperatively
from ..runtime.steps import Steps
from .effects import Reply
from .loader import CoordinatorLoader, Loaded
from .state import CoordinatorState
from .writer import InternalTopic, PartitionWriter

FINISH_S = 1.0
"""Time limit of running appends when the broker stops; their callers have left by then."""

FIRST_LOAD_S = 1.0
"""How long the creation of the internal topic waits for its partitions to be loaded."""

T = TypeVar("T")
L = TypeVar("L", bound=Loaded)


class Shard(Protocol[L]):
    """A coordinator's state machine, over all partitions of its internal topic that this broker leads."""

    @property
    def state(self) -> CoordinatorState[Any]: ...

    def advance(self, now: int, wall_clock: int) -> None:
        """Set the time, in milliseconds of a monotonic clock, and handle everything due."""

    def next_deadline(self) -> int | None:
        """The latest time for the next call of ``advance``."""

    def reader(self, partition: int) -> Callable[[Iterable[Buffer]], L]:
        """The function that reads a partition's batches, for use in a thread."""

    def loaded(self, partition: int, loaded: L) -> None:
        """Take what the partition's log contains."""

    def unload(self, partition: int) -> None:
        """Another coordinator has the partition now: forget its entries, and redirect waiting callers."""

    def answer_all(self, error: ErrorCode) -> None:
        """Reply to every waiting caller, because the broker stops."""


class CoordinatorRuntime(Generic[L]):
    """All calls are made on the loop."""

    def __init__(self, shard: Shard[L], topic: InternalTopic, entries: str) -> None:
        """``entries`` names what the shard's partitions contain, in messages of the log."""
        self._shard = shard
        self._topic = topic
        self._loader: CoordinatorLoader[L] = CoordinatorLoader(topic, shard.reader, self._loaded, entries)
        self._writer = PartitionWriter(topic, self._stored, self._late, entries)
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """Of the loop. uvloop's handle does not know it if it is less than half a millisecond away."""
        self._steps = supervision.Tasks()
        self._creating: asyncio.Task[None] | None = None
        self._closed = False

    # ---- life

    async def ensure_topic(self) -> None:
        """Create the internal topic at its first use. Raises ApiError."""
        if self._topic.partition_count() is not None:
            return
        if self._creating is None:
            self._creating = asyncio.create_task(self._create())  # its error goes to the callers
            self._creating.add_done_callback(self._created)
        await asyncio.shield(self._creating)

    def _created(self, creating: asyncio.Task[None]) -> None:
        self._creating = None
        if not creating.cancelled():
            creating.exception()  # all callers may have left

    async def _create(self) -> None:
        self.set_partition_count(await self._topic.create())
        if loads := self._loader.running:  # so that the first caller need not retry
            await asyncio.wait(loads, timeout=FIRST_LOAD_S)

    def set_partition_count(self, count: int) -> None:
        """Set the number of partitions of the internal topic."""
        self._shard.state.partition_count = count

    def on_election(self, partition: int) -> None:
        """Load this partition of the internal topic, because this broker leads it from now on."""
        if not self._loader.is_loading(partition) and self._shard.state.begin_load(partition):
            self._loader.load(partition)

    def on_resignation(self, partition: int) -> None:
        """Another broker leads it: waiting callers get NOT_COORDINATOR; loads and queued writes are abandoned."""
        self._loader.cancel(partition)
        self._writer.give_up(partition)
        self.run(lambda: self._shard.unload(partition))

    async def close(self) -> None:
        """Reply to all waiting callers, and let running appends finish, within ``FINISH_S``."""
        self._closed = True
        self.run(lambda: self._shard.answer_all(ErrorCode.NOT_COORDINATOR))
        self._loader.cancel_all()
        await self._steps.cancel()
        await self._writer.finish(FINISH_S)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def loading(self) -> int:
        """Partitions that are being loaded."""
        return len(self._loader.running)

    @property
    def unreadable(self) -> int:
        """Records that were skipped when partitions were loaded, since the start."""
        return self._loader.unreadable

    # ---- events and effects

    async def call(self, event: Callable[[asyncio.Future[Any]], None]) -> Any:
        """Run an event of a caller, and return the reply to it."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        caller: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.run(lambda: event(caller))
        return await caller

    def run(self, event: Callable[[], T]) -> T:
        """Run an event, and carry out its effects."""
        loop = asyncio.get_running_loop()
        try:
            self._shard.advance(int(loop.time() * 1000), int(time.time() * 1000))
            return event()
        finally:  # a defect that shows in one entry must not stop the clock of all
            self._set_timer(loop)
            self._carry_out()

    def run_steps(self, what: str, steps: Steps[None]) -> None:
        """Run each step as an event: the first one now, the others in turns of the loop."""
        events = self._events(steps)
        if next(events, None) is not None:
            self._steps.add(supervision.run(what, _in_turns(events)))

    def _events(self, steps: Steps[None]) -> Iterator[bool]:
        while not self._closed and self.run(lambda: next(steps, True)) is None:
            yield True

    def _carry_out(self) -> None:
        for effect in self._shard.state.take_effects():
            if isinstance(effect, Reply):
                assert isinstance(effect.caller, asyncio.Future)
                if not effect.caller.done():
                    effect.caller.set_result(effect.result)
            else:
                self._writer.write(effect)

    def _loaded(self, partition: int, loaded: L) -> None:
        self.run(lambda: self._shard.loaded(partition, loaded))

    def _stored(self, writes: list[int], error: ErrorCode) -> None:
        self.run(lambda: self._shard.state.stored(writes, error))

    def _late(self, writes: list[int], error: ErrorCode) -> None:
        self.run(lambda: self._shard.state.late(writes, error))

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = self._shard.next_deadline()
        if self._closed or deadline is None:
            return
        at = (deadline + 1) / 1000
        if self._timer is not None:
            if self._timer_at <= at:
                return  # it fires early enough, and checks again then
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(at, self._time_is_up), at

    def _time_is_up(self) -> None:
        self._timer = None  # first, because the event may set the next one
        self.run(lambda: None)


async def _in_turns(events: Iterator[object]) -> None:
    async for _ in cooperatively(events):
        pass
