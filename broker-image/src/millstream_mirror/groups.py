"""Copies the committed positions of consumer groups from the source to the target, translated.

Each round reads the positions of the selected groups in the partitions that this worker mirrors, even while their
members consume, translates them (offsets.py, else lookup.py), and commits changed ones. In the target, a group
continues at the record at which it would continue in the source, or at an earlier one if the mirror is behind.

The target's own consumers come first. While a group has members there, its coordinator refuses the commit. A position
that another client has committed there only moves forward. Commits are repeated every hour, because the target forgets
the positions of an idle group. The mirror's own groups are never copied.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from .committed import Position, commit, groups_in, positions_of
from .lane import Lane
from .lookup import Lookup, TooFar
from .opening import TRANSIENT
from .stats import Counters

LOOK_S = 1.0
LIST_S = 5.0
REPEAT_S = 3600.0
AT_ONCE = 16
CONSUMER_TYPES = ("", "consumer")

Lanes = Callable[[], Mapping[TopicPartition, Lane]]
"""This worker's lanes by the source's partition, at present."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copied:
    """A position at its last copy."""

    lane: tuple[int, int]
    """The producer id and epoch of the lane; they change when the target's topic is created again."""
    source: Position
    target_offset: int
    at: float


class GroupSync:
    """The groups of one source."""

    def __init__(
        self,
        includes: Callable[[str], bool],
        at_source: ClusterClient,
        at_target: ClusterClient,
        lanes: Lanes,
        counters: Counters,
        *,
        keeps_epochs: bool = False,
    ) -> None:
        """``keeps_epochs``: the target's topics have the source's leader epochs."""
        self._includes = includes
        self._at_source = at_source
        self._at_target = at_target
        self._lookup = Lookup(at_target)
        self._lanes = lanes
        self._counters = counters
        self._keeps_epochs = keeps_epochs
        self.groups: list[str] = []
        """Selected groups of the source."""
        self.problems: dict[str, str] = {}
        """The reason why a group's positions are not copied, by group."""
        self._listed = -LIST_S
        self._copied: dict[tuple[str, TopicPartition], Copied] = {}

    async def look(self) -> None:
        """Copy positions that changed since the last round; errors of a single group go to ``problems``.

        Raises BrokerError, ApiError if the groups cannot be listed."""
        now = time.monotonic()
        if now - self._listed >= LIST_S:
            self.groups = await self._list()
            self._listed = now
            for gone in self.problems.keys() - set(self.groups):
                del self.problems[gone]
        lanes = self._lanes()
        mine = {lane.target for lane in lanes.values()}
        self._copied = {
            key: one for key, one in self._copied.items() if key[1] in mine and key[0] in self.groups
        }
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(group: str) -> None:
            async with limit:
                try:
                    problem = await self._copy(group, lanes)
                except TRANSIENT as error:
                    problem = f"group {group}: {error}"
                self._note(group, problem)

        await asyncio.gather(*map(one, self.groups))

    async def _list(self) -> list[str]:
        await self._at_source.metadata([])  # find new brokers
        return sorted(
            group.group_id
            for group in await groups_in(self._at_source)
            if group.protocol_type in CONSUMER_TYPES and self._includes(group.group_id)
        )

    async def _copy(self, group: str, lanes: Mapping[TopicPartition, Lane]) -> str:
        """Copy changed positions; return the problem, or ""."""
        positions = await positions_of(self._at_source, group)
        wanted: dict[TopicPartition, Copied] = {}
        problem = ""
        now = time.monotonic()
        for where, position in positions.items():
            lane = lanes.get(where)
            if lane is None or lane.recovering or lane.must_compare:
                continue
            progress = lane.acknowledged
            identity = (progress.producer_id, progress.producer_epoch)
            before = self._copied.get((group, lane.target))
            if before and before.lane != identity:
                before = None
            try:
                offset = await self._translate(lane, position, before)
            except TooFar as error:
                problem = f"group {group}: {error}"
                continue
            is_same = before is not None and (before.source, before.target_offset) == (position, offset)
            if before is None or not is_same or now - before.at >= REPEAT_S:
                wanted[lane.target] = Copied(identity, position, offset, now)
        if wanted:
            problem = await self._commit(group, wanted) or problem
        return problem

    async def _translate(self, lane: Lane, position: Position, before: Copied | None) -> int:
        found = lane.offsets.find(position.offset)
        if found is not None:
            return found
        if before and before.source.offset == position.offset <= lane.offsets.start.offset:
            return before.target_offset  # looked up before
        return await self._lookup.find(lane, position.offset)

    async def _commit(self, group: str, wanted: Mapping[TopicPartition, Copied]) -> str:
        """Commit the positions that the target permits; return the reason if there are none."""
        there = await positions_of(self._at_target, group)
        allowed = {
            where: one for where, one in wanted.items() if self._may(group, where, one, there.get(where))
        }
        for where in wanted.keys() - allowed.keys():  # retry only once the source's position changes
            self._copied[group, where] = wanted[where]
        if not allowed:
            return ""
        translated = {where: self._translated(one) for where, one in allowed.items()}
        for where, error in (await commit(self._at_target, group, translated)).items():
            if error is ErrorCode.NONE:
                self._copied[group, where] = allowed[where]
                self._counters.positions += 1
            elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
                return f"group {group}: it has members in the target, so the mirror leaves its positions there alone"
            else:
                raise ApiError(error, f"committing the positions of group {group}")
        return ""

    def _translated(self, one: Copied) -> Position:
        """A replica has the source's leader epochs at the source's offsets; other topics have epochs of their own."""
        is_same = self._keeps_epochs and one.target_offset == one.source.offset
        return Position(one.target_offset, one.source.metadata, one.source.leader_epoch if is_same else -1)

    def _may(self, group: str, where: TopicPartition, wanted: Copied, there: Position | None) -> bool:
        if there is None or wanted.target_offset > there.offset:
            return True
        before = self._copied.get((group, where))
        return before is not None and before.target_offset == there.offset

    def _note(self, group: str, problem: str) -> None:
        if problem and self.problems.get(group) != problem:
            logger.warning("%s", problem)
        if problem:
            self.problems[group] = problem
        else:
            self.problems.pop(group, None)
