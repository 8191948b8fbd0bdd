"""A replica on this broker that consumers may read: led (`partition`) or followed (`replication.follower`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination import TopicRecord
from ..log.log import Log


class FetchWaiter(Protocol):
    """A fetch that waits for records."""

    def advanced(self, size: int) -> None:
        """This many more bytes can be read; or, with size 0, the replica changed so that a retry is worthwhile."""

    def committed(self) -> None:
        """The next response has news: the high watermark moved, or the start of the log."""


class Replica:
    """All calls are made on the loop."""

    __slots__ = (
        "high_watermark",
        "index",
        "log",
        "received_bytes",
        "record",
        "replicated_bytes",
        "sent_bytes",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(self, topic: TopicRecord, index: int, log: Log, high_watermark: int) -> None:
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.record = topic.partitions[index]
        self.high_watermark = high_watermark
        """Records below it are safe, and may be read."""
        self.waiters: set[FetchWaiter] = set()
        """Consumers' fetches, notified when the high watermark moves."""
        self.received_bytes = 0
        """Bytes appended as the leader, since this object was created."""
        self.sent_bytes = 0
        """Bytes read by consumers."""
        self.replicated_bytes = 0
        """Bytes read by followers."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def last_stable_offset(self) -> int:
        """End of reads with read_committed: the high watermark, unless a transaction keeps it back (`transactions`)."""
        if not (transactions := self.log.producers.transactions):
            return self.high_watermark
        return transactions.last_stable_offset(self.high_watermark, self.log.log_start_offset)

    def check_epoch(self, epoch: int) -> None:
        """Compare the leader epoch that a client knows (-1: none); raises ApiError (KIP-320)."""
        if epoch == -1 or epoch == self.record.leader_epoch:
            return
        if epoch < self.record.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_online(self) -> None:
        """Raises ApiError KAFKA_STORAGE_ERROR if the log cannot be used."""
        if (error := self.log.offline) is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self} is offline: {error.strerror or error}")


def wake(waiters: Collection[FetchWaiter], size: int) -> None:
    """See `FetchWaiter.advanced`."""
    for waiter in tuple(waiters):
        waiter.advanced(size)
