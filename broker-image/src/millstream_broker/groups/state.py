"""State shared by the parts of the group coordinator: the groups, the time, the effects, and writes in flight.

Nothing here or above uses a clock, a socket or a file. ``advance`` sets the time; effects collect until the
driver takes them with ``take_effects`` after each event, and carries them out in order. The event ``stored``
completes a ``StoreRecords`` effect; until then its change has not happened: no caller learns of it, and it is
not visible in memory. Before it, the event ``late`` may come, once: the records are in the log, but not on enough
replicas in time. The caller gets an error then, and the write stays pending: while this broker leads the partition,
its records cannot be truncated, and ``stored`` follows. Otherwise ``unload`` does, and the next load reads their fate
from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from millstream_kafka.protocol.errors import ErrorCode

from .group import Group, GroupState, Member
from .messages import Caller, Effect, GroupConfig, KeyValue, Reply, StoreRecords
from .records import group_record, partition_for
from .timers import Timers

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member has no id to send heartbeats with; without a reply to its JoinGroup by then, it is dropped."""

TimerKey = tuple[str, str, str]
"""(kind, group id, member id or "")."""

Continuation = Callable[[ErrorCode], None]


class CoordinatorState:
    def __init__(
        self, config: GroupConfig, new_id: Callable[[], str], topic_id: Callable[[str], UUID]
    ) -> None:
        self.config = config
        self.groups: dict[str, Group] = {}
        """Only groups of partitions that are loaded."""
        self.now = 0
        self.wall_clock = 0
        self._new_id = new_id
        self._topic_id = topic_id
        """The id of the topic that has a name now; ZERO_UUID if this broker knows none."""
        self._timers: Timers[TimerKey] = Timers()
        self._effects: list[Effect] = []
        self._writes: dict[int, tuple[int, Continuation, Continuation | None]] = {}
        """Partition, what follows, and what follows if it is late."""
        self._next_write = 1
        """The number of the next ``StoreRecords``, which rises."""
        self._active: set[int] = set()
        self._loading: set[int] = set()

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def stored(self, writes: Iterable[int], error: ErrorCode) -> None:
        """The appends of these ``StoreRecords`` have ended. Those abandoned by ``unload`` are ignored."""
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

    # ---- for the coordinator's parts

    def _reply(self, caller: Caller, result: object) -> None:
        self._effects.append(Reply(caller, result))

    def _replier(self, caller: Caller) -> Callable[[object], None]:
        """Replies to the caller, once: a write that was late may be stored after that."""
        replied = False

        def reply(result: object) -> None:
            nonlocal replied
            if not replied:
                replied = True
                self._reply(caller, result)

        return reply

    def _store(
        self,
        group_id: str,
        records: Sequence[KeyValue],
        then: Continuation,
        if_late: Continuation | None = None,
    ) -> None:
        partition = self.partition_of(group_id)
        self._writes[self._next_write] = (partition, then, if_late)
        self._effects.append(StoreRecords(self._next_write, partition, records))
        self._next_write += 1

    def _store_group(
        self,
        group: Group,
        then: Continuation,
        assignments: dict[str, bytes] | None = None,
        if_late: Continuation | None = None,
    ) -> None:
        self._store(group.group_id, [group_record(group, assignments)], then, if_late)

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self.config.offsets_topic_num_partitions)

    def unavailable(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """The error why this coordinator cannot serve the group now, or NONE."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        partition = self.partition_of(group_id)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if partition not in self._active:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def _enter(self, group: Group, state: GroupState) -> None:
        group.state = state
        group.state_timestamp = self.wall_clock

    def _restart_session(self, group: Group, member: Member) -> None:
        timeout = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._timers.set(("session", group.group_id, member.member_id), self.now + timeout)

    def _end_session(self, group: Group, member_id: str) -> None:
        self._timers.cancel(("session", group.group_id, member_id))

    @staticmethod
    def _check_member(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check the sender: a static member must be the one that holds its group.instance.id (KIP-345)."""
        if instance_id is not None:
            holder = group.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
