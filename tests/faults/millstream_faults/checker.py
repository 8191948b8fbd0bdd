"""The invariants over a whole history and the remaining logs. Pure: equal histories give equal violations.

lost          every record that was acknowledged or read is in the log, at its offset
duplicated    a record appears once
order         the numbers of a writer ascend in a partition
value         an offset has one value: every read and every acknowledgement agrees, whichever broker led
foreign       every record was written by a writer of this run, to that partition
gap           offsets are consecutive, in the log and in what one session reads
backwards     the offsets that one session reads rise
skipped       the group read every record below the offset it committed
commit        a committed offset never moves back; one exception, as in Kafka: a coordinator that was paused
              or cut off may return an earlier one to a non-member until it learns of its successor
failed        no producer gives up, because every fault ends
trouble       no client and no broker reports an error that must never occur
replicas      the replicas' logs are equal, byte for byte
resurrected   no record acknowledged to a deleted topic is in the topic that now has its name
undeleted     nobody reads a record that DeleteRecords deleted

A topic is its id. A record removed on purpose is not lost: records of a deleted topic, and those that
DeleteRecords or retention may delete. `topics` defines what counts when a request meets a deletion, or a restored tree
that does not know the topic; `compacted`, `positions`, `strays` and `transacted` check promises of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .compacted import check_compacted
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
from .positions import SIMPLE, check_positions
from .strays import check_strays
from .topics import Lives, Place
from .transacted import PEEKER, READER
from .violations import Batch, Copy, Entry, Violation

GROUP = "group-"
"""Prefix of the names of the group members' sessions."""
ZOMBIES = ("pause", "cut", "isolate", "reject")
"""Faults after which a broker may still believe that it leads a partition: their first words."""
AWAKE_S = 3.0
"""How long such a broker may take to learn the truth."""


Value = tuple[str, int]


def check(
    history: Iterable[Event],
    log: Mapping[Place, Sequence[Entry]],
    compacted: Mapping[int, Mapping[Place, Sequence[Entry]]] | None = None,
) -> list[Violation]:
    """All violations in this history, given each partition's log at the end.

    ``log`` holds the partitions that keep every record, ``compacted`` each broker's copy of the others.
    """
    events = list(history)
    lives = Lives(events)
    zombies = [event for event in events if isinstance(event, Struck) and event.text.startswith(ZOMBIES)]
    records = _Records(lives, log, zombies)
    for place, entries in log.items():
        records.found += _check_log(place, entries, lives.start(place))
    commits: dict[Place, list[Committed | CommitUnknown | FoundCommitted]] = defaultdict(list)
    for event in events:
        match event:
            case Acknowledged():
                records.acknowledged(event)
            case Read() if not event.who.startswith((READER, PEEKER)):
                records.read(event)
            case Failed(_, who, partition, number, error, topic) if lives.is_steady(topic):
                text = f"{who} {number}: {error}"
                records.found.append(Violation("failed", text, partition, None, who, number, None, topic))
            case Committed() | CommitUnknown() | FoundCommitted() if not event.who.startswith(SIMPLE):
                commits[event.topic, event.partition].append(event)
            case Trouble(_, who, text):
                records.found.append(Violation("trouble", f"{who}: {text}"))
    found = records.found + check_compacted(events, lives, compacted or {})
    found += check_positions(events, lives, lambda read: _met(read, zombies))
    found += check_strays(events, lives)
    for place in sorted(commits):
        found += _check_commits(place, commits[place], zombies)
        found += _check_coverage(place, commits[place], records.covered[place])
    return found


