"""Accounts for each record of a failover, and says whether the counts add up; pure.

Records are numbered by their producer. A place is a partition and an offset. In the target, mirrored records are at the
source's offsets, up to the recovery point; the records that producers wrote after the promotion follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Place = tuple[int, int]
Read = tuple[Place, int]
"""A consumed record: its place and its number."""


@dataclass(frozen=True)
class Evidence:
    """Observations of the clients, and the final content of the target."""

    west: Mapping[int, Place]
    """Records that the source acknowledged."""
    east: Mapping[int, Place]
    """Records that the target acknowledged, after its promotion."""
    stored: Mapping[Place, int]
    """The whole topic in the target."""
    ends: Sequence[int]
    """The recovery point: where the mirrored records end, by partition."""
    positions: Sequence[int]
    """Where the group continued in the target, by partition."""
    before: Sequence[Read]
    """What the group consumed in the source."""
    after: Sequence[Read]
    """What it consumed in the target."""


class Account:
    """The counts, and the reasons why they do not add up."""

    def __init__(self, evidence: Evidence) -> None:
        self.seen = evidence

    @cached_property
    def produced(self) -> set[int]:
        """Records that either cluster acknowledged. The producer sends the others again to the target."""
        return {*self.seen.west, *self.seen.east}

    @cached_property
    def kept(self) -> set[int]:
        """Records that are in the target at the end."""
        return set(self.seen.stored.values())

    @cached_property
    def mirrored(self) -> dict[Place, int]:
        """Records in the target that the mirror copied."""
        return {place: number for place, number in self.seen.stored.items() if self._is_mirrored(place)}

    @cached_property
    def missing(self) -> set[int]:
        """Records that the source acknowledged, and that the target lacks."""
        return self.produced - self.kept

    @cached_property
    def consumed(self) -> set[int]:
        return {number for _, number in (*self.seen.before, *self.seen.after)}

    @property
    def missing_but_consumed(self) -> int:
        """Missing records that the group had consumed in the source."""
        return len(self.missing & self.consumed)

    @property
    def repeated(self) -> int:
        """How many times the group consumed a record that it had consumed before."""
        return len(self.seen.before) + len(self.seen.after) - len(self.consumed)

    @property
    def read_again(self) -> int:
        """Repeated records behind the group's last position that the mirror copied."""
        return len({*self.seen.before} & {read for read in self.seen.after if self._is_mirrored(read[0])})

    @property
    def sent_again(self) -> int:
        """Repeated records that the source had stored without an acknowledgement, so the producer sent them again."""
        return self.repeated - self.read_again

    def problems(self) -> Iterator[str]:
        """The reasons why the counts do not add up; none after a good failover."""
        seen = self.seen
        if any(end < 0 for end in seen.ends):
            yield f"the recovery point is not known: {list(seen.ends)}"
            return
        if (have := len(self.mirrored)) != (end := sum(seen.ends)):
            yield f"the recovery point counts {end:,} mirrored records, the target has {have:,}"
        if wrong := [n for n, at in seen.west.items() if self._is_mirrored(at) and seen.stored.get(at) != n]:
            yield f"{_some(wrong)} below the recovery point: not in the target at the source's offset"
        if wrong := [number for number, at in seen.east.items() if seen.stored.get(at) != number]:
            yield f"{_some(wrong)}: acknowledged by the target, and not in it"
        behind = {number for place, number in seen.stored.items() if not self._is_mirrored(place)}
        if wrong := sorted(behind - seen.east.keys()):
            yield f"{_some(wrong)} behind the recovery point: not acknowledged by the target"
        if wrong := sorted(self.missing - {n for n, at in seen.west.items() if not self._is_mirrored(at)}):
            yield f"{_some(wrong)}: missing, although not behind the recovery point"
        if wrong := sorted(self.kept - self.produced):
            yield f"{_some(wrong)}: in the target, and never acknowledged"
        yield from self._problems_of_the_group()

    def _problems_of_the_group(self) -> Iterator[str]:
        seen = self.seen
        ahead = {read for read in seen.stored.items() if read[0][1] < seen.positions[read[0][0]]}
        if wrong := sorted(number for _, number in ahead - {*seen.before}):
            yield f"{_some(wrong)}: never consumed, and the group's position in the target is beyond"
        got = Counter(seen.after)
        if wrong := sorted(number for _, number in seen.stored.items() - ahead - got.keys()):
            yield f"{_some(wrong)}: in the target, and not consumed there"
        if wrong := sorted(number for (_, number), times in got.items() if times > 1):
            yield f"{_some(wrong)}: consumed twice in the target"
        if wrong := sorted(number for _, number in got.keys() - (seen.stored.items() - ahead)):
            yield f"{_some(wrong)}: consumed in the target, and not there or before the group's position"
        if self.consumed - self.missing != self.kept:
            yield f"the group consumed {len(self.consumed - self.missing):,} of {len(self.kept):,} records"

    def _is_mirrored(self, place: Place) -> bool:
        return place[1] < self.seen.ends[place[0]]


def _some(numbers: Sequence[int]) -> str:
    """The number of records, and the first of them."""
    count = len(numbers)
    return f"record {numbers[0]}" if count == 1 else f"{count:,} records (the first is {numbers[0]})"
