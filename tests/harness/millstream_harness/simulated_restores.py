"""A simulated cluster whose tree is replaced by older copies of itself, at any moment, while brokers run or not.

Often a broker is down from the copy on, and leads before the others are back: it knows nothing newer, so there are two
histories. Crashes, lost messages, reassignments and deletions happen meanwhile, too. The exception is lost data: no
disk is wiped, or replaced by an older copy of itself, until the older tree is dealt with (docs/clusters.md).

The deciding parts are real: what a broker compares at its start (`log.known_states`), and the controller's comparison
of logs. A running broker loses its session, and goes on by what it knows until it reconnects: then it ends, if it
notices that the tree is older than it was, or registers again.

No acknowledged record may be lost: the leader has it, or else a stray does. The exception is a topic whose deletion was
requested: the copy may have it again, without records.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream_broker.coordination import PartitionRecord
from millstream_broker.log.known_states import KnownState, contradicts, forgotten
from millstream_harness.simulated_broker import LogKey, SimulatedBroker, SimulatedLog, Violation
from millstream_harness.simulated_cluster import Action, SimulatedCluster
from millstream_kafka.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class TreeCopy:
    """The nodes of the tree that outlive sessions."""

    assignments: dict[str, Any]
    states: dict[TopicPartition, PartitionRecord]
    generations: dict[int, int]
    deletions: set[str]
    controller_epoch: int


class RestoredCluster(SimulatedCluster):
    """The cluster, and copies of its tree."""

    def __init__(self, seed: int, *, brokers: int = 4, min_isr: int = 2) -> None:
        self.copy: TreeCopy | None = None
        self.cut_off: set[int] = set()
        """Brokers that run, and have not seen the restored tree yet."""
        self.pending: set[int] = set()
        """Brokers that have not been accepted since the last restore."""
        self.withheld: set[int] = set()
        """Brokers that do not start yet: those that are down from a copy until it is restored, or long after that."""
        self.forgiven: set[uuid.UUID] = set()
        self.restored = 0
        self.hidden: set[tuple[LogKey, int, tuple[int, int]]] = set()
        """Acknowledged records that only strays have."""
        super().__init__(seed, brokers=brokers, min_isr=min_isr)

    # Events

    def take_tree_copy(self) -> None:
        self.copy = TreeCopy(
            deepcopy(self.assignments),
            dict(self.states),
            dict(self.generations),
            set(self.deletions),
            self.controller_epoch,
        )
        self.tells("the tree is copied")
        up = [broker for broker in self.brokers.values() if broker.is_up]
        if up and not self.withheld and self.rng.random() < 0.5:
            broker = self.rng.choice(up)
            self.crash(broker, lose_memory=False)
            self.withheld = {broker.id}

    def restore_tree(self, copy: TreeCopy, *, live: bool) -> None:
        """Every session ends; without `live`, every broker has ended before."""
        for broker in self.brokers.values():
            if broker.is_up and not live:
                self.crash(broker, lose_memory=False)
        self.history += 1
        self.restored += 1
        self.assignments = deepcopy(copy.assignments)
        self.states, self.generations = dict(copy.states), dict(copy.generations)
        self.deletions, self.controller_epoch = set(copy.deletions), copy.controller_epoch
        self.controller_id = None
        for _, write, _ in self.isr_writes:
            write.isr.unknown()
        self.isr_writes.clear()
        self.registered.clear()
        self.sessions.clear()
        self.epochs.clear()
        self.cut_off = {broker.id for broker in self.brokers.values() if broker.is_up}
        self.pending = set(self.brokers)
        for topic_id in self.ended - self.forgiven:
            self._forgive(topic_id)
        for controller in self.controllers:
            controller.news.clear()
        early, self.withheld = self.withheld, set()
        if not live and self.rng.random() < 0.7:
            early = early or {self.rng.choice(list(self.brokers))}
            self.withheld = self.brokers.keys() - early
        self.tells(
            f"the tree is an older copy; {sorted(self.cut_off)} run, {sorted(self.withheld)} come late"
        )

    def _forgive(self, topic_id: uuid.UUID) -> None:
        """Its deletion was requested: it may be there again, with what some brokers had not deleted yet."""
        self.forgiven.add(topic_id)

    def start(self, broker: SimulatedBroker) -> None:
        self.cut_off.discard(broker.id)
        self._find_strays(broker)
        super().start(broker)

    def crash(self, broker: SimulatedBroker, *, lose_memory: bool) -> None:
        self.cut_off.discard(broker.id)
        super().crash(broker, lose_memory=lose_memory)

    def come_back(self) -> None:
        self.withheld = set()
        self.tells("all brokers may start")

    def calm(self, steps: int = 400) -> None:
        self.come_back()
        super().calm(steps)

    def _find_strays(self, broker: SimulatedBroker) -> None:
        for topic_id, index in broker.logs:
            known = self.assignments.get(self.names[topic_id])
            if known is None or index not in known[1] or broker.id not in known[1][index][0]:
                broker.strays.add((topic_id, index))

    def compare(self, broker: SimulatedBroker) -> None:
        """As `millstream_broker.cluster.generations` does at a start."""
        broker.ahead = 0
        if not broker.is_unclean:
            broker.ahead = max(0, broker.generation - self.generations.get(broker.id, 0) - 1)
        states = {
            (topic_id, index): KnownState(state.leader_epoch, state.version)
            for topic_id, index in broker.states
            if (state := self.states.get((self.names[topic_id], index))) is not None
        }
        found = forgotten(broker.states, states)
        broker.ahead = max([broker.ahead, *found.values()])
        broker.forgotten = {of: broker.states[of] for of in found}
        if broker.ahead:
            broker.returned |= set(broker.logs)

    def accepted(self, broker: SimulatedBroker, epoch: int) -> None:
        if broker.is_up and broker.epoch == epoch:
            for of, state in broker.forgotten.items():
                if broker.states.get(of) == state:
                    del broker.states[of]
            broker.forgotten = {}
        super().accepted(broker, epoch)

    def _registers_again(self, broker: SimulatedBroker) -> None:
        if broker.id in self.cut_off:
            if self._is_older_than(broker):
                self.tells(f"{broker.id} notices the older copy")
                self.crash(broker, lose_memory=False)
                broker.generation += 2
                return
            self.cut_off.discard(broker.id)
            for controller in self.controllers:
                if controller.id == broker.id and controller.history != self.history:
                    controller.is_over = True
        super()._registers_again(broker)

    def _is_older_than(self, broker: SimulatedBroker) -> bool:
        """Whether a running broker notices (`millstream_broker.coordination.coordination`)."""
        if self.generations.get(broker.id, 0) < broker.shown:
            return True
        if self.controller_epoch < broker.controller_epoch:
            return True
        for (name, index), (topic_id, known) in broker.view.items():
            if (isr := broker.leads.get((name, index))) is not None:
                known = max(known, isr.record, key=lambda record: record.version)
            topic, state = self.assignments.get(name), self.states.get((name, index))
            if broker.id not in known.replicas or topic is None or topic[0] != topic_id or state is None:
                continue
            seen = KnownState(known.leader_epoch, known.version)
            if known.version >= 0 and contradicts(seen, KnownState(state.leader_epoch, state.version)):
                return True
        return False

    def rise(self, broker: SimulatedBroker) -> None:
        if broker.id not in self.cut_off:
            super().rise(broker)
            broker.shown = self.generations.get(broker.id, 0)

    # Conditions

    def may_lose_memory(self, broker: SimulatedBroker) -> bool:
        return not self.is_settling() and super().may_lose_memory(broker)

    def is_settling(self) -> bool:
        """Whether an older copy is still being dealt with."""
        self.pending = {
            number
            for number in self.pending
            if (known := self.registered.get(number)) is None or known.unclean or known.ahead
        }
        return bool(self.pending) or any(one.doubted for one in self.states.values())

    def _actions_of_broker(self, broker: SimulatedBroker) -> Iterator[tuple[float, Action]]:
        for weight, action in super()._actions_of_broker(broker):
            if not (broker.id in self.withheld and isinstance(action, partial) and action.func == self.start):
                yield weight, action

    def _troubles(self) -> list[tuple[float, Action]]:
        troubles = super()._troubles()
        troubles.append((0.3, self.take_tree_copy))
        if self.withheld:
            troubles.append((0.2, self.come_back))
        if self.copy is not None and self.controller_epoch > self.copy.controller_epoch:
            for live in (False, True):
                troubles.append((0.2, partial(self.restore_tree, self.copy, live=live)))
        return troubles

    # What must never happen

    def is_stray(self, of: LogKey, offset: int) -> bool:
        """Whether what was committed at this offset is kept as a stray; then the partition's history goes on there."""
        if of[0] in self.forgiven:
            self._goes_on(of, offset)
            return True
        if not self.restored:
            return False
        record = self.truth[of].get(offset)
        if not any(has(log, offset, record) for log in self._strays(of)):
            return False
        self.hidden |= {(of, one, self.truth[of][one]) for one in self.acked[of] if one >= offset}
        self._goes_on(of, offset)
        return True

    def _goes_on(self, of: LogKey, offset: int) -> None:
        for facts in (self.truth[of], self.acked[of]):
            for later in [one for one in facts if one >= offset]:
                del facts[later]

    def _strays(self, of: LogKey) -> list[SimulatedLog]:
        found = []
        known = self.assignments.get(self.names[of[0]])
        replicas = known[1][of[1]][0] if known is not None and of[1] in known[1] else ()
        state = self.states.get((self.names[of[0]], of[1]))
        compared = -1 if state is None else state.compared
        for broker in self.brokers.values():
            found += broker.kept.get(of, [])
            if of not in broker.logs:
                continue
            may_lose = (
                broker.is_up and broker.id not in self.cut_off and not broker.is_unconfirmed(of, compared)
            )
            if of in broker.strays or broker.id not in replicas or not may_lose:
                found.append(broker.logs[of])
        return found

    def _check_end(self) -> None:
        super()._check_end()
        shown = {(of, offset, self.truth[of][offset]) for of in self.acked for offset in self.acked[of]}
        for of, offset, record in shown | self.hidden:
            logs = [log for broker in self.brokers.values() for log in self._all(broker, of)]
            if of[0] not in self.ended and not any(has(log, offset, record) for log in logs):
                name = f"{self.names[of[0]]}-{of[1]}"
                raise Violation(f"{name}: nobody has the acknowledged {record} at {offset}")

    @staticmethod
    def _all(broker: SimulatedBroker, of: LogKey) -> list[SimulatedLog]:
        return [*broker.kept.get(of, []), *([broker.logs[of]] if of in broker.logs else [])]


def has(log: SimulatedLog, offset: int, record: tuple[int, int] | None) -> bool:
    return offset < log.end and log.records[offset] == record
