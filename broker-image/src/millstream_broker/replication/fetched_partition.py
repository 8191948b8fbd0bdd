"""A partition of a fetch session: what the client requests, what it knows, and who is notified of changes."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from millstream_kafka.protocol.fetch import FetchPartition
from millstream_kafka.topic_partition import TopicPartition

from .replica import FetchWaiter, Replica

Key = tuple[str | UUID, int]
"""Topic, by its name or id, and partition."""


class Watching(Protocol):
    """The session that watches partitions: `fetch_session`."""

    def advanced(self, fetched: FetchedPartition, size: int) -> None:
        """`size` more bytes of the partition can be read, or, with size 0, it changed otherwise."""

    def has_news(self, fetched: FetchedPartition) -> None:
        """The next response has news of the partition."""

    def waiters_of(self, replica: Replica) -> set[FetchWaiter]:
        """Where the session's partitions wait for changes of the replica."""


class FetchedPartition:
    """A partition as one client fetches it."""

    __slots__ = (
        "is_held_back",
        "is_loaded",
        "is_loading",
        "is_new",
        "key",
        "replica",
        "requested",
        "sent",
        "session",
        "stable",
        "topic_partition",
    )

    def __init__(self, key: Key, requested: FetchPartition) -> None:
        self.key = key
        """As the client names it."""
        self.topic_partition: TopicPartition | None = None
        """None until a topic with that id is found."""
        self.requested = requested
        self.is_new = True
        """The offset is new to us."""
        self.replica: Replica | None = None
        """The replica last read from: while it is the same, topic and leadership are the same."""
        self.sent: tuple[int, int] | None = None
        """High watermark and log start that the client knows."""
        self.stable = -1
        """The last stable offset at the last read, if only committed records are read; else -1."""
        self.is_held_back = False
        """Whether a transaction keeps that below the high watermark."""
        self.is_loading = False
        """A thread is loading the records' index entries into the page cache."""
        self.is_loaded = False
        """The thread is done: the next read may wait, so that loading ends."""
        self.session: Watching | None = None
        """Notified of the partition's changes; None if it is not watched."""

    def advanced(self, size: int) -> None:
        """`size` more bytes can be read, or, with size 0, the partition changed otherwise."""
        if self.session is not None:
            self.session.advanced(self, size)

    def committed(self) -> None:
        """The next response has news."""
        if self.session is not None:
            self.session.has_news(self)

    def is_kept_back(self) -> bool:
        """Whether the last stable offset has not moved since the last read, although the high watermark has."""
        assert self.replica is not None
        stable = self.replica.last_stable_offset
        if stable <= self.stable:
            self.is_held_back = True
            return True
        self.stable = stable
        return False

    def watch(self, session: Watching) -> None:
        if self.replica is not None:
            self.session = session
            session.waiters_of(self.replica).add(self)

    def leave(self) -> None:
        """Stop watching the partition."""
        if self.session is not None and self.replica is not None:
            self.session.waiters_of(self.replica).discard(self)
            self.session = None
