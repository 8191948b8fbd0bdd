"""The invariants of transactions. Each partition is a list, and transactions append values to several of them.

dirty         a reader of what is committed saw a value that is aborted, open or not in the log (Elle's G1a)
early         it saw a value before anybody had asked to commit it
torn          a transaction is committed in one partition, and not in another one
revived       a transaction is committed whose writer aborted it
lost          a value of a committed transaction is not in the log, or is aborted there
unended       a transaction is still open at the end
duplicated    a value is in the log twice
foreign       no transaction of this run appended a value of the log
order         one writer's transactions are not in their order in a partition (G0, as far as Kafka excludes it)
skipped       a reader missed a value between two that it saw, such as part of a transaction (G1b)
backwards     the offsets that one session reads rise
value         a reader saw another value at an offset than the log has
cycle         transactions that read from each other, directly or over several, are in a circle (G1c)
copied        a copy is missing, comes twice, or comes before an earlier one

Kafka allows two writers' transactions to be in a different order in different partitions: they are atomic, but writes
of different writers are not isolated from each other. Hence only the order of one writer's transactions counts, and
what readers learn.

Values that DeleteRecords may have deleted are not missed. Transactions whose outcome nobody told may be committed or
aborted, as long as they are either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from .history import NEVER, Event, Read, RecordsDeleted, Transacted
from .topics import Place
from .violations import ABORTED, COMMITTED, OPEN, Fated, Violation

READER = "committed-"
"""Prefix of the names of sessions that read what is committed."""
PEEKER = "uncommitted-"
"""Prefix of the names of sessions that read everything."""
COPIER = "copier-"
"""Prefix of the names of writers that copy; a value's number is the offset of what was copied."""
COPIERS = "copiers"
"""Their group."""
PER_TRANSACTION = 100
"""A value's number is that of its transaction times this, plus its place in it."""

Value = tuple[str | int, ...]
"""Topic id, writer, partition, number."""
Key = tuple[str, int]
"""A transaction: its writer, and its number."""


def check_transactions(
    events: Iterable[Event], log: Mapping[Place, Sequence[Fated]], sources: Mapping[str, str]
) -> list[Violation]:
    """Violations; ``log`` holds all partitions at the end, ``sources`` the ids of copied topics by those of copies."""
    told: dict[Key, Transacted] = {}
    sessions: dict[tuple[str, Place], list[Read]] = defaultdict(list)
    starts: dict[Place, int] = defaultdict(int)
    for event in events:
        match event:
            case Transacted():
                told[event.who, event.number] = event
            case Read(who=who) if who.startswith((READER, PEEKER)):
                sessions[who, (event.topic, event.partition)].append(event)
            case RecordsDeleted(topic=topic, partition=partition, offset=offset):
                starts[topic, partition] = max(offset, starts[topic, partition])
    owners = {tuple(value): key for key, event in told.items() for value in event.appends}
    fates: dict[Value, str] = {}
    found: list[Violation] = []
    for place, entries in log.items():
        found += _check_log(place, entries, owners, fates)
    for event in told.values():
        found += _check_outcome(event, fates, {place for place, start in starts.items() if start})
    for (who, place), reads in sessions.items():
        kept = [read for read in reads if read.offset >= starts[place]]
        found += _check_session(who, place, kept, log.get(place, ()))
        found += _check_times(place, [read for read in reads if who.startswith(READER)], owners, told)
    for copy, source in sources.items():
        for place, entries in log.items():
            if place[0] == copy:
                original = source, place[1]
                found += _check_copies(place, entries, log.get(original, ()), starts[original])
    return found + _check_cycles(told, owners, fates)


def _violation(kind: str, text: str, place: Place, entry: Fated | Read | None = None) -> Violation:
    if entry is None:
        return Violation(kind, text, place[1], topic=place[0])
    return Violation(kind, text, place[1], entry.offset, entry.writer, entry.number, None, place[0])


def _check_log(
    place: Place, entries: Sequence[Fated], owners: Mapping[Value, Key], fates: dict[Value, str]
) -> list[Violation]:
    found: list[Violation] = []
    last: dict[str, int] = {}
    for entry in entries:
        value = (place[0], entry.writer, place[1], entry.number)
        name = f"{entry.writer} {entry.number}"
        if value not in owners or entry.partition != place[1]:
            text = f"no transaction appended {name} of partition {entry.partition}"
            found.append(_violation("foreign", text, place, entry))
        if value in fates:
            found.append(_violation("duplicated", f"{name} is here a second time", place, entry))
        elif entry.number <= last.get(entry.writer, -1):
            text = f"{name} comes after {last[entry.writer]}"
            found.append(_violation("order", text, place, entry))
        if entry.fate == OPEN:
            found.append(_violation("unended", f"the transaction of {name} is open", place, entry))
        fates[value] = COMMITTED if COMMITTED in (fates.get(value), entry.fate) else entry.fate
        last[entry.writer] = max(entry.number, last.get(entry.writer, -1))
    return found


