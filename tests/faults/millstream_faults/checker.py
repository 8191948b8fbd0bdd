"""The invariants, over a whole history and the logs that are left. Pure: the same history gives the same violations.

lost          an acknowledged record, or one that was read, is in the log, at its offset
duplicated    a record is there once
order         the numbers of a writer ascend in a partition
value         an offset has one value: whoever reads it or is told of it, whenever, from whichever leader
foreign       every record is one that a writer wrote, in the partition it was written to
gap           offsets follow each other, in the log and in what one session reads
backwards     what one session reads rises
skipped       the group read all that is below what it committed
commit        a committed offset never goes back; who is no member may be told of an earlier one by a coordinator that
              slept or was cut off and does not know yet that another has taken over (as in Kafka), but nobody else
failed        no producer gives up, as every fault ends
trouble       nothing happens that must not happen to a client or a broker
replicas      the replicas' logs are equal, byte for byte
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .history import (
    UNKNOWN,
    Acknowledged,
    Committed,
    CommitUnknown,
    Event,
    Failed,
    FoundCommitted,
    Read,
    Struck,
    Trouble,
)

GROUP = "group-"
"""How the sessions of the group's members are called."""
ZOMBIES = ("pause", "cut", "isolate")
"""Faults after which a broker may believe that it leads what it does not any more: their first words."""
AWAKE_S = 3.0
"""How long it may take until such a broker knows better."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold; where it concerns a record or an offset, which."""

    kind: str
    text: str
    partition: int | None = None
    offset: int | None = None
    writer: str | None = None
    number: int | None = None
    at: float | None = None
    """When somebody was told what is wrong, where that is one moment."""


class Entry(NamedTuple):
    """A record of the log that is left."""

    offset: int
    writer: str
    partition: int
    number: int


class Batch(NamedTuple):
    """A batch as a replica has it on its disk."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    length: int


Value = tuple[str, int]


def check(events: Iterable[Event], log: Mapping[int, Sequence[Entry]]) -> list[Violation]:
    """Everything that is wrong with this history, given each partition's log as it is at the end."""
    found: list[Violation] = []
    at_offset: dict[int, dict[int, Value]] = {}
    for partition, entries in log.items():
        at_offset[partition] = {entry.offset: (entry.writer, entry.number) for entry in entries}
        found += _check_log(partition, entries)
    places = {
        partition: {value: offset for offset, value in values.items()}
        for partition, values in at_offset.items()
    }
    sessions: dict[tuple[str, int], int] = {}
    told: dict[int, dict[int, Value]] = defaultdict(dict)  # beyond what the log has
    covered: dict[int, set[int]] = defaultdict(set)
    commits: list[Committed | CommitUnknown | FoundCommitted] = []
    zombies: list[Struck] = []
    for event in events:
        match event:
            case Acknowledged(_, who, partition, number, offset):
                place = places.get(partition, {}).get((who, number))
                if place is None or offset not in (place, UNKNOWN):
                    text = f"{who} {number} was acknowledged at {offset}, is "
                    text += "nowhere" if place is None else f"at {place}"
                    found.append(Violation("lost", text, partition, offset, who, number))
                if offset != UNKNOWN:
                    values = at_offset.get(partition, {})
                    found += _same_value(event, (who, number), values, told[partition])
            case Read(_, who, partition, offset, writer, number):
                values = at_offset.get(partition, {})
                if offset not in values:
                    text = f"{who} read {writer} {number}, which the log does not have any more"
                    found.append(Violation("lost", text, partition, offset, writer, number))
                found += _same_value(event, (writer, number), values, told[partition])
                before = sessions.get((who, partition))
                if before is not None and offset != before + 1:
                    kind = "backwards" if offset <= before else "gap"
                    text = f"{who} read offset {offset} after {before}"
                    found.append(Violation(kind, text, partition, offset, writer, number))
                sessions[who, partition] = offset
                if who.startswith(GROUP):
                    covered[partition].add(offset)
            case Struck(text=text) if text.startswith(ZOMBIES):
                zombies.append(event)
            case Committed() | CommitUnknown() | FoundCommitted():
                commits.append(event)
            case Failed(_, who, partition, number, error):
                found.append(Violation("failed", f"{who} {number}: {error}", partition, None, who, number))
            case Trouble(_, who, text):
                found.append(Violation("trouble", f"{who}: {text}"))
    for partition in sorted({event.partition for event in commits}):
        of_partition = [event for event in commits if event.partition == partition]
        found += _check_commits(partition, of_partition, zombies)
        found += _check_coverage(partition, of_partition, covered[partition])
    return found


