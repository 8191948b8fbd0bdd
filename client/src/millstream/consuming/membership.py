"""How a stream takes part in its group: the interface to both kinds of coordination."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from confluent_kafka import KafkaError, TopicPartition

from millstream.consuming.message import Partition

StreamT = TypeVar("StreamT", contravariant=True)


class Membership(Protocol[StreamT]):
    """Assigns partitions to a stream, and stores its positions. Called with the stream's lock held."""

    silence: str
    """The cause of uncertainty about the stream's partitions, for an error: "no ZooKeeper at … has answered"."""

    def begin(self, stream: StreamT) -> None:
        """Join; partitions arrive by `MessageStream.take`."""

    def attend(self, stream: StreamT, elapsed_s: float) -> float:
        """Check whether the stream still owns its partitions, ``elapsed_s`` after the last check.

        Returns the seconds until the latest time of the next check. Zero or less: ownership is uncertain now, so the
        stream returns no message.
        """

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        """Handle librdkafka's report of a background commit; returns whether the membership itself sent the commit."""

    def commit(self, stream: StreamT, positions: Mapping[Partition, int], *, wait: bool) -> None:
        """Store positions of owned partitions. NotOwned if the stream no longer owns one."""

    def committed(self, stream: StreamT, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The stored positions; partitions without one are left out."""

    def end(self, stream: StreamT) -> None:
        """Leave: others may take the partitions."""