def _check_outcome(
    event: Transacted, fates: Mapping[Value, str], shortened: Collection[Place]
) -> list[Violation]:
    """A transaction is all or nothing, and what its writer was told."""
    by_fate: dict[str, list[Value]] = defaultdict(list)
    for append in map(tuple, event.appends):
        if append in fates or (append[0], append[2]) not in shortened:
            by_fate[fates.get(append, "nowhere")].append(append)
    name = f"transaction {event.number} of {event.who}, {event.outcome}"
    committed = by_fate.pop(COMMITTED, [])
    wrong = [value for values in by_fate.values() for value in values]
    if event.outcome == COMMITTED:
        kind, shown = ("torn" if committed else "lost"), wrong
    elif event.outcome == ABORTED:
        kind, shown = "revived", committed
    else:
        kind, shown = "torn", wrong if committed else []
    return [
        Violation(
            kind,
            f"{name}, is {fates.get(value, 'nowhere')}; committed: {len(committed)} of {len(event.appends)}",
            int(value[2]),
            None,
            str(value[1]),
            int(value[3]),
            event.at,
            str(value[0]),
        )
        for value in shown[:1]
    ]


def _check_session(
    who: str, place: Place, reads: Sequence[Read], entries: Sequence[Fated]
) -> list[Violation]:
    """What a session read is a part of the log without a hole."""
    found: list[Violation] = []
    is_reader = who.startswith(READER)
    at_offset = {entry.offset: entry for entry in entries}
    visible = [entry.offset for entry in entries if entry.fate == COMMITTED or not is_reader]
    rank = {offset: index for index, offset in enumerate(visible)}
    before = -1
    for read in reads:
        entry = at_offset.get(read.offset)
        if entry is None:
            text = f"{who} read {read.writer} {read.number}, which the log does not have"
            found.append(_violation("dirty" if is_reader else "lost", text, place, read))
            continue
        if (entry.writer, entry.number) != (read.writer, read.number):
            text = f"{who} read {read.writer} {read.number}, the log has {entry.writer} {entry.number}"
            found.append(_violation("value", text, place, read))
        if read.offset not in rank:
            text = f"{who} read {read.writer} {read.number}, which is {entry.fate}"
            found.append(_violation("dirty", text, place, read))
            continue
        if before >= 0 and read.offset <= before:
            found.append(_violation("backwards", f"{who} read {read.offset} after {before}", place, read))
        elif before >= 0 and rank[read.offset] != rank[before] + 1:
            missed = at_offset[visible[rank[before] + 1]]
            text = f"{who} read {read.offset} after {before}, and not {missed.writer} {missed.number}"
            found.append(_violation("skipped", f"{text} at {missed.offset}", place, missed))
        before = read.offset
    return found


def _check_times(
    place: Place, reads: Sequence[Read], owners: Mapping[Value, Key], told: Mapping[Key, Transacted]
) -> list[Violation]:
    """Nobody reads a value before its commit was requested."""
    found: list[Violation] = []
    for read in reads:
        key = owners.get((place[0], read.writer, place[1], read.number))
        if key is None:
            continue
        asked = told[key].asked
        if asked == NEVER or read.at < asked:
            text = f"{read.who} read {read.writer} {read.number} before its commit was requested"
            found.append(_violation("early", text, place, read))
    return found


def _check_copies(
    place: Place, copies: Sequence[Fated], source: Sequence[Fated], start: int
) -> list[Violation]:
    """The committed copies are the committed values in their order, up to the last one that was copied."""
    got = [entry for entry in copies if entry.fate == COMMITTED and entry.number >= start]
    wanted = [entry.offset for entry in source if entry.fate == COMMITTED and entry.offset >= start]
    for index, entry in enumerate(got):
        if index >= len(wanted) or entry.number != wanted[index]:
            expected = wanted[index] if index < len(wanted) else "nothing"
            text = f"{entry.writer} copied {entry.number}, where {expected} is expected"
            return [_violation("copied", text, place, entry)]
    return []


def _check_cycles(
    told: Mapping[Key, Transacted], owners: Mapping[Value, Key], fates: Mapping[Value, str]
) -> list[Violation]:
    """A transaction comes after those that it read from, and after its writer's earlier ones."""
    graph: dict[Key, set[Key]] = {}
    numbers: dict[str, list[int]] = defaultdict(list)
    for key, event in told.items():
        is_committed = event.outcome == COMMITTED or any(
            fates.get(tuple(value)) == COMMITTED for value in event.appends
        )
        if is_committed:
            read = {owners[value] for value in map(tuple, event.reads) if value in owners}
            graph[key] = read - {key}
            numbers[event.who].append(event.number)
    for who, of_writer in numbers.items():
        of_writer.sort()
        for earlier, later in pairwise(of_writer):
            graph[who, later].add((who, earlier))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " <- ".join(f"{who} {number}" for who, number in error.args[1])
        return [Violation("cycle", f"each read from the next one, or followed it: {circle}")]
    return []
