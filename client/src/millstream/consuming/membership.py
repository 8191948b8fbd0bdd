"""How a stream takes part in its group: the interface to both kinds of coordination."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaError, TopicPartition

from millstream.consuming.message import Partition

if TYPE_CHECKING:
    from millstream.consuming.stream import MessageStream


class Membership(Protocol):
    """Assigns partitions to a stream, and stores its positions. Called with the stream's lock held."""

    silence: str
    """The cause of uncertainty about the stream's partitions, for an error: "no ZooKeeper at … has answered"."""

    def begin(self, stream: MessageStream) -> None:
        """Join; partitions arrive by `MessageStream.take`."""

    def attend(self, stream: MessageStream, elapsed_s: float) -> float:
        """Check whether the stream still owns its partitions, ``elapsed_s`` after the last check.

        Returns the seconds until the latest time of the next check. Zero or less: ownership is uncertain now, so the
        stream returns no message.
        """

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        """Handle librdkafka's report of a background commit; returns whether the membership itself sent the commit."""

    def commit(self, stream: MessageStream, positions: Mapping[Partition, int], *, wait: bool) -> None:
        """Store positions of owned partitions. NotOwned if the stream no longer owns one."""

    def committed(self, stream: MessageStream, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The stored positions; partitions without one are left out."""

    def end(self, stream: MessageStream) -> None:
        """Leave: others may take the partitions."""
