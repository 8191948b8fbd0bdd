"""One consumer's side of the rebalance in the Kafka paper (NetDB 2011), as a state machine without I/O.

    read the registry → stop and release partitions that others should own → claim and start the missing ones
    → retry refused claims

Each consumer decides alone. Two consumers may see different states of the registry, but a partition still has at most
one owner, because the owner is an ephemeral node that only one of them can create. The watches set by a read start
the next round, so in the end all consumers decide from the same state. The paper releases all partitions in each
round; this machine keeps those that stay, so that their messages continue to flow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from millstream.consuming.message import Partition
from millstream.consuming.zookeeper.assignment import target_of

AT_ONCE: Final = 50
"""Most partitions that a stream stops or starts at once: the first messages wait for no more claims than that."""


@dataclass(frozen=True, slots=True)
class Register:
    """Write the consumer's node in this session."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read consumers and topics, and set watches."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the partitions' messages in the stream, and commit."""

    partitions: tuple[Partition, ...]
    thread: str


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the partition's owner node if it is this consumer's."""

    partition: Partition


@dataclass(frozen=True, slots=True)
class Claim:
    """Create the partition's owner node, or find that it is this stream's already."""

    partition: Partition
    thread: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the partitions' messages in the stream, which owns them."""

    partitions: tuple[Partition, ...]
    thread: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until something changes, or for the time of a retry."""


Action: TypeAlias = Register | Read | Stop | Release | Claim | Start | Wait


def _of_one(partitions: Mapping[Partition, str]) -> tuple[tuple[Partition, ...], str] | None:
    """Limits the partitions of one stream, which starts or stops them together: each time it waits for its fetch."""
    for (topic, _), thread in partitions.items():
        its = (at for at, name in partitions.items() if at[0] == topic and name == thread)
        return tuple(islice(its, AT_ONCE)), thread
    return None


class Rebalance:
    """Call `next`, carry out the action, report the result by another method, and repeat. None means settled.

    An action without a report may have taken effect or not: its connection failed. So a partition counts as released,
    claimed, started or stopped only after the report. Until then the action is due again.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._registered = False
        self._dirty = True
        self._target: dict[Partition, str] = {}
        self._refused: set[Partition] = set()
        self._nodes: dict[
            Partition, str
        ] = {}  # owner nodes that are or may be ours, with the threads that they name
        self._claimed: set[Partition] = set()  # those of them that are ours
        self._begun: set[Partition] = set()  # those of them whose messages a stream hands out, or may
        self._streaming: set[Partition] = set()  # those of them whose start was reported

    def next(self) -> Action | None:
        if not self._registered:
            return Register()
        if self._dirty:
            self._dirty = False  # before the read: a watch may fire during it
            return Read()
        leaving = {at: thread for at, thread in self._nodes.items() if self._target.get(at) != thread}
        if stopping := _of_one({at: thread for at, thread in leaving.items() if at in self._begun}):
            return Stop(*stopping)
        for partition in leaving:
            self._claimed.discard(partition)
            return Release(partition)
        ready: dict[Partition, str] = {}
        for partition, thread in self._target.items():
            if partition in self._streaming or partition in self._refused:
                continue
            if partition in self._claimed:
                ready[partition] = thread
            elif len(ready) < AT_ONCE:
                self._nodes[partition] = thread
                return Claim(partition, thread)
        if starting := _of_one(ready):
            self._begun.update(starting[0])
            return Start(*starting)
        return Wait() if self._refused else None

    def registered(self) -> None:
        self._registered = True
        self._dirty = True

    def read(self, consumers: Mapping[str, Mapping[str, int]], topics: Mapping[str, Collection[int]]) -> None:
        """The content of the registry. Report later changes, or a failed read, by `changed`."""
        self._refused.clear()
        if self._consumer not in consumers:  # its node was deleted
            self._registered = False
        self._target = target_of(self._consumer, consumers, topics)

    def stopped(self, partitions: Collection[Partition]) -> None:
        self._begun.difference_update(partitions)
        self._streaming.difference_update(partitions)

    def released(self, partition: Partition) -> None:
        self._claimed.discard(partition)
        self._nodes.pop(partition, None)

    def claimed(self, partition: Partition) -> None:
        self._claimed.add(partition)

    def refused(self, partition: Partition) -> None:
        """Another consumer still owns the partition. The round claims the others, then waits and retries."""
        self._nodes.pop(partition, None)
        self._refused.add(partition)

    def started(self, partitions: Collection[Partition]) -> None:
        self._streaming.update(partitions)

    def postponed(self, partitions: Collection[Partition]) -> None:
        """The partitions' messages cannot start yet. They stay claimed; the next round retries."""
        self._refused.update(partitions)
        self._begun.difference_update(partitions)

    def changed(self) -> None:
        """A watch has fired, or a retry is due."""
        self._dirty = True

    def lost(self) -> None:
        """The session has expired, and its nodes are gone. The streams must have stopped before.

        A claim on its way may have reached the next session, so the nodes are in doubt.
        """
        self._claimed.clear()
        self._begun.clear()
        self._streaming.clear()
        self._registered = False

    @property
    def nodes(self) -> tuple[Partition, ...]:
        """The partitions whose owner nodes are or may be this consumer's."""
        return tuple(self._nodes)

    @property
    def streaming(self) -> frozenset[Partition]:
        """The partitions whose messages the streams hand out."""
        return frozenset(self._streaming)
