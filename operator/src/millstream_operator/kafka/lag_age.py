"""The age of the record at an offset, from few requests to brokers; pure.

ListOffsets by time returns the first offset at or after a time. Every request for a log's end gives the same kind of
fact: the records that follow are younger than the request. Such facts stay true, so ``OffsetTimes`` keeps them: after a
while, the age of the record at a committed offset is known without another request. Unknown
ages are searched for, all partitions in one request: double the age until no record is older, then halve the step. An
age is accurate to ``STEP_S`` or a fifth, whichever is more; on which side of a limit it lies is exact.

Times are milliseconds since 1970, ages are seconds. A record counts from its timestamp, or from the request before
which it was appended if that is later.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .records import Partition

STEP_S = 15.0  # more than the time between two reconciles: there is no search between them
OLDEST_S = 2**31  # 68 years: the end of a search
KEPT = 64  # facts kept per partition, 16 bytes each
UNSEEN_S = 3600.0  # facts of a partition are dropped that nobody has requested for this long
ROUNDS = 64  # most requests of one search, for a partition never seen before

Find = Callable[[Mapping[Partition, int]], Mapping[Partition, int]]
"""ListOffsets by time: the first offset at or after a time, by partition; -1 if there is none."""


class Wanted(NamedTuple):
    """An offset whose record's age is needed. ``limit_s`` is an age that the result must not round across."""

    partition: Partition
    offset: int
    limit_s: int | None = None


@dataclass(slots=True)
class _Facts:
    """``offsets[i]`` is the first offset whose record is not older than ``times[i]``; both only grow."""

    times: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))

    def learn(self, time: int, offset: int) -> None:
        index = bisect_left(self.times, time)
        if index == len(self.times) and self.offsets and offset < self.offsets[-1]:
            del self.times[:], self.offsets[:]  # the log is shorter: it was recreated, or truncated
            index = 0
        if index < len(self.times) and self.times[index] == time:
            return
        # producers' timestamps need not grow, facts do
        if index > 0:
            offset = max(offset, self.offsets[index - 1])
        if index < len(self.offsets):
            offset = min(offset, self.offsets[index])
        self.times.insert(index, time)
        self.offsets.insert(index, offset)
        if len(self.times) > KEPT:  # thin out the older half: an age is accurate to a fraction of itself
            del self.times[1 : KEPT // 2 : 2], self.offsets[1 : KEPT // 2 : 2]

    def forget_after(self, now: int) -> None:
        """Drop facts from the future: the clock was set back."""
        while self.times and self.times[-1] > now:
            self.times.pop()
            self.offsets.pop()

    def ages_ms(self, offset: int, now: int) -> tuple[int, int | None, int]:
        """The record is older than the first, not older than the second (None: unknown); the third lies between."""
        index = bisect_right(self.offsets, offset)  # the first fact after the record
        older = max(0, now - self.times[index]) if index < len(self.times) else 0
        if index == 0:
            return older, None, older
        oldest = max(older, now - self.times[index - 1])
        if index == len(self.times):
            return older, oldest, oldest
        before, behind = self.offsets[index - 1], self.offsets[index]
        share = (offset - before) / (behind - before)
        return older, oldest, oldest - int(share * (oldest - older))


class OffsetTimes:
    """The facts about the partitions of one cluster. Not thread-safe."""

    def __init__(self) -> None:
        self._facts: dict[Partition, _Facts] = {}
        self._topic_ids: dict[str, str | None] = {}

    def saw_topics(self, topic_ids: Mapping[str, str | None]) -> None:
        """Record the ids of topics. Facts about an earlier topic of the same name are forgotten."""
        replaced = {name for name, one in topic_ids.items() if self._topic_ids.get(name, one) != one}
        if replaced:
            self._facts = {at: facts for at, facts in self._facts.items() if at.topic not in replaced}
        self._topic_ids = {**self._topic_ids, **topic_ids}

    def saw_ends(self, ends: Mapping[Partition, int], now_ms: int) -> None:
        """Record the present ends of the logs."""
        for partition, end in ends.items():
            facts = self._facts.setdefault(partition, _Facts())
            facts.forget_after(now_ms)
            facts.learn(now_ms, end)

    def forget_unseen(self, now_ms: int) -> None:
        """Forget partitions that nobody has requested for long: their groups or topics are gone."""
        since = now_ms - int(UNSEEN_S * 1000)
        for partition in [
            one for one, facts in self._facts.items() if not facts.times or facts.times[-1] < since
        ]:
            del self._facts[partition]
        known = {partition.topic for partition in self._facts}
        self._topic_ids = {name: one for name, one in self._topic_ids.items() if name in known}

    def ages(self, wanted: Iterable[Wanted], now_ms: int, find: Find) -> dict[Wanted, int]:
        """The age of each record in seconds, rounded up; calls ``find`` if too little is known."""
        by_partition: dict[Partition, list[Wanted]] = {}
        for one in wanted:
            by_partition.setdefault(one.partition, []).append(one)
        for _ in range(ROUNDS):
            asked = {}
            for partition, several in by_partition.items():
                facts = self._facts.setdefault(partition, _Facts())
                ages = (_unclear(facts, one, now_ms) for one in several)
                if (age_ms := next((age for age in ages if age is not None), None)) is not None:
                    asked[partition] = max(0, now_ms - age_ms)
            if not asked:
                break
            for partition, offset in find(asked).items():
                behind_all = 1 + max(one.offset for one in by_partition[partition])
                self._facts[partition].learn(asked[partition], behind_all if offset < 0 else offset)
        return {one: self._age(one, now_ms) for several in by_partition.values() for one in several}

    def _age(self, wanted: Wanted, now_ms: int) -> int:
        older, oldest, likely = self._facts[wanted.partition].ages_ms(wanted.offset, now_ms)
        if oldest is None:
            return OLDEST_S
        return max(1, math.ceil(likely / 1000), older // 1000 + (older > 0))


def _unclear(facts: _Facts, wanted: Wanted, now_ms: int) -> int | None:
    """The next age to request, in milliseconds; None if the age is known well enough."""
    older, oldest, _ = facts.ages_ms(wanted.offset, now_ms)
    if oldest is None:
        return None if older >= min(OLDEST_S * 1000, now_ms) else min(max(1000, 2 * older), OLDEST_S * 1000)
    if wanted.limit_s is not None and older < wanted.limit_s * 1000 < oldest:
        return wanted.limit_s * 1000
    if oldest - older > max(STEP_S * 1000, oldest / 5):
        return (older + oldest) // 2
    return None
