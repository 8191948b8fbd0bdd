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

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import NO_LEADER, BrokerRecord, PartitionRecord
from .messages import AskLogEnds, LogEnd, LogEnds


def is_undecided(record: PartitionRecord) -> bool:
    """Whether nobody leads and every member of the ISR is a suspect, or the whole state is doubted."""
    return record.leader == NO_LEADER and (
        record.doubted or (bool(record.suspects) and set(record.isr) <= set(record.suspects))
    )


class Recovery:
    """The log ends that brokers reported, each in its current incarnation."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, dict[int, tuple[int, LogEnd]]] = {}
        self._asked: dict[TopicPartition, dict[int, int]] = defaultdict(dict)

    def take(self, event: LogEnds) -> Collection[TopicPartition]:
        """Record a report; returns the partitions it changes."""
        news = [key for key in event.ends if key in self._asked]
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
        asked = self._asked[key]
        for broker in dict.fromkeys((*record.isr, *record.replicas, *(brokers if record.doubted else ()))):
            if broker in brokers and asked.get(broker) != brokers[broker].epoch:
                asked[broker] = brokers[broker].epoch
                yield AskLogEnds(broker, (key,))

    def undecided(self) -> Set[TopicPartition]:
        """The partitions for which brokers are asked for their log ends."""
        return self._asked.keys()

    def forget(self, key: TopicPartition) -> None:
        self._asked.pop(key, None)
        self._ends.pop(key, None)
