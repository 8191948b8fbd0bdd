"""A topic of an old source that follows the new one: failing over and back, and the records expected then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream_kafka.batch import Record, read_header, read_records
from millstream_kafka.mirror_source import KEY

from .mirror import MirrorProcess, Peer, admin, arrived, produce, read_batches
from .scenario import eventually

StartMirror = Callable[..., MirrorProcess]
SUFFIX = ".set-aside"
LEFT = (
    "was promoted or given up under this request before, and is left alone: exclude it, or change spec.rejoin"
)
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


def config_of(broker: Peer, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin(broker).describe_configs([resource])[resource].result(20)
    return {name: entry.value for name, entry in found.items()}


def promote(broker: Peer, topic: str) -> None:
    entry = ConfigEntry(KEY, "", incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin(broker).incremental_alter_configs([resource])[resource].result(30)


def mirror(start_mirror: StartMirror, source: Peer, target: Peer, topic: str, **config: Any) -> MirrorProcess:
    config = {"mode": "Identity", "topics": {"include": [topic]}, **config}
    return start_mirror({"other": source.bootstrap}, target.bootstrap, **config)


def out(start_mirror: StartMirror, west: Peer, east: Peer, topic: str, **config: Any) -> MirrorProcess:
    return mirror(start_mirror, west, east, topic, name=f"{topic}-out", **config)


def back(
    start_mirror: StartMirror, west: Peer, east: Peer, topic: str, request_id: str = "1", **config: Any
) -> MirrorProcess:
    rejoin = {"requestId": request_id}
    return mirror(start_mirror, east, west, topic, name=f"{topic}-back", rejoin=rejoin, **config)


def error_of(worker: MirrorProcess, *parts: str) -> str:
    def said() -> str:
        error: str = worker.status()["sources"][0]["lastError"]
        return error

    return eventually(said, lambda error: all(part in error for part in parts), f"an error with {parts}")


def fail_over(
    start_mirror: StartMirror,
    west: Peer,
    east: Peer,
    topic: str,
    *,
    lost: int = 30,
    later: int = 200,
    **settings: Any,
) -> list[list[Record]]:
    """Fail over from west to east, in the middle of writing; return the records that only west has, by partition."""
    worker = out(start_mirror, west, east, topic)
    produce(west, topic, range(100), 2, **settings)
    arrived(east, topic, [50, 50])
    worker.stop()
    produce(west, topic, range(1000, 1000 + lost), 2, **settings)
    promote(east, topic)
    produce(east, topic, range(2000, 2000 + later), 2)
    return [[one for one in records_of(west, topic, number) if one.offset >= 50] for number in (0, 1)]


def is_rejoined(broker: Peer, topic: str) -> None:
    def value() -> str:
        return config_of(broker, topic)[KEY]

    eventually(value, lambda now: bool(now) and not now.endswith("/rejoin"), "it is a replica", 90)
