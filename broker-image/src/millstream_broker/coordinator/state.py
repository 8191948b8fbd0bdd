"""State that the parts of a coordinator share: time, timers, effects, writes in flight, and which partitions it has.

Nothing here or in a shard uses a clock, a socket or a file. ``advance`` sets the time; effects collect until the
runtime takes them with ``take_effects`` after each event, and carries them out in order. The event ``stored``
completes a ``StoreRecords`` effect; until then its change has not happened: no caller learns of it, and it is
not visible in memory. Before it, the event ``late`` may come, once: the records are in the log, but not on enough
replicas in time. The caller gets an error then, and the write stays pending: while this broker leads the partition,
its records cannot be truncated, and ``stored`` follows. Otherwise ``unloaded`` does, and the next load reads their fate
from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from millstream_kafka.protocol.errors import ErrorCode

from .effects import (
    Caller,
    Effect,
    KeyValue,
    Reply,
    StoreMarker,
    StoreRecords,
    TransactionalProducer,
    TransactionMarker,
)
from .partitioner import partition_for
from .timers import Timers

TimerKey = TypeVar("TimerKey", bound=Hashable)

Continuation = Callable[[ErrorCode], None]


class CoordinatorState(Generic[TimerKey]):
    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count
        """Partitions of the internal topic."""
        self.now = 0
        """Milliseconds of a monotonic clock."""
        self.wall_clock = 0
        self.timers: Timers[TimerKey] = Timers()
        self.next_write = 1
        """The number of the next ``StoreRecords``, which rises."""
        self._effects: list[Effect] = []
        self._writes: dict[int, tuple[int, Continuation, Continuation | None]] = {}
        """Partition, what follows, and what follows if it is late."""
        self._active: set[int] = set()
        self._loading: set[int] = set()

    def advance(self, now: int, wall_clock: int) -> Iterator[TimerKey]:
        """Set the time, and return the timers that are due; handling one may set others, even due ones."""
        self.now, self.wall_clock = now, wall_clock
        while (key := self.timers.pop_due(now)) is not None:
            yield key

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def stored(self, writes: Iterable[int], error: ErrorCode) -> None:
        """The appends of these ``StoreRecords`` have ended. Those abandoned by ``unloaded`` are ignored."""
        for write in writes:
            if write in self._writes:
                _, continuation, _ = self._writes.pop(write)
                continuation(error)

    def late(self, writes: Iterable[int], error: ErrorCode) -> None:
        """These writes are in the log, but not committed in time."""
        for write in writes:
            if write in self._writes:
                partition, continuation, if_late = self._writes[write]
                self._writes[write] = partition, continuation, None
                if if_late is not None:
                    if_late(error)

    # ---- partitions of the internal topic

    def begin_load(self, partition: int) -> bool:
        """Begin to load a partition; False if it is already loaded."""
        if partition in self._active:
            return False
        self._loading.add(partition)
        return True

    def is_active(self, partition: int) -> bool:
        """Whether the partition has been loaded."""
        return partition in self._active

    def loaded(self, partition: int) -> None:
        self._loading.discard(partition)
        self._active.add(partition)

    def unloading(self, partition: int) -> None:
        """Another coordinator has the partition now. Redirect waiting callers, then call ``unloaded``."""
        self._loading.discard(partition)
        self._active.discard(partition)

    def unloaded(self, partition: int) -> None:
        """End the writes in flight: nobody will learn their fate here."""
        given_up = [write for write, (written_to, _, _) in self._writes.items() if written_to == partition]
        self.stored(given_up, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def partition_of(self, key: str) -> int:
        return partition_for(key, self.partition_count)

    def unavailable(self, key: str) -> ErrorCode:
        """The error why this coordinator cannot serve the key now, or NONE."""
        partition = self.partition_of(key)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if partition not in self._active:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    # ---- for the coordinator's parts

    def reply(self, caller: Caller, result: object) -> None:
        self._effects.append(Reply(caller, result))

    def replier(self, caller: Caller) -> Callable[[object], None]:
        """Replies to the caller, once: a write that was late may be stored after that."""
        replied = False

        def reply(result: object) -> None:
            nonlocal replied
            if not replied:
                replied = True
                self.reply(caller, result)

        return reply

    def store(
        self,
        key: str,
        records: Sequence[KeyValue],
        then: Continuation,
        if_late: Continuation | None = None,
        producer: TransactionalProducer | None = None,
        *,
        is_end: bool = False,
    ) -> None:
        """Append records to the partition that holds the key, perhaps as part of a producer's transaction.

        Those of an end may have any size.
        """
        partition = self.partition_of(key)
        self._writes[self.next_write] = (partition, then, if_late)
        self._effects.append(StoreRecords(self.next_write, partition, records, producer, is_end))
        self.next_write += 1

    def store_marker(self, partition: int, marker: TransactionMarker, then: Continuation) -> None:
        """Append a marker to a partition. It is never late: its sender repeats one that is not committed in time."""
        self._writes[self.next_write] = (partition, then, None)
        self._effects.append(StoreMarker(self.next_write, partition, marker))
        self.next_write += 1
