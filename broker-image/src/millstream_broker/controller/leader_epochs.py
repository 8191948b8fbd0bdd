"""Leader epochs that no other history of the store has given. Pure, but for the random numbers.

Followers, and clients, find by its leader epochs where a log leaves the leader's. If two leaders had the same epoch,
their records would differ, and nothing would show where. A store that was restored from an older copy of itself has
forgotten epochs, and a controller cannot notice that while the brokers that know of them are down. Counting on from
the stored epoch would give them again.

So the first leader epoch that a controller gives a partition is at a random distance from the stored one, and
so is that after a comparison of logs (`comparison`). Only from an epoch that it has given itself does a controller
count by one: had those after it been given before, it would have given them. Nothing here depends on what can be
restored.

Leader epochs have 31 bits, and those of mirrored records 30. Distances shrink as epochs approach that limit
(`distance_limit`), so they never exceed it: after 140,000 controllers that each moved the partition's leader, they are
a third of the first ones.

A promoted mirror's epochs are above those of its mirrored records by EPOCHS_ABOVE or more. The former source can rejoin
only while its own are below them, so distances must be much smaller: it may have dozens of new controllers before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord
from ..topic_rules.mirrored_topics import LARGEST_EPOCH

FURTHEST = 1 << 14
FURTHEST_AFTER_RESTORE = 1 << 20
"""After a comparison of logs, and for a partition that the store does not know: both are rare."""


class EpochDistances:
    """The distances of one controller, from its election to its end."""

    def __init__(self, random_below: Callable[[int], int] = secrets.randbelow) -> None:
        self._random_below = random_below
        self._given: set[TopicPartition] = set()

    def distance(self, key: TopicPartition, record: PartitionRecord, *, is_created: bool) -> int:
        """What to add to the partition's next leader epoch.

        `is_created`: its topic was created since this controller's election, so no broker has older records of it.
        """
        if not record.doubted and (is_created or key in self._given):
            return 0
        furthest = FURTHEST_AFTER_RESTORE if record.doubted or record.version < 0 else FURTHEST
        return self._random_below(distance_limit(record.leader_epoch, furthest))

    def stored(self, key: TopicPartition, before: int, after: int) -> None:
        """A state that this controller has decided is stored; the partition's leader epochs before it, and in it."""
        if after > before:
            self._given.add(key)

    def forget(self, key: TopicPartition) -> None:
        self._given.discard(key)


def distance_limit(leader_epoch: int, furthest: int = FURTHEST) -> int:
    """Distances from this epoch are below it: the same part of the epochs that are left as `furthest` is of all."""
    return max(1, (LARGEST_EPOCH - max(0, leader_epoch)) // (LARGEST_EPOCH // furthest))
