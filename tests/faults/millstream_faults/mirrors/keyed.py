"""Records whose keys are overwritten and deleted, and the records that each copy of a compacted topic must have.

    identity    each record is the one that was produced at its offset
    aggregate   records are in the order in which they were produced, none twice
    both        every record is there unless a later record of its key has replaced it

Compaction runs in each log independently: before a record is mirrored, after that, or in the copy alone. So a copy is
not compared with the present source, but with the produced records. A key that was deleted last may be there as its
tombstone or not at all, but not with an older value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream_harness.ledger import Ledger, Load
from millstream_kafka.batch import Record, read_header, read_records

from .checks import Log

HOT, COLD, COLD_EVERY, DELETED_EVERY = 10, 60, 5, 13
"""Every fifth record has one of the rare keys."""
NUMBER = "number"
"""The header with a record's number, because a tombstone has no value."""


def key_of(number: int) -> bytes:
    if number % COLD_EVERY:
        return b"hot-%d" % (number % HOT)
    return b"cold-%d" % (number // COLD_EVERY % COLD)


def value_of(number: int) -> bytes | None:
    return b"value-%d" % number if number % DELETED_EVERY else None


class KeyedLoad(Load):
    def message(self, number: int) -> dict[str, Any]:
        return {"key": key_of(number), "value": value_of(number), "headers": [(NUMBER, b"%d" % number)]}


@dataclass(frozen=True)
class Produced:
    """Records 0 to ``sent`` of a partition; ``offsets``: of those that are acknowledged, by number."""

    sent: int
    offsets: Mapping[int, int]

    @classmethod
    def by(cls, ledger: Ledger, partition: int) -> Produced:
        offsets = dict(ledger.acknowledged[partition])  # first: all of these were sent
        return cls(ledger.sent[partition], offsets)


class Entry(NamedTuple):
    number: int
    record: Record


def entries(log: Log) -> list[Entry]:
    found = (record for batch in log.batches for record in read_records(batch))
    return [Entry(int(dict(one.headers)[NUMBER] or b""), one) for one in found if one.offset >= log.start]


def removed(log: Log) -> int:
    """The number of offsets that no longer have a record."""
    first = read_header(log.batches[0]).base_offset if log.batches else log.start
    return log.end - max(log.start, first) - len(entries(log))


def unequal_keyed(produced: Produced, copy: Log) -> str:
    """Differences between an Identity copy of a compacted partition and the produced records, up to the copy's end."""
    found = entries(copy)
    for number, record in found:
        if (at := produced.offsets.get(number, record.offset)) != record.offset:
            return f"record {number} is at offset {record.offset}, was produced at {at}"
    reached = {number for number, offset in produced.offsets.items() if offset < copy.end}
    return _wrong(produced, found, reached)


def misplaced_keyed(produced: Produced, copy: Log) -> str:
    """Differences between an Aggregate copy of a compacted partition and the produced records, up to the copy's end."""
    found = entries(copy)
    last = max((one.number for one in found), default=-1)
    return _wrong(produced, found, {number for number in produced.offsets if number <= last})


def _wrong(produced: Produced, found: list[Entry], reached: set[int]) -> str:
    before, last = -1, dict[bytes | None, int]()
    for number, record in found:
        if (record.key, record.value) != (key_of(number), value_of(number)):
            return f"record {number} at offset {record.offset} is another one than was produced"
        if number <= before:
            return f"record {number} follows record {before} at offset {record.offset}"
        before = last[record.key] = number
    sent = max(produced.sent, before + 1)
    for key, number in {key_of(number): number for number in range(sent)}.items():
        # an unacknowledged record may already have replaced it in the source
        if number not in reached or last.get(key) == number:
            continue
        if key in last or value_of(number) is not None:
            there = f"record {last[key]}" if key in last else "nothing"
            return f"the last record of {key!r} is {there}, not record {number}"
    return ""


def altered(source: Log, copy: Log) -> str:
    """The records that differ in the copy, if only in their timestamps."""
    theirs = {number: record._replace(offset=-1) for number, record in entries(source)}
    for number, record in entries(copy):
        if (original := theirs.get(number)) not in (None, record._replace(offset=-1)):
            return f"record {number} is {record}, in the source {original}"
    return ""


def lacks_keyed(source: Log, copy: Log, *, is_identity: bool) -> bool:
    """Whether the copy has not reached this end of the source yet."""
    if is_identity:
        return copy.end < source.end
    ends = [max((one.number for one in entries(log)), default=-1) for log in (source, copy)]
    return ends[1] < ends[0]


KEYED: dict[str, Callable[[Produced, Log], str]] = {"identity": unequal_keyed, "aggregate": misplaced_keyed}
