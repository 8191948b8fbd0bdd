"""A topic of an old source that follows the new one: the target's expected records, and those to set aside."""

from __future__ import annotations

import asyncio
from collections import Counter

from millstream_kafka.batch import Record, read_header, read_records

from .mirror import Peer, read_batches

SUFFIX = ".set-aside"
MARKS = ("topic-id", "partition", "offset", "leader-epoch", "common-offset", "number", "request-id")


def records_of(broker: Peer, topic: str, partition: int) -> list[Record]:
    """Every record of a partition."""
    batches = asyncio.run(read_batches(broker.bootstrap, topic, partition))
    return [record for batch in batches for record in read_records(batch)]


def epochs_of(broker: Peer, topic: str, partition: int) -> dict[int, int]:
    """The leader epoch of each record, by offset."""
    return {
        offset: header.partition_leader_epoch
        for header in map(read_header, asyncio.run(read_batches(broker.bootstrap, topic, partition)))
        for offset in range(header.base_offset, header.next_offset)
    }


def without_marks(record: Record) -> Record:
    """The record before it was set aside, without its offset."""
    headers = tuple(one for one in record.headers if not one[0].startswith("set-aside."))
    return record._replace(headers=headers, offset=-1)


def marks(record: Record) -> dict[str, str]:
    found = {name: (value or b"").decode() for name, value in record.headers}
    return {name: found["set-aside." + name] for name in MARKS}


def check_set_aside(
    broker: Peer, topic: str, partition: int, wanted: list[Record], *, twice: int = 0
) -> None:
    """Check that the set-aside topic has exactly these records of the partition, in order, with their offsets.

    ``twice``: number of records that may be repeated, with the same marks.
    """
    found = records_of(broker, topic + SUFFIX, partition) if wanted else []
    seen = Counter(marks(record)["offset"] for record in found)
    assert sum(seen.values()) - len(seen) <= twice
    unique = list({marks(record)["offset"]: record for record in reversed(found)}.values())[::-1]
    assert [without_marks(record) for record in unique] == [record._replace(offset=-1) for record in wanted]
    assert [int(marks(record)["offset"]) for record in unique] == [record.offset for record in wanted]
    assert [int(marks(record)["number"]) for record in unique] == list(range(1, len(wanted) + 1))
    assert {marks(record)["partition"] for record in found} <= {str(partition)}
