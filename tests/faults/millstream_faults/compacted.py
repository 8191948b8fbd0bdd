"""The promise of compaction, for each replica: a key's last value stays, and a deleted key stays deleted.

final         a key's last record is the last acknowledged one, or one sent later
resurrected   no value comes back after its tombstone was acknowledged
order         a writer's numbers ascend, each appears at most once
foreign       every record has the key that its writer gave it
uncompacted   compaction removes some records on every broker if a partition takes records for a minute
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .history import Acknowledged, Event, Failed, key_of
from .topics import Lives, Place
from .violations import Entry, Violation

LONG_S = 60.0
Key = tuple[str, str]
"""A writer's name and one of its keys."""


def check_compacted(
    events: Iterable[Event], lives: Lives, copies: Mapping[int, Mapping[Place, Sequence[Entry]]]
) -> list[Violation]:
    """Violations in the brokers' copies of compacted partitions."""
    acknowledged: dict[Place, dict[Key, int]] = defaultdict(dict)
    times: dict[Place, list[float]] = defaultdict(list)
    tried: dict[tuple[str, Key], set[int]] = defaultdict(set)
    for event in events:
        if not isinstance(event, Acknowledged | Failed) or not lives.is_compacted(event.topic):
            continue
        place, key = (event.topic, event.partition), (event.who, key_of(event.who, event.number)[0])
        tried[f"{lives.name(event.topic)}-{event.partition}", key].add(event.number)
        if isinstance(event, Acknowledged) and lives.is_certain(event.topic, event.sent, event.at):
            times[place].append(event.at)
            acknowledged[place][key] = max(event.number, acknowledged[place].get(key, -1))
    found: list[Violation] = []
    for broker, places in copies.items():
        for place, entries in places.items():
            last: dict[Key, Entry] = {}
            numbers: dict[str, int] = {}
            for entry in entries:
                found += _check_entry(broker, place, entry, numbers.get(entry.writer, -1))
                last[entry.writer, entry.key] = entry
                numbers[entry.writer] = entry.number
            name = f"{lives.name(place[0])}-{place[1]}"
            for key, number in acknowledged[place].items():
                found += _check_key(broker, place, key, number, tried[name, key], last.get(key))
            lasted = max(times[place], default=0.0) - min(times[place], default=0.0)
            if lasted >= LONG_S and entries and len(entries) > entries[-1].offset - entries[0].offset:
                text = f"broker {broker} has every record of {lasted:.0f} s"
                found.append(Violation("uncompacted", text, place[1], topic=place[0]))
    return found


def _check_entry(broker: int, place: Place, entry: Entry, before: int) -> list[Violation]:
    offset, writer, partition, number = entry[:4]
    concerns = (place[1], offset, writer, number, None, place[0])
    if partition != place[1] or entry.key != key_of(writer, number)[0]:
        text = f"broker {broker} has {writer} {number} of partition {partition} with key {entry.key}"
        return [Violation("foreign", text, *concerns)]
    if before >= number:
        text = f"broker {broker} has {writer} {number} after {before}"
        return [Violation("order", text, *concerns)]
    return []


def _check_key(
    broker: int, place: Place, key: Key, acknowledged: int, tried: Iterable[int], entry: Entry | None
) -> list[Violation]:
    """Any attempt after the last acknowledged one may or may not be in the log."""
    writer, name = key
    possible = {acknowledged, *(number for number in tried if number > acknowledged)}
    is_deleted = any(key_of(writer, number)[1] for number in possible)
    if entry is None:
        if is_deleted:
            return []
        text = f"broker {broker} has nothing of {name}, of which {writer} {acknowledged} was acknowledged"
        return [Violation("final", text, place[1], None, writer, acknowledged, None, place[0])]
    if entry.number in possible:
        return []
    kind = "resurrected" if key_of(writer, acknowledged)[1] else "final"
    text = (
        f"broker {broker} has {writer} {entry.number} as the last of {name}, acknowledged was {acknowledged}"
    )
    return [Violation(kind, text, place[1], entry.offset, writer, acknowledged, None, place[0])]
