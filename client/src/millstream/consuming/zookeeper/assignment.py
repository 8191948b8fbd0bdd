"""Assigns a topic's partitions to a group's streams: every consumer computes the same from the same registry.

Source: the Kafka paper, algorithm 1, with the remainder spread as in Kafka's range assignor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millstream.consuming.message import Partition


def ranges(partitions: Iterable[int], threads: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Both sorted; each thread gets a contiguous range, and the first ones get one more if there is a remainder."""
    numbers, names = sorted(partitions), sorted(threads)
    if not names:
        return {}
    share, extra = divmod(len(numbers), len(names))
    found, begin = {}, 0
    for index, name in enumerate(names):
        end = begin + share + (index < extra)
        found[name] = tuple(numbers[begin:end])
        begin = end
    return found


def thread_name(consumer: str, number: int) -> str:
    """A stream's name in the registry of owners, as in classic Kafka."""
    return f"{consumer}-{number}"


def threads_of(topic: str, consumers: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The streams of all consumers that subscribe to a topic; ``consumers``: streams by topic, by consumer."""
    return [
        thread_name(consumer, number)
        for consumer, streams in consumers.items()
        for number in range(streams.get(topic, 0))
    ]


def target_of(
    consumer: str, consumers: Mapping[str, Mapping[str, int]], topics: Mapping[str, Collection[int]]
) -> dict[Partition, str]:
    """The streams of one consumer by the partitions that they should own."""
    found: dict[Partition, str] = {}
    for topic, count in consumers.get(consumer, {}).items():
        own = {thread_name(consumer, number) for number in range(count)}
        for thread, partitions in ranges(topics.get(topic, ()), threads_of(topic, consumers)).items():
            if thread in own:
                found |= {(topic, partition): thread for partition in partitions}
    return found
