"""Proofs that a stream is still a member of its group, which renew its lease.

librdkafka does not say when it sent a heartbeat that the coordinator has answered. So a stream sends a request of its
own: a commit with metadata longer than brokers allow. The coordinator first checks that it comes from a member of the
current generation, and counts it as a heartbeat; then it refuses the metadata. So it stores nothing, and can respond
without any other broker. If brokers allow longer metadata, they store the stream's standing position.

The request goes out in the background, and the stream's next call of librdkafka brings the response.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millstream.commit_metadata import metadata_of
from millstream.consuming.clock import now
from millstream.consuming.lease import RENEW_EVERY, Lease
from millstream.consuming.stream import MessageStream

MARK: Final = "millstream: am I still a member? "
LENGTH: Final = 4097
"""Length of the metadata: a byte more than the default of ``offset.metadata.max.bytes``."""
MOST: Final = 32767
"""Largest length that the protocol allows."""
AGAIN_S: Final = 0.05
"""Time until the next request after a failed one."""


class Proofs:
    """The proofs of one stream. Called with its lock held."""

    def __init__(self, session_s: float) -> None:
        self.lease = Lease()
        self._session_s = session_s
        self._memberships = 0
        self._asked: dict[int, tuple[int, float]] = {}  # by number: the membership, and the time of sending
        self._number = 0
        self._next = 0.0
        self._length = LENGTH

    def begin(self) -> None:
        """The stream now owns a partition, and owned none before."""
        self._memberships += 1
        self.lease.begin(self._memberships)
        self._asked.clear()
        self._next = 0.0

    def end(self) -> None:
        """The stream no longer owns any partition."""
        self.lease.end()

    def ask(self, stream: MessageStream, at: float) -> None:
        """Send a request if it is time for one; ``at``: the time before it is sent."""
        if at < self._next:
            return
        topic, partition, offset = stream.standing()
        number = self._number = self._number + 1
        # Stored after the positions of a transaction, but before its end, the standing position would outweigh them.
        length = MOST if stream.has_transactions else self._length
        metadata = f"{MARK}{number} ".ljust(length, ".")
        self._asked[number] = (self._memberships, at)
        self._next = at + 2 * RENEW_EVERY * self._session_s
        try:
            stream.kafka.commit(
                offsets=[TopicPartition(topic, partition, offset, metadata)], asynchronous=True
            )
        except KafkaException:  # the next request may succeed; otherwise the lease ends
            self._next = at + AGAIN_S

    def reported(self, error: KafkaError | None, partitions: Collection[TopicPartition]) -> bool:
        """Handle librdkafka's report of a commit; returns whether the commit was one of these requests."""
        metadata = next((metadata_of(at) for at in partitions), "")
        if not metadata.startswith(MARK):
            return False
        number = int(metadata.removeprefix(MARK).partition(" ")[0])
        membership, sent_at = self._asked.pop(number, (0, 0.0))
        if error is None:
            self._length = min(2 * self._length, MOST)  # the broker stored it
        elif error.code() != KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._next = min(self._next, now() + AGAIN_S)
            return True
        self.lease.renew(membership, sent_at, self._session_s)
        if number == self._number:
            self._next = sent_at + RENEW_EVERY * self._session_s
        return True
