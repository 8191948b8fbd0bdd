"""How a stream takes part in its group: the side that the stream sees of either coordination."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaError, TopicPartition

from millstream.consuming.message import Partition

if TYPE_CHECKING:
    from millstream.consuming.stream import MessageStream


class Membership(Protocol):
    """How a stream gets partitions, and how its positions are kept. Called with the stream's lock held."""

    silence: str
    """Whose silence leaves it uncertain what the stream owns, for an error: "no ZooKeeper at … has answered"."""

    def begin(self, stream: MessageStream) -> None:
        """Start to take part; partitions arrive by `MessageStream.take`."""

    def attend(self, stream: MessageStream, elapsed_s: float) -> float:
        """Look whether the stream still owns what it has, ``elapsed_s`` after the last look; seconds until the next
        look must happen at the latest. Zero or less: that is uncertain now, so no message is handed out."""

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        """librdkafka's report of a commit in the background. True: the membership sent it for itself."""

    def commit(self, stream: MessageStream, positions: Mapping[Partition, int], *, wait: bool) -> None:
        """Keep positions of owned partitions. NotOwned when the stream no longer owns one."""

    def committed(self, stream: MessageStream, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The positions kept; partitions without one are left out."""

    def end(self, stream: MessageStream) -> None:
        """Leave: the partitions are free for others."""
