"""Copies the committed positions of consumer groups from the source to the target, translated.

Each round reads the positions of the selected groups in the partitions that this worker mirrors, even while their
members consume, translates them (records/offset_map.py, else aggregate/lookup.py), and commits changed ones. In the
target, a group continues at the record at which it would continue in the source, or at an earlier one if the mirror
is behind.

The target's own consumers come first. While a group has members there, its coordinator refuses the commit. A position
that the mirror has not set itself only moves forward; its own follow the source's backwards, too, even if the group
was deleted and created again. A worker that starts knows from the progress of each task which ones are the mirror's.
The worker repeats its commits every hour, because the target forgets the positions of an idle group. It never copies
the mirror's own groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..aggregate.lookup import Lookup, TooFar
from ..kafka.group_offsets import Position, commit, groups_in, positions_of
from ..partitions.assignment import TRANSIENT
from ..partitions.partition_task import PartitionTask
from ..partitions.stats import Counters

SYNC_S = 1.0
LIST_S = 5.0
REPEAT_S = 3600.0
TOO_FAR_S = 600.0
"""How long not to search again for an offset that was not found."""
KEPT_S = 24 * 3600.0
"""How long to remember the positions of a group that the source does not list: somebody may create it again."""
MOST_KEPT = 100_000
"""With more positions than this, those of groups that the source does not list are forgotten at once."""
AT_ONCE = 16
CONSUMER_TYPES = ("", "consumer")

Tasks = Callable[[], Mapping[TopicPartition, PartitionTask]]
"""This worker's tasks by the source's partition, at present."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copied:
    """A position at its last copy."""

    task: tuple[int, int]
    """The producer id and epoch of the task; they change when the target's topic is created again."""
    source: Position
    target_offset: int
    at: float
    is_ahead: bool = False
    """The source's position was ahead of the mirror, so this is the end of what was mirrored."""

    def in_target(self, *, keeps_epochs: bool) -> Position:
        """A replica has the source's leader epochs at the source's offsets; other topics have epochs of their own."""
        is_same = keeps_epochs and self.target_offset == self.source.offset
        return Position(self.target_offset, self.source.metadata, self.source.leader_epoch if is_same else -1)


