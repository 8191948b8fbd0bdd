"""The controller as a state machine: events in, instructions out (`messages`); no input or output, no clock.

It is level-triggered. `records` holds the stored state; a partition affected by an event is *dirty*; each event ends
with a look at the dirty ones: `decisions` returns the desired state of a partition, and if that differs
from the stored one, it is written. The result of the write is taken as the truth, whether it is our state or somebody
else's, and checked again. So lost responses, repeated reports and conflicts need no special code, and a new
controller only has to check everything.

- There is one write of a partition's state in flight at a time, and one of a topic's assignment, and no state is
  decided while the assignment is being written: every decision is based on the stored state.
- Restarts, lost data and requests are noted beside the partition (`Notes`), and cleared when a state that
  takes them into account is stored.
- Brokers learn a state only after it is stored.
- Work is bounded by the size of the cluster: sets of partitions, never queues of events.
- An event may concern every partition, so it is handled in steps, and others get their turn in between. It is handled
  to its end before the next one begins, and meanwhile nothing reads the machine: so it acts like a single step.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord, TopicRecord, same_state
from ..coordination.controllership import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Image,
    StatesChanged,
    TopicsChanged,
)
from ..runtime.ordered_set import OrderedSet
from ..runtime.steps import Steps
from . import administration, comparison, factor, reassignment
from .announcements import Announcements
from .assignments import Assignments
from .decisions import NOTHING, Decisions
from .deletion import EPOCH_DURING_DELETE, Deletion, begin, stopped
from .messages import (
    Abandoned,
    AcceptBroker,
    AnswerCaller,
    AssignmentWritten,
    BrokerAccepted,
    ElectionRequested,
    Event,
    Instruction,
    LogEnds,
    Push,
    ReassignmentRequested,
    RefuseDeletion,
    RemoveTopic,
    Settings,
    SettingsChanged,
    ShutdownRequested,
    StatesWritten,
    Stopped,
    StopReplicas,
    Tick,
    TopicRemoved,
    WriteAssignment,
    WriteStates,
)
from .partitions import Notes, Partitions, topic_portions
from .recovery import Recovery, is_undecided
from .requests import Requests

WRITE_AT_ONCE = 200
"""States in one WriteStates: brokers learn the first ones while the next are written."""


class ControllerMachine:
    """The state of one controller, from its election to its end. `epoch` is the controller's."""

    def __init__(
        self, epoch: int, settings: Settings, random_below: Callable[[int], int] = secrets.randbelow
    ) -> None:
        self.epoch = epoch
        self.settings = settings
        self.brokers: dict[int, BrokerRecord] = {}
        self.known_brokers: set[int] = set()
        self.leaving: set[int] = set()
        self.topics: dict[str, TopicRecord] = {}
        """With their present number of partitions; `records` has the partitions' states."""
        self.partitions = Partitions()
        self.records = self.partitions.records
        self.deletions: dict[str, Deletion] = {}
        self._writing: dict[TopicPartition, Notes] = {}
        self.assignments = Assignments()
        self._to_delete: frozenset[str] = frozenset()
        self._unaccepted: dict[int, set[TopicPartition]] = {}
        self._announcements = Announcements()
        self.requests = Requests()
        self.recovery = Recovery()
        self._decisions = Decisions(self, random_below)
        self._next_check: float | None = None
        self.out: list[Instruction] = []
        self._handlers: dict[type, Callable[[Any], Steps[None] | None]] = {
            BrokersChanged: self._brokers_changed,
            TopicsChanged: self._topics_changed,
            DeletionsRequested: lambda event: self._delete(event.topics),
            StatesChanged: self._states_changed,
            ConfigsChanged: self._configs_changed,
            StatesWritten: self._states_written,
            AssignmentWritten: self._assignment_written,
            TopicRemoved: self._topic_removed,
            BrokerAccepted: self._broker_accepted,
            Stopped: self._stopped,
            LogEnds: lambda event: self.partitions.dirty.update(self.recovery.take(event)),
            SettingsChanged: self._settings_changed,
            Tick: self._tick,
            ShutdownRequested: partial(administration.shut_down, self),
            ElectionRequested: partial(administration.elect, self),
            ReassignmentRequested: partial(administration.reassign, self),
            Abandoned: lambda event: self.requests.abandon(event.caller),
        }

    def start(self, image: Image) -> Steps[list[Instruction]]:
        """Take over: look at all partitions, and update all brokers. The first event."""
        self.out = []
        self.known_brokers |= image.known_brokers
        yield from self._add_topics(image.topics)
        self._decisions.elected()
        yield from self._brokers_changed(BrokersChanged(image.brokers))
        yield from self._delete(image.deletions)
        return (yield from self._finish())

    def handle(self, event: Event) -> Steps[list[Instruction]]:
        """The instructions for an event. Yields after each partition."""
        self.out = []
        steps = self._handlers[type(event)](event)
        if steps is not None:
            yield from steps
        return (yield from self._finish())

    # Queries

    def announced_brokers(self) -> list[BrokerRecord]:
        """The brokers to announce: all except those that are about to stop and no longer lead anything."""
        return [
            broker
            for number, broker in self.brokers.items()
            if number not in self.leaving or any(self.leads(number))
        ]

    def leads(self, broker: int) -> Iterable[TopicPartition]:
        """The partitions a broker leads; those being deleted have no leader, whatever is stored."""
        return (key for key in self.partitions.leads(broker) if key[0] not in self.deletions)

    def is_undecided(self, key: TopicPartition) -> bool:
        """Whether the ends of its logs decide the leader."""
        return key in self.records and key[0] not in self.deletions and is_undecided(self.records[key])

    def is_deleting(self, topic: str) -> bool:
        return topic in self.deletions

    def may_announce(self, key: TopicPartition) -> bool:
        """False if the stored leader has restarted: having lost data, it would make followers truncate."""
        leader = self.records[key].leader
        for notes in (self.partitions.notes.get(key), self._writing.get(key)):
            if notes is not None and (
                notes.doubted or leader in notes.restarted or leader in notes.forgetful
            ):
                return False
        return True

    # Brokers

    def _brokers_changed(self, event: BrokersChanged) -> Steps[None]:
        before, self.brokers = self.brokers, dict(event.brokers)
        self.known_brokers |= self.brokers.keys()
        ended = {number for number, broker in before.items() if _epoch(self.brokers, number) != broker.epoch}
        arrived = {
            number for number, broker in self.brokers.items() if _epoch(before, number) != broker.epoch
        }
        for broker in ended:
            yield from self._broker_ended(broker)
        for broker in sorted(arrived):
            yield from self._broker_arrived(self.brokers[broker])
        if ended or arrived:  # for partitions whose logs are compared, all brokers count
            self.partitions.dirty.update(self.recovery.undecided())
        others = tuple(number for number in self.brokers if number not in arrived)
        if others and before != self.brokers:
            self.out.append(Push(others, ()))

    def _broker_ended(self, broker: int) -> Steps[None]:
        self.leaving.discard(broker)
        self._unaccepted.pop(broker, None)
        yield from self.partitions.note_end(broker)
        for deletion in self.deletions.values():
            deletion.gone(broker)

    def _broker_arrived(self, broker: BrokerRecord) -> Steps[None]:
        number = broker.broker_id
        if broker.unclean or broker.ahead:
            concerned = self.records if broker.ahead else self.partitions.of_broker(number)
            self._unaccepted[number] = set(concerned)
            self._accept()
        yield from self.partitions.note_return(broker)
        if broker.ahead:
            yield from self.partitions.doubt(broker.ahead, self._decisions.compared)
        for deletion in self.deletions.values():
            yield from deletion.arrived(number, self._keys(deletion.name))
        self.out.append(Push((number,), None))
        if stops := self.to_delete(number):
            self.out.append(StopReplicas(number, stops, True))

    def to_delete(self, broker: int, among: Set[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The replicas that a broker must delete, with their leader epochs; only those in `among`, if given."""
        stops = {
            key: epoch
            for key, epoch in self.partitions.to_delete(broker, among).items()
            if key[0] not in self.deletions
        }
        names = self.deletions.keys() if among is None else self.deletions.keys() & {key[0] for key in among}
        for name in names:
            left = self.deletions[name].left(broker)
            stops |= dict.fromkeys(left if among is None else left & among, EPOCH_DURING_DELETE)
        return stops

    def _accept(self) -> None:
        for broker in [number for number, waiting in self._unaccepted.items() if not waiting]:
            del self._unaccepted[broker]
            self.out.append(AcceptBroker(self.brokers[broker]))

    def _broker_accepted(self, event: BrokerAccepted) -> None:
        known = self.brokers.get(event.broker.broker_id)
        if known is not None and known.epoch == event.broker.epoch:
            self.brokers[known.broker_id] = replace(known, unclean=False, ahead=0)

    # Topics

    def _topics_changed(self, event: TopicsChanged) -> Steps[None]:
        for name in [topic for topic in self.topics if topic not in event.present]:
            yield from self._forget(name)
        yield from self._add_topics(event.topics)
        if not self._to_delete.isdisjoint(event.topics):
            yield from self._delete(self._to_delete)

    def _add_topics(self, topics: Mapping[str, TopicRecord]) -> Steps[None]:
        """Add new topics and partitions: only this controller changes known assignments."""
        for topic in topics.values():
            known = self.topics.get(topic.name)
            if known is not None and known.topic_id != topic.topic_id:
                yield from self._forget(topic.name)
                known = None
            if known is None:
                self.topics[topic.name] = topic
                self._decisions.created(topic.name, len(topic.partitions))
                count = 0
            else:
                count = len(known.partitions)
                self.topics[topic.name] = replace(
                    known, partitions=known.partitions + topic.partitions[count:]
                )
            for index, record in enumerate(topic.partitions):
                if index >= count:
                    self.partitions.add((topic.name, index), record)
                else:
                    self._take((topic.name, index), record)
                yield

    def _forget(self, name: str) -> Steps[None]:
        self._announcements.forget(name)
        for key in self._keys(name):
            self.partitions.forget(key)
            self._settled(key)
            self.recovery.forget(key)
            self._decisions.forget(key)
            self.requests.happened(("assigned", key))
            yield
        self.topics.pop(name)
        self._decisions.forget_topic(name)
        self.deletions.pop(name, None)
        self._to_delete -= {name}
        self.assignments.drop(name)

    def _delete(self, names: Collection[str]) -> Steps[None]:
        """Delete topics. An unknown one may be reported soon: the store refuses only topics that do not exist."""
        self._to_delete = frozenset(names)
        if unknown := self._to_delete.difference(self.topics):
            self.out.append(RefuseDeletion(unknown))
        for name in sorted(names):
            if name in self.topics and name not in self.deletions:
                self.deletions[name] = Deletion(name)
                for key in self._keys(name):
                    self.partitions.dirty.add(key)
                    yield
            yield

    def _topic_removed(self, event: TopicRemoved) -> Steps[None]:
        if event.name in self.deletions and self.deletions[event.name].removing:
            yield from self._forget(event.name)

    def _configs_changed(self, event: ConfigsChanged) -> None:
        for name, config in event.topics.items():
            if name in self.topics and self.topics[name].config != config:
                self.topics[name] = replace(self.topics[name], config=config)
                self.partitions.dirty.update(self._keys(name))

    def _settings_changed(self, event: SettingsChanged) -> None:
        if event.settings != self.settings:
            self.settings = event.settings
            self.partitions.dirty.update(self.records)

    def _keys(self, name: str) -> Iterator[TopicPartition]:
        return ((name, index) for index in range(len(self.topics[name].partitions)))

    # States

    def _states_changed(self, event: StatesChanged) -> Steps[None]:
        for key, record in event.states.items():
            if key in self.records:
                self._take(key, record)
            yield

    def _take(self, key: TopicPartition, stored: PartitionRecord) -> None:
        """Take a state that may be newer than the known one; its assignment may be older."""
        known = self.records[key]
        if self.partitions.take_state(key, stored):
            self._announcements.push(key)
            if self.leaving:
                self._announcements.stop_leaving(self.leaving, key, known, stored)

    def _states_written(self, event: StatesWritten) -> Steps[None]:
        for key, requested in event.requested.items():
            yield
            used = self._writing.pop(key, None)
            if key not in self.records or used is None:
                continue
            self.partitions.dirty.add(key)
            self._announce_again(key, used)
            stored = event.stored.get(key)
            if stored is None:
                self.partitions.note(key).add(used)
                continue
            before = self.records[key].leader_epoch
            self._take(key, stored)
            if same_state(stored, requested):
                self._decisions.stored(key, before, stored.leader_epoch)
            else:
                self.partitions.note(key).add(used)

    def _announce_again(self, key: TopicPartition, notes: Notes) -> None:
        """The partition may be announced again (`may_announce`)."""
        if notes.restarted or notes.forgetful or notes.doubted:
            self._announcements.push(key)

    def _settled(self, key: TopicPartition) -> None:
        """Nothing is left to write: the notes are taken into account, or cannot be."""
        self._announce_again(key, self.partitions.notes.pop(key, NOTHING))
        if key in self.records and key[0] not in self.deletions:
            self.out += self.recovery.look(key, self.records[key], self.brokers)
            self._note_missing(key)
        self.requests.happened(key)
        if self._unaccepted:
            for waiting in self._unaccepted.values():
                waiting.discard(key)
            self._accept()

    def _note_missing(self, key: TopicPartition) -> None:
        record, ends = self.records[key], self.recovery.ends(key, self.brokers)
        if record.doubted:
            known = self.known_brokers
            missing = comparison.missing(record, self.brokers, ends, self._decisions.min_isr(key[0]), known)
            self.recovery.waits(key, missing)

    def _tick(self, event: Tick) -> Steps[None]:
        yield from factor.raise_factor(self)
        if self._next_check is not None:
            if event.now < self._next_check:
                return
            if self.settings.auto_rebalance:
                yield from administration.rebalance(self)
        self._next_check = event.now + self.settings.imbalance_check_s

    # Assignments

    def _assignment_written(self, event: AssignmentWritten) -> Steps[None]:
        name = event.topic.name
        changes = self.assignments.written(name)
        if name not in self.topics or self.topics[name].topic_id != event.topic.topic_id:
            return
        for index, assigned in changes.items():
            key = (name, index)
            before = self.records[key]
            self.partitions.take_assignment(key, assigned)
            if set(assigned.adding) - set(before.adding):
                # A log deleted this late is not one that is created now: it has an older epoch.
                self.partitions.note(key).new_epoch = True
            for broker in set(reassignment.leftover(assigned)) - set(reassignment.leftover(before)):
                if broker in self.brokers:
                    self.out.append(StopReplicas(broker, {key: before.leader_epoch}, True))
            self._announcements.push(key)
            if not self.assignments.is_wanted(key):
                self.requests.happened(("assigned", key))
            yield

    def _stopped(self, event: Stopped) -> Steps[None]:
        if _epoch(self.brokers, event.broker) != event.broker_epoch:
            return
        stopped(self.deletions, event.broker, event.partitions)
        for key in event.partitions:
            if key in self.records:
                record = self.assignments.newest(key, self.records[key])
                without = reassignment.deleted(record, event.broker)
                if without is not record:
                    self.assignments.want(key, without)
            yield

    # The end of each event

    def _finish(self) -> Steps[list[Instruction]]:
        yield from self._look_at_deletions()
        yield from self._look_at_states()
        yield from self._look_at_assignments()
        self.out += yield from self._announcements.take(self.topics, self.deletions, self.brokers)
        self.out += self.recovery.news()
        for caller, result in self.requests.complete():
            self.out.append(AnswerCaller(caller, result))
        out, self.out = self.out, []
        return out

    def _look_at_states(self) -> Steps[None]:
        elect: defaultdict[str, dict[TopicPartition, PartitionRecord]] = defaultdict(dict)
        shrink: defaultdict[str, dict[TopicPartition, PartitionRecord]] = defaultdict(dict)
        held = OrderedSet[TopicPartition]()
        for key in self.partitions.dirty:
            yield
            if key[0] in self.deletions:
                self._settled(key)
            elif key in self._writing:
                pass  # dirty again once it is written
            elif self.assignments.is_writing(key[0]):
                held.add(key)
            elif (wanted := self._decisions.decide(key)) is self.records[key]:
                self._settled(key)
            else:
                self._writing[key] = self.partitions.notes.pop(key, NOTHING)
                (shrink if wanted.leader == self.records[key].leader else elect)[key[0]][key] = wanted
        self.partitions.dirty = held
        for states in (elect, shrink):  # partitions without a leader come first
            for portion in topic_portions(states.values(), WRITE_AT_ONCE):
                self.out.append(WriteStates(portion))
                yield

    def _look_at_assignments(self) -> Steps[None]:
        for name, indexes in self.assignments.next(self.records, self.deletions.keys()):
            yield
            topic = None
            if name in self.deletions:
                self.assignments.drop(name)
            else:
                topic = self.assignments.begin(self.topics[name], self.records, indexes)
            if topic is not None:
                self.out.append(WriteAssignment(topic))
            else:
                for index in indexes:
                    self.requests.happened(("assigned", (name, index)))
                    yield

    def _look_at_deletions(self) -> Steps[None]:
        for deletion in self.deletions.values():
            yield
            name = deletion.name
            if not deletion.begun:
                if self.assignments.is_writing(name) or (yield from self._is_writing(name)):
                    continue
                self.out += yield from begin(deletion, self.brokers, self._keys(name), self.records)
            if deletion.is_done and not deletion.removing:
                deletion.removing = True
                self.out.append(RemoveTopic(name))

    def _is_writing(self, name: str) -> Steps[bool]:
        for key in self._keys(name):
            if key in self._writing:
                return True
            yield
        return False


def _epoch(brokers: Mapping[int, BrokerRecord], broker: int) -> int | None:
    return None if broker not in brokers else brokers[broker].epoch
