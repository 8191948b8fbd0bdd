"""The state that a partition should have, from the stored one, the events since (`Notes`) and the cluster.

`elections.settle` has the rules. Here is what only decisions need of a controller's past: which topics it has seen
created, which logs were compared, and which partitions have leader epochs of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import NO_LEADER, PartitionRecord
from ..topic_rules.mirrored_topics import first_epoch
from . import reassignment
from .elections import Situation, is_unclean_allowed, most_complete, settle
from .leader_epochs import EpochDistances
from .machine_state import MachineState
from .partitions import Notes, Partitions
from .recovery import Recovery

NOTHING = Notes()


class DecidingMachine(MachineState, Protocol):
    epoch: int
    known_brokers: set[int]
    partitions: Partitions
    recovery: Recovery


class Decisions:
    """Those of one controller, from its election to its end."""

    def __init__(self, machine: DecidingMachine, random_below: Callable[[int], int]) -> None:
        self._machine = machine
        self._epoch_distances = EpochDistances(random_below)
        self.compared: set[TopicPartition] = set()
        """Partitions whose logs were compared after the store was restored: those of later brokers are not newer."""
        self._created: dict[str, int] = {}
        """The topics created since this controller's election, with their first number of partitions."""

    def elected(self) -> None:
        """All topics so far were there before."""
        self._created.clear()

    def created(self, topic: str, partitions: int) -> None:
        self._created[topic] = partitions

    def stored(self, key: TopicPartition, before: int, after: int) -> None:
        """A decided state is stored; the partition's leader epochs before it, and in it."""
        self._epoch_distances.stored(key, before, after)

    def forget(self, key: TopicPartition) -> None:
        """The partition is gone."""
        self._epoch_distances.forget(key)
        self.compared.discard(key)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, with all partitions."""
        self._created.pop(topic, None)

    def min_isr(self, topic: str) -> int:
        machine = self._machine
        return int(machine.topics[topic].config.get("min.insync.replicas", machine.settings.min_isr))

    def decide(self, key: TopicPartition) -> PartitionRecord:
        """The state to store; the very one that is stored if nothing should change."""
        machine = self._machine
        record, notes = machine.records[key], machine.partitions.notes.get(key, NOTHING)
        config = machine.topics[key[0]].config
        min_isr = self.min_isr(key[0])
        finishing = (
            bool(record.adding or record.removing)
            and reassignment.can_finish(record, machine.brokers, min_isr)
            and not machine.assignments.is_wanted(key)
        )
        now = Situation(
            live=machine.brokers,
            leaving=machine.leaving,
            restarted=notes.restarted,
            forgetful=notes.forgetful,
            going=record.removing if finishing else (),
            min_isr=min_isr,
            unclean=notes.unclean or is_unclean_allowed(config, machine.settings),
            preferred=notes.preferred,
            new_epoch=notes.new_epoch,
            missed=notes.missed,
            doubted=notes.doubted,
            all_live=machine.known_brokers <= machine.brokers.keys(),
            first_epoch=first_epoch(config),
            distance=self._epoch_distances.distance(
                key,
                record,
                is_created=record.version < 0 and key[1] < self._created.get(key[0], 0),
            ),
            ends=machine.recovery.ends(key, machine.brokers),
        )
        wanted = settle(record, now)
        if record.doubted and not notes.doubted:
            if wanted is not record:
                self.compared.add(key)
            elif (joins := most_complete(record, now)) != NO_LEADER and not machine.assignments.is_wanted(
                key
            ):
                machine.assignments.want(key, reassignment.joined(record, joins))
                return record
        if wanted is not record:
            return replace(wanted, controller_epoch=machine.epoch)
        if finishing and record.leader not in record.removing:
            # The ISR shrinks after that: earlier, the leader would take them in again.
            machine.assignments.want(key, reassignment.finish(record))
        return record
