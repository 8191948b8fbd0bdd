"""Plans reassignments: off brokers that leave, onto new brokers, to more or fewer replicas. Pure.

All three keep as many replicas as possible where they are, because each move copies a log, and keep the order of a
partition's replicas, the first of which is its preferred leader. A replica goes to a rack that its partition is not in
yet, if there is one; within the rack to the broker with the fewest replicas, then the fewest preferred leaders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...kafka.records import PartitionReplicas, Reassignments

TopicPartition = tuple[str, int]
Moves = dict[TopicPartition, tuple[int, ...]]
"""The new replicas of the partitions that must move."""


def arrived(partitions: Iterable[PartitionReplicas], reassigning: Reassignments) -> list[PartitionReplicas]:
    """The partitions as they will be when the current reassignments are done.

    Query ``reassigning`` before the partitions: a reassignment that ends in between then makes no difference.
    """
    found = []
    for one in partitions:
        going = reassigning.get((one.topic, one.partition))
        if going is not None:
            kept = tuple(broker for broker in one.replicas if broker not in going.removing)
            one = replace(one, replicas=kept)
        found.append(one)
    return found


class CannotPlace(Exception):
    """There are too few brokers; the message says for what."""


class _Load:
    """The number of replicas and of preferred leaders on each broker, updated as moves are decided."""

    def __init__(
        self,
        partitions: Iterable[PartitionReplicas],
        brokers: Collection[int],
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        self.brokers = sorted(brokers)
        self.racks = racks or {}
        for partition in partitions:
            self.add(partition.replicas)

    def add(self, replicas: Sequence[int]) -> None:
        self.replicas.update(replicas)
        self.leaders.update(replicas[:1])

    def remove(self, replicas: Sequence[int]) -> None:
        self.replicas.subtract(replicas)
        self.leaders.subtract(replicas[:1])

    def spread(self, replicas: Iterable[int]) -> int:
        """The number of racks of these brokers; a broker without a rack counts as one."""
        return len({self.racks.get(broker, broker) for broker in replicas})

    def best(self, others: Collection[int]) -> int:
        """The broker for a replica of a partition whose other replicas are on `others`."""
        there = {self.racks.get(other) for other in others}
        free = [broker for broker in self.brokers if broker not in others]
        return min(
            free,
            key=lambda broker: (
                self.racks.get(broker) in there and broker in self.racks,
                self.replicas[broker],
                self.leaders[broker],
                broker,
            ),
        )

    def surplus(self, replicas: Sequence[int], of: PartitionReplicas) -> int:
        """Which of these replicas to remove.

        In-sync replicas go last, because a complete copy is worth keeping, and the preferred leader after others; among
        those whose removal costs no rack, the last on the fullest broker.
        """
        return min(
            reversed(replicas),
            key=lambda broker: (
                broker in of.isr,
                -self.spread(other for other in replicas if other != broker),
                broker == of.replicas[0],
                -self.replicas[broker],
            ),
        )


def drain(
    partitions: Sequence[PartitionReplicas],
    leaving: Collection[int],
    staying: Collection[int],
    racks: Mapping[int, str] | None = None,
) -> Moves:
    """Move each replica on a leaving broker to one that stays. Raises CannotPlace."""
    load = _Load(partitions, staying, racks)
    moves: Moves = {}
    for partition in partitions:
        if not set(partition.replicas) & set(leaving):
            continue
        if len(partition.replicas) > len(staying):
            raise CannotPlace(
                f"{partition} has {len(partition.replicas)} replicas, and {len(staying)} brokers would stay: lower"
                " its Topic's replicationFactor first"
            )
        load.remove(partition.replicas)
        wanted = list(partition.replicas)
        for at, broker in enumerate(wanted):
            if broker in leaving:
                wanted[at] = load.best([member for member in wanted if member not in leaving])
        load.add(wanted)
        moves[partition.topic, partition.partition] = tuple(wanted)
    return moves


def with_factor(
    partitions: Sequence[PartitionReplicas],
    factor: int,
    brokers: Collection[int],
    everything: Iterable[PartitionReplicas] = (),
    racks: Mapping[int, str] | None = None,
) -> Moves:
    """Give these partitions `factor` replicas. `everything` tells how full the brokers are. Raises CannotPlace."""
    if factor > len(brokers):
        raise CannotPlace(f"{factor} replicas need as many brokers: there are {len(brokers)}")
    load = _Load(everything, brokers, racks)
    moves: Moves = {}
    for partition in partitions:
        wanted = list(partition.replicas)
        while len(wanted) > factor:
            wanted.remove(load.surplus(wanted, partition))
        while len(wanted) < factor:
            wanted.append(load.best(wanted))
        if tuple(wanted) != partition.replicas:
            load.remove(partition.replicas)
            load.add(wanted)
            moves[partition.topic, partition.partition] = tuple(wanted)
    return moves


def rebalance(
    partitions: Sequence[PartitionReplicas], brokers: Collection[int], racks: Mapping[int, str] | None = None
) -> Moves:
    """Move replicas from the fullest brokers to the emptiest until no broker has two more than another, or until every
    move would leave a partition in fewer racks.
    """
    load = _Load(partitions, brokers, racks)
    now = {(partition.topic, partition.partition): partition.replicas for partition in partitions}
    moves: Moves = {}
    while (step := _next_step(load, now, moves)) is not None:
        key, after = step
        load.remove(now[key])
        load.add(after)
        now[key] = moves[key] = after
    return moves


def _next_step(
    load: _Load, now: Mapping[TopicPartition, tuple[int, ...]], moves: Moves
) -> tuple[TopicPartition, tuple[int, ...]] | None:
    """One more replica for the emptiest broker, off the fullest one that has a replica for it."""
    emptiest = min(load.brokers, key=lambda broker: (load.replicas[broker], broker))
    for fullest in sorted(load.brokers, key=lambda broker: (load.replicas[broker], broker), reverse=True):
        if load.replicas[fullest] - load.replicas[emptiest] < 2:
            return None
        steps = {
            key: tuple(emptiest if broker == fullest else broker for broker in replicas)
            for key, replicas in now.items()
            if fullest in replicas and emptiest not in replicas
        }
        steps = {key: after for key, after in steps.items() if load.spread(after) >= load.spread(now[key])}
        if steps:
            # First a partition that moves anyway; then one whose preferred leader helps to balance leaders.
            spare_leaders = load.leaders[fullest] > load.leaders[emptiest]
            return min(
                steps.items(),
                key=lambda step: (step[0] not in moves, (now[step[0]][0] == fullest) != spare_leaders, step),
            )
    return None
