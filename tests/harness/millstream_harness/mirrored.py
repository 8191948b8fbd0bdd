"""A simulated source of a mirror, and MirrorAppend requests written by hand."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from millstream_kafka.batch import Record, build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.mirror_source import MirrorSource
from millstream_kafka.protocol import mirror_append
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorPartition,
    MirrorPartitionResponse,
    MirrorTopic,
)

CLUSTER = "source-cluster"


class Source:
    """A topic of one partition: its batches, at their offsets."""

    def __init__(self) -> None:
        self.topic = MirrorSource(CLUSTER, uuid.uuid4())
        self.batches: list[tuple[int, int, bytes]] = []
        """First offset, next offset, bytes."""
        self.end = 0
        self.epoch = 0

    def add(self, count: int = 1, *, gap: int = 0, timestamp: int = 1_800_000_000_000, **how: Any) -> bytes:
        """Add a batch after the last one, ``gap`` offsets later; ``how`` as in ``build_batch``."""
        first = self.end + gap
        records = [Record(b"key", b"value-%d" % (first + index), timestamp) for index in range(count)]
        batch = build_batch(records, base_offset=first, leader_epoch=self.epoch, **how)
        self.batches.append((first, first + count, batch))
        self.end = first + count
        return batch

    def after(self, offset: int, at_most: int = 1 << 30) -> bytes:
        """The batches from an offset on."""
        found = [batch for _, end, batch in self.batches if end > offset]
        return b"".join(found[:at_most])


async def mirror(
    client: Connection,
    topic: str,
    source: MirrorSource,
    from_offset: int,
    records: bytes | None = None,
    *,
    log_start: int = 0,
    partition: int = 0,
) -> MirrorPartitionResponse:
    """Send batches; offset -1 queries the state of the partition."""
    (answer,) = await mirror_several(client, topic, source, [(partition, from_offset, records, log_start)])
    return answer


async def mirror_several(
    client: Connection,
    topic: str,
    source: MirrorSource,
    parts: Sequence[tuple[int, int, bytes | None, int]],
) -> list[MirrorPartitionResponse]:
    """Partition, offset, batches and log start of each."""
    partitions = [MirrorPartition(index, offset, start, records) for index, offset, records, start in parts]
    request = MirrorAppendRequest(
        source.cluster_id, 10_000, [MirrorTopic(topic, source.topic_id, partitions)]
    )
    answer = await client.call(mirror_append.API, 0, request)
    return [partition for answered in answer.topics for partition in answered.partitions]