class _Records:
    """What clients learned about records, event by event."""

    def __init__(self, lives: Lives, log: Mapping[Place, Sequence[Entry]], zombies: Sequence[Struck]) -> None:
        self.found: list[Violation] = []
        self.covered: dict[Place, set[int]] = defaultdict(set)
        self._lives, self._zombies = lives, zombies
        self._log = {
            place: {entry.offset: (entry.writer, entry.number) for entry in entries}
            for place, entries in log.items()
        }
        self._places = {
            place: {value: offset for offset, value in values.items()} for place, values in self._log.items()
        }
        self._now: dict[tuple[str, int], list[Place]] = defaultdict(list)
        for topic, partition in log:
            self._now[lives.name(topic), partition].append((topic, partition))
        self._told: dict[Place, dict[int, Value]] = defaultdict(dict)  # beyond what the log has
        self._sessions: dict[tuple[str, Place], int] = {}

    def acknowledged(self, event: Acknowledged) -> None:
        if not self._lives.is_certain(event.topic, event.sent, event.at):
            return
        place, value = (event.topic, event.partition), (event.who, event.number)
        if place in self._log:
            self._is_kept(event, place, value)
        for successor in self._now[self._lives.name(event.topic), event.partition]:
            offset = self._places[successor].get(value)
            if successor != place and offset is not None:
                text = f"{event.who} {event.number} was acknowledged to {event.topic}, which was deleted"
                self._add("resurrected", text, successor, offset, *value)
        if event.offset != UNKNOWN:
            self._is_same(event, place, value)

    def _is_kept(self, event: Acknowledged, place: Place, value: Value) -> None:
        offset = self._places[place].get(value)
        if offset is not None and event.offset in (offset, UNKNOWN):
            return
        start = self._lives.start(place)
        if offset is None and (event.offset < start if event.offset != UNKNOWN else start):
            return
        text = f"{event.who} {event.number} was acknowledged at {event.offset}, is "
        text += "nowhere" if offset is None else f"at {offset}"
        self._add("lost", text, place, event.offset, *value)

    def read(self, event: Read) -> None:
        _, who, partition, offset, writer, number, topic, asked = event
        if not self._lives.is_certain(topic, asked, event.at):
            return
        place, value = (topic, partition), (writer, number)
        is_live = place in self._log and offset >= self._lives.start(place)
        if is_live and offset not in self._log[place]:
            text = f"{who} read {writer} {number}, which the log does not have any more"
            self._add("lost", text, place, offset, *value)
        self._is_same(event, place, value)
        before = self._sessions.get((who, place))
        if before is not None and offset <= before:
            self._add("backwards", f"{who} read offset {offset} after {before}", place, offset, *value)
        elif before is not None and offset != before + 1 and not self._lives.is_compacted(topic):
            self._add("gap", f"{who} read offset {offset} after {before}", place, offset, *value)
        self._sessions[who, place] = offset
        if offset < self._lives.kept_from(place, asked) and not _met(event, self._zombies):
            text = f"{who} read {offset}, before {self._lives.kept_from(place, asked)} all was deleted"
            self._add("undeleted", text, place, offset, *value)
        if who.startswith(GROUP):
            self.covered[place].add(offset)

    def _is_same(self, event: Acknowledged | Read, place: Place, value: Value) -> None:
        log = self._log.get(place, {})
        known = log.get(event.offset) or self._told[place].setdefault(event.offset, value)
        if known != value:
            text = f"{event.who} was told of {value[0]} {value[1]}, others of {known[0]} {known[1]}"
            self._add("value", text, place, event.offset, *value)

    def _add(self, kind: str, text: str, place: Place, offset: int, writer: str, number: int) -> None:
        self.found.append(Violation(kind, text, place[1], offset, writer, number, None, place[0]))


def _check_log(place: Place, entries: Sequence[Entry], start: float) -> list[Violation]:
    found: list[Violation] = []
    first: dict[Value, int] = {}
    last: dict[str, int] = {}

    def add(kind: str, text: str, entry: Entry) -> None:
        concerns = (place[1], entry.offset, entry.writer, entry.number, None, place[0])
        found.append(Violation(kind, text, *concerns))

    expected = 0
    for entry in entries:
        offset, writer, written_to, number = entry[:4]
        if offset != expected and not (expected == 0 and offset <= start):
            add("gap", f"the log has {offset} after {expected - 1}", entry)
        expected = offset + 1
        if written_to != place[1]:
            add("foreign", f"the record is {writer} {number} of partition {written_to}", entry)
        elif (writer, number) in first:
            at = first[writer, number]
            add("duplicated", f"{writer} {number} is here a second time, first at {at}", entry)
        elif number < last.get(writer, -1):
            add("order", f"{writer} {number} comes after {last[writer]}", entry)
        first.setdefault((writer, number), offset)
        last[writer] = max(number, last.get(writer, -1))
    return found


