"""The mark of a group: which resets of its positions were carried out. Kept as one of its committed offsets.

The operator commits it for ``PARTITION``, which no consumer reads, in one step with the positions that it sets. Its
metadata begins with ``PREFIX``. It belongs to the group, so it is restored, and deleted, together with the positions.
Brokers keep it while the group has members or any other position, whatever the retention; the command hides it.
"""

from __future__ import annotations

from .topic_partition import TopicPartition

PARTITION: TopicPartition = ("__consumer_offsets", 0)
PREFIX = "millstream.dev/"


def is_mark(where: TopicPartition, metadata: str) -> bool:
    return where == PARTITION and metadata.startswith(PREFIX)
