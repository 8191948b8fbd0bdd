"""Runs the controller's state machine for as long as this broker is the controller.

The store's reports, the results of writes and administrators' requests are its events, handled one at a time on the
loop. An event that takes longer than a slice continues in the next turn of the loop. Later events queue behind it, and
readers of the machine wait until it has been handled (`_rest`).

The driver carries out the machine's instructions: writes one after the other, in the order of the decisions (removals
of different topics in parallel); pushes by `channels`; replies to callers. A write with an unknown outcome is repeated,
which is safe because it is conditional.

A controllership ends with `Fenced`: another controller was elected, or this broker's session is over. From then on
nothing is written or pushed, and waiting callers get NOT_CONTROLLER. An exception in the machine is a bug, after which
its state cannot be trusted: it ends the controllership, too, and the broker resigns, so that the next controller reads
the stored state again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping
from typing import Any

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..config.config import BrokerConfig
from ..config.config_keys import BROKER_KEYS
from ..coordination import CoordinationError, PartitionRecord
from ..coordination.controllership import BrokersChanged, ConfigsChanged, ControllerStore, Fenced, StoreEvent
from ..runtime.slices import begin, call_in_slice, finish, gather_in_slices, slice_left
from ..runtime.steps import Steps
from ..topic_rules.internal_topics import ONE_REPLICA, InternalFactors
from . import queries
from .channels import Channels
from .machine import ControllerMachine
from .messages import (
    Abandoned,
    AcceptBroker,
    AnswerCaller,
    AskLogEnds,
    AssignmentWritten,
    BrokerAccepted,
    ComparisonWaits,
    ElectionRequested,
    ElectionType,
    Event,
    FactorRaised,
    Instruction,
    Push,
    ReassignmentRequested,
    RefuseDeletion,
    RemoveTopic,
    Settings,
    SettingsChanged,
    ShutdownRequested,
    StatesWritten,
    StopReplicas,
    Tick,
    TopicRemoved,
    WriteAssignment,
    WriteStates,
)
from .reach import Reach

SLICE_S = 0.0015
"""Longer than those of others: it covers elections, while the loop may be busy."""
TICK_S = 1.0
REMOVALS_AT_ONCE = 50
"""Topics removed from the store in parallel."""
BEGUN_AT_ONCE = 25
"""Removals that begin in one turn of the loop: the store writes them together."""
PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
RESIGN_PAUSE_S = 1.0
"""Pause that keeps brokers from resigning in turns, if the stored state breaks the machine."""
SHUTDOWN_UPDATES_S = 2.0
"""How long the response to a controlled shutdown waits for brokers to learn the new leaders."""

Write = WriteStates | WriteAssignment | RemoveTopic | RefuseDeletion | AcceptBroker

log = logging.getLogger(__name__)


class ControllerDriver:
    """One controllership, from `start` to `stop`. All is called on the loop."""

    def __init__(
        self,
        broker_id: int,
        reach: Reach,
        config: BrokerConfig,
        store: ControllerStore,
        factors: InternalFactors = ONE_REPLICA,
    ) -> None:
        """`reach` connects to a broker, including this one."""
        self._config = config
        self._store = store
        self._factors = factors
        self.machine = ControllerMachine(store.epoch, settings_of(config, None, factors))
        self._events: deque[Event] = deque()
        self._handling: Steps[None] | None = None
        """The rest of the event that is being handled, the first of `_events`."""
        self._between_events = asyncio.Event()
        self._between_events.set()
        self._channels = Channels(broker_id, reach, self.machine, self._rest, self._handle, self._lose)
        self._early: list[StoreEvent] | None = []
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loaded.add_done_callback(lambda done: done.exception())  # nothing may wait for it
        self._writes: deque[Write] = deque()
        self._to_write = asyncio.Event()
        self._has_written = asyncio.Event()
        self._waiting: dict[Hashable, asyncio.Future[Any]] = {}
        self._callers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    def start(self) -> None:
        log.info("this broker is the controller now, epoch %d", self._store.epoch)
        self._tasks = [
            supervision.run("controller", self._run()),
            supervision.keep("controller's clock", self._tick),
        ]

    async def stop(self) -> None:
        """Stop everything, before or after the end of the session."""
        self._lose()
        await supervision.cancel(self._tasks)
        await self._channels.close()

    def _lose(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._between_events.set()
        log.info("this broker is no longer the controller: epoch %d has ended", self._store.epoch)
        self._channels.end()
        error = ApiError(ErrorCode.NOT_CONTROLLER)
        for waiting in (self._loaded, *self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(error)
        for task in self._tasks:
            task.cancel()

    def _fail(self, error: Exception) -> None:
        supervision.failed("controller", error, ": this broker resigns")
        self._writes.clear()
        self._lose()
        self._tasks.append(supervision.keep("controller's end", self._resign))

    async def _resign(self) -> None:
        await asyncio.sleep(RESIGN_PAUSE_S)
        with contextlib.suppress(Fenced):
            await self._store.resign()

    async def settled(self, timeout: float) -> None:
        """Return when every decision so far is stored and known to the brokers, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not (self._between_events.is_set() and self._has_written.is_set()):
                    await self._between_events.wait()
                    await self._has_written.wait()
                await self._channels.acknowledged(timeout)
        except TimeoutError:
            log.info("the controller still has work after %g s", timeout)

    # Requests to the controller. All raise ApiError: NOT_CONTROLLER, REQUEST_TIMED_OUT after `timeout` seconds.

    async def elect_leaders(
        self, kind: ElectionType, partitions: Collection[TopicPartition] | None, timeout: float
    ) -> Mapping[TopicPartition, ApiError | None]:
        """The result of each election; for all partitions (None), of those that needed one (KIP-460)."""
        result: Mapping[TopicPartition, ApiError | None] = await self._ask(
            lambda caller: ElectionRequested(caller, kind, partitions), timeout
        )
        return result

    async def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, tuple[int, ...] | None],
        timeout: float,
        *,
        may_change_factor: bool,
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Begin to move partitions, or (None) to move them back; returns when that is stored (KIP-455)."""
        result: Mapping[TopicPartition, ApiError | None] = await self._ask(
            lambda caller: ReassignmentRequested(caller, targets, may_change_factor), timeout
        )
        return result

    async def list_reassignments(
        self, partitions: Collection[TopicPartition] | None, timeout: float
    ) -> Mapping[TopicPartition, PartitionRecord]:
        """Those of these partitions, or of all, that are being moved."""
        await self._within(asyncio.shield(self._loaded), timeout)
        await self._within(self._rest(), timeout)
        return await finish(queries.reassignments(self.machine, partitions))

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, timeout: float = 30.0
    ) -> Collection[TopicPartition]:
        """Move that broker's leaderships to others; returns the partitions that no other replica can lead.

        By then brokers know the new leaders, so clients no longer go to the one that stops.
        """
        log.info("broker %d requests a controlled shutdown", broker_id)
        remaining: Collection[TopicPartition] = await self._ask(
            lambda caller: ShutdownRequested(caller, broker_id, broker_epoch), timeout
        )
        await self._channels.acknowledged(SHUTDOWN_UPDATES_S)
        return remaining

    async def _ask(self, event: Callable[[Hashable], Event], timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._within(asyncio.shield(self._loaded), timeout)
        caller, waiting = next(self._callers), loop.create_future()
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may end unawaited
        self._waiting[caller] = waiting
        try:
            self._handle(event(caller))
            return await self._within(waiting, deadline - loop.time())
        finally:
            if self._waiting.pop(caller, None) is not None:
                self._handle(Abandoned(caller))

    async def _within(self, waiting: Awaitable[Any], timeout: float) -> Any:
        if self._is_over:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            async with asyncio.timeout(timeout):
                found = await waiting
                if self._is_over:
                    raise ApiError(ErrorCode.NOT_CONTROLLER)
                return found
        except TimeoutError:
            message = f"The controller was not done within {timeout:.3g} s."
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, message) from None

    # Events and instructions

    def _report(self, event: StoreEvent) -> None:
        if self._early is not None:
            self._early.append(event)
            return
        self._handle(event)
        if isinstance(event, ConfigsChanged):
            settings = settings_of(self._config, event.brokers.get(None, {}), self._factors)
            self._handle(SettingsChanged(settings))

    def _handle(self, event: Event) -> None:
        """Handle an event: at once, unless another one is being handled, and within this turn's slice."""
        if self._is_over:
            return
        self._events.append(event)
        if self._between_events.is_set():
            self._between_events.clear()
            self._handle_more()

    async def _rest(self) -> None:
        """Return when no event is being handled: the machine is then consistent."""
        while not self._between_events.is_set():
            await self._between_events.wait()

    def _handle_more(self) -> None:
        """Continue with the events for a slice of time."""
        try:
            while self._events and not self._is_over:
                if (left := slice_left(SLICE_S)) < 0:
                    call_in_slice(self._handle_more)
                    return
                if self._handling is None:
                    self._handling = self._apply(self.machine.handle(self._events[0]))
                if begin(self._handling, left) is not None:
                    self._handling, event = None, self._events.popleft()
                    if isinstance(event, BrokersChanged):
                        self._channels.tidy()
        except Exception as error:
            self._fail(error)
            return
        if not self._is_over:
            self._between_events.set()
            self._to_write.set()

    def _apply(self, handling: Steps[list[Instruction]]) -> Steps[None]:
        """Handle an event, and carry out the instructions."""
        for instruction in (yield from handling):
            yield
            if isinstance(instruction, Push):
                self._channels.push(instruction)
            elif isinstance(instruction, StopReplicas):
                self._channels.stop(instruction)
            elif isinstance(instruction, AskLogEnds):
                self._channels.ask(instruction)
            elif isinstance(instruction, AnswerCaller):
                self._reply(instruction)
            elif isinstance(instruction, FactorRaised):
                log.info(
                    "%s: %d partitions get %d replicas",
                    instruction.topic,
                    instruction.partitions,
                    instruction.factor,
                )
            elif isinstance(instruction, ComparisonWaits):
                log.warning("%s", instruction)
            else:
                self._writes.append(instruction)
                self._to_write.set()
                self._has_written.clear()

    def _reply(self, reply: AnswerCaller) -> None:
        waiting = self._waiting.pop(reply.caller, None)
        if waiting is None or waiting.done():  # the caller has given up
            return
        if isinstance(reply.result, ApiError):
            waiting.set_exception(reply.result)
        else:
            waiting.set_result(reply.result)

    async def _run(self) -> None:
        try:
            image = await self._insist(lambda: self._store.load(self._report))
            self._between_events.clear()
            await finish(self._apply(self.machine.start(image)), SLICE_S)
            self._between_events.set()
            early, self._early = self._early or [], None
            for report in early:
                self._report(report)
            if not self._loaded.done():
                self._loaded.set_result(None)
            while True:
                if not self._writes and self._between_events.is_set():
                    self._has_written.set()
                await self._to_write.wait()
                self._to_write.clear()
                while self._writes:
                    writing = map(self._write, self._next_writes())
                    for event in await gather_in_slices(writing, at_once=BEGUN_AT_ONCE):
                        if event is not None:
                            self._handle(event)
        except Fenced:
            self._lose()
        except Exception as error:
            self._fail(error)

    def _next_writes(self) -> list[Write]:
        """The oldest write, and those that may run in parallel with it: removals of other topics."""
        writes = [self._writes.popleft()]
        while (
            isinstance(writes[0], RemoveTopic)
            and self._writes
            and isinstance(self._writes[0], RemoveTopic)
            and len(writes) < REMOVALS_AT_ONCE
        ):
            writes.append(self._writes.popleft())
        return writes

    async def _write(self, write: Write) -> Event | None:
        store = self._store
        if isinstance(write, WriteStates):
            stored = await self._insist(lambda: store.write_states(write.states))
            return StatesWritten(write.states, stored)
        if isinstance(write, WriteAssignment):
            await self._insist(lambda: store.write_assignment(write.topic))
            return AssignmentWritten(write.topic)
        if isinstance(write, RemoveTopic):
            await self._insist(lambda: store.remove_topic(write.name))
            return TopicRemoved(write.name)
        if isinstance(write, AcceptBroker):
            await self._insist(lambda: store.accept_broker(write.broker))
            return BrokerAccepted(write.broker)
        await self._insist(lambda: store.refuse_deletion(write.names))
        return None

    async def _insist(self, attempt: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat an attempt until the store responds. Raises Fenced."""
        pause = PAUSE_S
        while True:
            try:
                return await attempt()
            except CoordinationError as error:
                log.warning("the controller retries: %s", error.message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_S)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._loaded.done():
                self._handle(Tick(asyncio.get_running_loop().time()))


def settings_of(
    config: BrokerConfig,
    dynamic: Mapping[str, str] | None = None,
    factors: InternalFactors = ONE_REPLICA,
) -> Settings:
    """A controller's settings; the cluster's `dynamic` configuration takes precedence."""

    def value(name: str) -> Any:
        text = (dynamic or {}).get(name)
        return config[name] if text is None else BROKER_KEYS[name].parse(text)

    return Settings(
        min_isr=value("min.insync.replicas"),
        unclean_election=value("unclean.leader.election.enable"),
        auto_rebalance=value("auto.leader.rebalance.enable"),
        imbalance_check_s=value("leader.imbalance.check.interval.seconds"),
        imbalance_percentage=value("leader.imbalance.per.broker.percentage"),
        offsets_factor=factors.offsets,
        transactions_factor=factors.transactions,
    )
