"""Finds the most complete log of a partition if no last member of the ISR can vouch for its log.

Every acknowledged record was once in all of these logs. So the log with the largest last epoch, and among equals the
largest end offset, has each acknowledged record that any of them still has (as in KIP-966's unclean recovery): an
epoch begins with everything acknowledged before it, and within one epoch all logs are prefixes of its leader's.
Replicas that had left the ISR are asked, too: they lack acknowledged records, but some is more than none.
The controller requests brokers' log ends; `elections.settle` decides once the live ones have responded. After the
store was restored from an older copy (`comparison`), it asks all brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set
from itertools import islice

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import NO_LEADER, BrokerRecord, PartitionRecord
from .messages import AskLogEnds, ComparisonWaits, LogEnd, LogEnds

EXAMPLES = 5
"""Partitions that the log names."""


def is_undecided(record: PartitionRecord) -> bool:
    """Whether nobody leads and every member of the ISR is a suspect, or the whole state is doubted."""
    return record.leader == NO_LEADER and (
        record.doubted or (bool(record.suspects) and set(record.isr) <= set(record.suspects))
    )


class Recovery:
    """The log ends that brokers reported, each in its current incarnation."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, dict[int, tuple[int, LogEnd]]] = {}
        self._requested: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        self._waits: dict[TopicPartition, tuple[int, ...]] = {}
        self._waiting_for: dict[tuple[int, ...], dict[TopicPartition, None]] = defaultdict(dict)
        self._is_news = False

    def take(self, event: LogEnds) -> Collection[TopicPartition]:
        """Record a report; returns the partitions it changes."""
        news = [key for key in event.ends if key in self._requested]
        for key in news:
            self._ends.setdefault(key, {})[event.broker] = event.broker_epoch, event.ends[key]
        return news

    def ends(self, key: TopicPartition, brokers: Mapping[int, BrokerRecord]) -> dict[int, LogEnd]:
        """Log ends by broker, of live brokers that have responded."""
        return {
            broker: end
            for broker, (epoch, end) in self._ends.get(key, {}).items()
            if broker in brokers and brokers[broker].epoch == epoch
        }

    def look(
        self, key: TopicPartition, record: PartitionRecord, brokers: Mapping[int, BrokerRecord]
    ) -> Iterator[AskLogEnds]:
        """Request the missing log ends of a partition for which nothing can be written."""
        if not is_undecided(record):
            self.forget(key)
            return
        requested = self._requested[key]
        for broker in dict.fromkeys((*record.isr, *record.replicas, *(brokers if record.doubted else ()))):
            if broker in brokers and requested.get(broker) != brokers[broker].epoch:
                requested[broker] = brokers[broker].epoch
                yield AskLogEnds(broker, (key,))

    def waits(self, key: TopicPartition, brokers: tuple[int, ...]) -> None:
        """The comparison of this partition's logs waits for some of these brokers; for none, it waits for responses."""
        before = self._waits.pop(key, ())
        if brokers:
            self._waits[key] = brokers
        if brokers != before:
            self._is_news = True
            self._waiting_for[before].pop(key, None)
            self._waiting_for[brokers][key] = None

    def news(self) -> Iterator[ComparisonWaits]:
        """The partitions that wait for brokers to start, if that has changed."""
        if self._is_news:
            self._is_news = False
            self._waiting_for.pop((), None)
            for brokers, keys in self._waiting_for.items():
                if keys:
                    yield ComparisonWaits(brokers, len(keys), tuple(islice(keys, EXAMPLES)))

    def undecided(self) -> Set[TopicPartition]:
        """The partitions for which brokers are asked for their log ends."""
        return self._requested.keys()

    def forget(self, key: TopicPartition) -> None:
        self._requested.pop(key, None)
        self._ends.pop(key, None)
        self.waits(key, ())