def _same_value(
    event: Acknowledged | Read, value: Value, log: Mapping[int, Value], told: dict[int, Value]
) -> list[Violation]:
    known = log.get(event.offset) or told.setdefault(event.offset, value)
    if known == value:
        return []
    text = f"{event.who} was told of {value[0]} {value[1]}, others of {known[0]} {known[1]}"
    return [Violation("value", text, event.partition, event.offset, *value)]


def _check_log(partition: int, entries: Sequence[Entry]) -> list[Violation]:
    found: list[Violation] = []
    first: dict[Value, int] = {}
    last: dict[str, int] = {}
    expected = 0
    for offset, writer, written_to, number in entries:
        if offset != expected:
            found.append(Violation("gap", f"the log has {offset} after {expected - 1}", partition, offset))
        expected = offset + 1
        if written_to != partition:
            text = f"the record is {writer} {number} of partition {written_to}"
            found.append(Violation("foreign", text, partition, offset, writer, number))
        elif (writer, number) in first:
            text = f"{writer} {number} is here a second time, first at {first[writer, number]}"
            found.append(Violation("duplicated", text, partition, offset, writer, number))
        elif number < last.get(writer, -1):
            text = f"{writer} {number} comes after {last[writer]}"
            found.append(Violation("order", text, partition, offset, writer, number))
        first.setdefault((writer, number), offset)
        last[writer] = max(number, last.get(writer, -1))
    return found


def _check_commits(
    partition: int,
    events: Sequence[Committed | CommitUnknown | FoundCommitted],
    zombies: Sequence[Struck],
) -> list[Violation]:
    """Whoever asks after a position was acknowledged, or seen by somebody, must not be told of an earlier one.

    A commit that was tried and never answered may still be under way, and count when it arrives.
    """
    found: list[Violation] = []
    tried = [event for event in events if isinstance(event, CommitUnknown)]
    known = [event for event in events if not isinstance(event, CommitUnknown)]
    times: list[float] = []
    floors: list[int] = []
    for event in sorted(known, key=lambda event: event.at):
        floor = floors[-1] if floors else -1
        if isinstance(event, FoundCommitted):
            place = bisect_right(times, event.asked)
            needed = floors[place - 1] if place else -1
            if event.offset < needed:
                if any(one.offset == event.offset and one.at <= event.at for one in tried):
                    floor = event.offset
                elif not _is_stale(event, floors, zombies):
                    text = f"{event.who} was told that {event.offset} is committed, after {needed} was"
                    found.append(Violation("commit", text, partition, event.offset, at=event.at))
        times.append(event.at)
        floors.append(max(floor, event.offset))
    return found


def _is_stale(event: FoundCommitted, before: Sequence[int], zombies: Sequence[Struck]) -> bool:
    """Whether it is what a coordinator knew that was one before."""
    return (
        not event.who.startswith(GROUP)
        and event.offset in before
        and any(fault.at <= event.at and event.asked <= fault.until + AWAKE_S for fault in zombies)
    )


def _check_coverage(
    partition: int,
    events: Sequence[Committed | CommitUnknown | FoundCommitted],
    covered: set[int],
) -> list[Violation]:
    end = max((event.offset for event in events if isinstance(event, Committed)), default=0)
    missed = sorted(set(range(end)) - covered)
    if not missed:
        return []
    text = f"the group committed {end} and never read {len(missed)} before it, the first {missed[0]}"
    return [Violation("skipped", text, partition, missed[0])]


def check_replicas(copies: Mapping[int, Mapping[int, Sequence[Batch]]]) -> list[Violation]:
    """Where the logs of two brokers differ; ``copies`` has the batches of each broker's partitions."""
    found: list[Violation] = []
    for partition in sorted({partition for logs in copies.values() for partition in logs}):
        having = sorted(broker for broker, logs in copies.items() if partition in logs)
        first, *others = having
        expected = copies[first][partition]
        for broker in others:
            batches = copies[broker][partition]
            differing = next(
                (
                    index
                    for index, (one, two) in enumerate(zip(expected, batches, strict=False))
                    if one != two
                ),
                min(len(expected), len(batches)),
            )
            if differing < max(len(expected), len(batches)):
                sides = [
                    f"broker {number} has {log[differing] if differing < len(log) else 'nothing'}"
                    for number, log in ((first, expected), (broker, batches))
                ]
                place = (expected if differing < len(expected) else batches)[differing].base_offset
                found.append(Violation("replicas", ", ".join(sides), partition, place))
    return found
