"""A partition by the name of its topic and its number, as clients name it."""

from __future__ import annotations

from collections.abc import Iterable

TopicPartition = tuple[str, int]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, as most requests name them; both in the order given."""
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found