class GroupSync:
    """The groups of one source."""

    def __init__(
        self,
        includes: Callable[[str], bool],
        at_source: ClusterClient,
        at_target: ClusterClient,
        tasks: Tasks,
        counters: Counters,
        *,
        keeps_epochs: bool = False,
        unmatched_in: Callable[[Collection[str]], list[str]] = lambda groups: [],
    ) -> None:
        """``keeps_epochs``: the target's topics have the source's leader epochs.

        ``unmatched_in`` returns the patterns that match none of the selected groups."""
        self._includes = includes
        self._at_source = at_source
        self._at_target = at_target
        self._lookup = Lookup(at_source, at_target)
        self._tasks = tasks
        self._counters = counters
        self._keeps_epochs = keeps_epochs
        self.groups: list[str] = []
        """Selected groups of the source."""
        self.unmatched: list[str] | None = None
        """Patterns that match no group of the source; None before the groups are listed."""
        self._unmatched_in = unmatched_in
        self.problems: dict[str, str] = {}
        """The reason why a group's positions are not copied, by group."""
        self._listed = -LIST_S
        self._copied: dict[tuple[str, TopicPartition], Copied] = {}
        self._too_far: dict[tuple[str, TopicPartition], tuple[Copied, str]] = {}
        """Positions that cannot be translated, and why."""

    async def sync(self) -> None:
        """Copy positions that changed since the last round; errors of a single group go to ``problems``.

        Raises BrokerError, ApiError if the groups cannot be listed."""
        now = time.monotonic()
        problem: Exception | None = None
        if now - self._listed >= LIST_S:
            try:
                groups = await self._list()
                if self.unmatched is None or groups != self.groups:
                    self.unmatched = self._unmatched_in(groups)
                self.groups, self._listed = groups, now
            except TRANSIENT as error:
                problem = error  # the groups that are known do not wait for a broker that does not respond
        tasks = self._tasks()
        mine, selected = {task.target for task in tasks.values()}, set(self.groups)
        self.problems = {group: words for group, words in self.problems.items() if group in selected}
        since = now - KEPT_S if len(self._copied) < MOST_KEPT else now
        self._copied = {
            key: copied
            for key, copied in self._copied.items()
            if key[1] in mine and (key[0] in selected or copied.at > since)
        }
        self._too_far = {
            key: found
            for key, found in self._too_far.items()
            if key[0] in selected and now - found[0].at < TOO_FAR_S
        }
        limit = asyncio.Semaphore(AT_ONCE)

        async def sync_group(group: str) -> None:
            async with limit:
                try:
                    problem = await self._copy(group, tasks)
                except TRANSIENT as error:
                    problem = f"group {group}: {error}"
                self._note(group, problem)

        await asyncio.gather(*map(sync_group, self.groups))
        if problem is not None:
            raise problem

    async def _list(self) -> list[str]:
        await self._at_source.metadata([])  # find new brokers
        return sorted(
            group.group_id
            for group in await groups_in(self._at_source)
            if group.group_id and group.protocol_type in CONSUMER_TYPES and self._includes(group.group_id)
        )

    async def _copy(self, group: str, tasks: Mapping[TopicPartition, PartitionTask]) -> str:
        """Copy changed positions; return the problem, or ""."""
        positions = await positions_of(self._at_source, group)
        wanted: dict[TopicPartition, Copied] = {}
        of_wanted: dict[TopicPartition, PartitionTask] = {}
        problem = ""
        now = time.monotonic()
        for where, position in positions.items():
            if (task := tasks.get(where)) is None or not _is_certain(task):
                continue
            key, identity = (group, task.target), _identity(task)
            before = self._copied.get(key)
            if before and before.task != identity:
                before = None
            is_ahead = position.offset > task.acknowledged.offset
            try:
                offset = await self._translate(key, task, position, before)
            except TooFar as error:
                problem = f"group {group}: {error}"
                if not self._why_too_far(key, task, position):
                    self._too_far[key] = Copied(identity, position, -1, now), str(error)
                continue
            found = Copied(identity, position, offset, now, is_ahead)
            is_same = before is not None and (before.source, before.target_offset) == (position, offset)
            if before is None or not is_same or now - before.at >= REPEAT_S:
                wanted[task.target], of_wanted[task.target] = found, task
            else:
                self._copied[key] = replace(found, at=before.at)
        if wanted:
            problem = await self._commit(group, wanted, of_wanted) or problem
        return problem

    async def _translate(
        self, key: tuple[str, TopicPartition], task: PartitionTask, position: Position, before: Copied | None
    ) -> int:
        """The target's offset. Raises TooFar, BrokerError, ApiError."""
        found = task.offsets.find(position.offset)
        if found is not None:
            return found
        is_there = position.offset <= task.acknowledged.offset
        if before and is_there and not before.is_ahead and before.source.offset == position.offset:
            return before.target_offset  # looked up before
        if why := self._why_too_far(key, task, position):
            raise TooFar(why)
        return await self._lookup.find(task, position.offset)

    def _why_too_far(self, key: tuple[str, TopicPartition], task: PartitionTask, position: Position) -> str:
        """Why this position was not found before; empty if it was not searched for."""
        known, why = self._too_far.get(key, (None, ""))
        is_it = known is not None and (known.task, known.source.offset) == (_identity(task), position.offset)
        return why if is_it else ""

    async def _commit(
        self,
        group: str,
        wanted: Mapping[TopicPartition, Copied],
        tasks: Mapping[TopicPartition, PartitionTask],
    ) -> str:
        """Commit the positions that the target permits; return the reason if there are none."""
        there = await positions_of(self._at_target, group)
        present = self._tasks()
        wanted = {  # the next round translates the others: their tasks have moved, or the topic was created again
            where: copied
            for where, copied in wanted.items()
            if present.get((task := tasks[where]).source) is task
            and _is_certain(task)
            and _identity(task) == copied.task
        }
        allowed = {
            where: copied
            for where, copied in wanted.items()
            if self._may(group, tasks[where], copied, there.get(where))
        }
        for where in wanted.keys() - allowed.keys():  # retry only once the source's position changes
            self._copied[group, where] = wanted[where]
        if not allowed:
            return ""
        translated = {
            where: copied.in_target(keeps_epochs=self._keeps_epochs) for where, copied in allowed.items()
        }
        refused: ApiError | None = None
        for where, error in (await commit(self._at_target, group, translated)).items():
            if error is ErrorCode.NONE:
                self._copied[group, where] = allowed[where]
                tasks[where].committed_for(group, allowed[where].target_offset)
                self._counters.positions += 1
            elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
                return f"group {group}: it has members in the target, so the mirror leaves its positions there alone"
            else:
                refused = ApiError(error, f"committing the positions of group {group}")
        if refused is not None:
            raise refused
        return ""

    def _may(self, group: str, task: PartitionTask, wanted: Copied, there: Position | None) -> bool:
        """Whether the mirror may set the position, which is ``there`` now."""
        if there is None:
            return True
        before = self._copied.get((group, task.target))
        if before is None and task.acknowledged.committed_for(group) == there.offset:
            return True  # an earlier worker has set it
        if before is not None:
            if before.target_offset == there.offset:
                return True  # it is the mirror's own
            if (before.source, before.target_offset) == (wanted.source, wanted.target_offset):
                return False  # somebody else has set it since
        return wanted.target_offset >= there.offset

    def _note(self, group: str, problem: str) -> None:
        if problem and self.problems.get(group) != problem:
            logger.warning("%s", problem)
        if problem:
            self.problems[group] = problem
        else:
            self.problems.pop(group, None)


def _is_certain(task: PartitionTask) -> bool:
    """Whether it is known what of the task the target has, as for one that waits at a gap."""
    is_open = task.gap is not None or not (task.is_recovering or task.is_stopped)
    return is_open and task.skip is None


def _identity(task: PartitionTask) -> tuple[int, int]:
    return task.acknowledged.producer_id, task.acknowledged.producer_epoch
