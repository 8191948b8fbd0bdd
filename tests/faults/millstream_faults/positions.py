"""The invariants of positions without a group membership: a read finds the last committed position.

A group's position in a partition of a name is a register. Writes are commits, the deletion of the group (no position
is left) and the deletion of the topic (no position is left for its successor). A write takes effect once: between its
request and its response, or at any time after its request if no response came. A read finds a write that no other
write has certainly replaced.

position      a position was found that was replaced, deleted with its group, or never committed
inherited     a recreated topic has a position of its predecessor
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .history import (
    NEVER,
    Committed,
    CommitUnknown,
    Event,
    FoundCommitted,
    GroupDeleted,
    TopicDeleted,
    TopicLost,
)
from .topics import Lives
from .violations import Violation

SIMPLE = "position"
"""Prefix of the names of this group's clients."""


class Write(NamedTuple):
    offset: int
    asked: float
    answered: float
    topic: str


Excuse = Callable[[FoundCommitted], bool]


def check_positions(events: Iterable[Event], lives: Lives, is_excused: Excuse) -> list[Violation]:
    """Violations. ``is_excused`` tells whether a former coordinator may have sent the answer."""
    writes: dict[tuple[str, int], list[Write]] = defaultdict(list)
    reads: dict[tuple[str, int], list[FoundCommitted]] = defaultdict(list)
    everywhere: list[Write] = []
    for event in events:
        match event:
            case Committed(at, who, partition, offset, topic, asked) if who.startswith(SIMPLE):
                writes[lives.name(topic), partition].append(Write(offset, asked, at, topic))
            case CommitUnknown(at, who, partition, offset, topic) if who.startswith(SIMPLE):
                writes[lives.name(topic), partition].append(Write(offset, at, float("inf"), topic))
            case FoundCommitted(who=who) if who.startswith(SIMPLE):
                reads[lives.name(event.topic), event.partition].append(event)
            case GroupDeleted(at, _, asked):
                everywhere.append(Write(-1, asked, float("inf") if at == NEVER else at, ""))
    deletions: dict[str, list[Write]] = defaultdict(list)
    for deleted in lives.deleted.values():
        deletions[lives.name(deleted.topic)].append(_deletion(deleted))
    found: list[Violation] = []
    for (name, partition), of_partition in reads.items():
        register = [Write(-1, NEVER, NEVER, ""), *writes[name, partition], *everywhere, *deletions[name]]
        for read in of_partition:
            if lives.is_certain(read.topic, read.asked, read.at):
                found += _check_read(read, register, lives, is_excused)
    return found


def _deletion(event: TopicDeleted | TopicLost) -> Write:
    return Write(-1, event.asked, event.at, event.topic)


def _check_read(
    read: FoundCommitted, register: Sequence[Write], lives: Lives, is_excused: Excuse
) -> list[Violation]:
    begun = max((one.asked for one in register if one.answered < read.asked), default=NEVER)
    possible = [one for one in register if one.asked <= read.at and one.answered >= begun]
    if any(one.offset == read.offset for one in possible) or is_excused(read):
        return []
    former = [
        one.topic for one in register if one.offset == read.offset and one.topic not in ("", read.topic)
    ]
    kind = "inherited" if former else "position"
    text = (
        f"{read.who} found position {read.offset}, possible were {sorted({one.offset for one in possible})}"
    )
    if former:
        text += f"; it is one of {lives.name(former[-1])} {former[-1]}, which was deleted"
    concerns = (read.partition, read.offset, None, None, read.at, read.topic)
    return [Violation(kind, text, *concerns)]