def _check_commits(
    place: Place,
    events: Sequence[Committed | CommitUnknown | FoundCommitted],
    zombies: Sequence[Struck],
) -> list[Violation]:
    """Once a position is acknowledged or seen, nobody may find an earlier one.

    A commit that got no answer may still be under way, and takes effect when it arrives.
    """
    found: list[Violation] = []
    tried = [event for event in events if isinstance(event, CommitUnknown)]
    known = [event for event in events if not isinstance(event, CommitUnknown)]
    times: list[float] = []
    floors: list[int] = []
    for event in sorted(known, key=lambda event: event.at):
        floor = floors[-1] if floors else -1
        if isinstance(event, FoundCommitted):
            before = bisect_right(times, event.asked)
            needed = floors[before - 1] if before else -1
            if event.offset < needed:
                if any(one.offset == event.offset and one.at <= event.at for one in tried):
                    floor = event.offset
                elif not _is_stale(event, floors, zombies):
                    text = f"{event.who} was told that {event.offset} is committed, after {needed} was"
                    concerns = (place[1], event.offset, None, None, event.at, place[0])
                    found.append(Violation("commit", text, *concerns))
        times.append(event.at)
        floors.append(max(floor, event.offset))
    return found


def _is_stale(event: FoundCommitted, before: Sequence[int], zombies: Sequence[Struck]) -> bool:
    """Whether a former coordinator may still have known this position."""
    return not event.who.startswith(GROUP) and event.offset in before and _met(event, zombies)


def _met(event: FoundCommitted | Read, zombies: Sequence[Struck]) -> bool:
    """Whether a broker that wrongly believes it leads may have sent the answer."""
    return any(fault.at <= event.at and event.asked <= fault.until + AWAKE_S for fault in zombies)


def _check_coverage(
    place: Place,
    events: Sequence[Committed | CommitUnknown | FoundCommitted],
    covered: set[int],
) -> list[Violation]:
    end = max((event.offset for event in events if isinstance(event, Committed)), default=0)
    missed = sorted(set(range(end)) - covered)
    if not missed:
        return []
    text = f"the group committed {end} and never read {len(missed)} before it, the first {missed[0]}"
    return [Violation("skipped", text, place[1], missed[0], topic=place[0])]


def check_replicas(copies: Mapping[int, Mapping[Place, Copy]]) -> list[Violation]:
    """Where the logs of two brokers differ.

    Each broker deletes its oldest segments on its own schedule, so compare from the first common offset.
    """
    found: list[Violation] = []
    for place in sorted({place for logs in copies.values() for place in logs}):
        having = sorted(broker for broker, logs in copies.items() if place in logs)
        start = max(copies[one][place].start for one in having)
        first, *others = [
            (one, [batch for batch in copies[one][place].batches if batch.base_offset >= start])
            for one in having
        ]
        for other in others:
            found += _difference(place, first, other)
    return found


def _difference(
    place: Place, one: tuple[int, Sequence[Batch]], other: tuple[int, Sequence[Batch]]
) -> list[Violation]:
    pairs = enumerate(zip(one[1], other[1], strict=False))
    shorter, longer = sorted((one[1], other[1]), key=len)
    differing = next((index for index, (mine, theirs) in pairs if mine != theirs), len(shorter))
    if differing == len(longer):
        return []
    sides = [
        f"broker {number} has {log[differing] if differing < len(log) else 'nothing'}"
        for number, log in (one, other)
    ]
    offset = longer[differing].base_offset
    return [Violation("replicas", ", ".join(sides), place[1], offset, topic=place[0])]
