"""A controller of a simulated cluster: the real machine, with a store and channels that lose and delay messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millstream_broker.controller.channels import stop_request, update_request
from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    AcceptBroker,
    AnswerCaller,
    AskLogEnds,
    AssignmentWritten,
    BrokerAccepted,
    ComparisonWaits,
    LogEnds,
    Push,
    RefuseDeletion,
    RemoveTopic,
    Settings,
    StatesWritten,
    Stopped,
    StopReplicas,
    Tick,
    TopicRemoved,
    WriteAssignment,
    WriteStates,
)
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    DeletionsRequested,
    StatesChanged,
    TopicsChanged,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.simulated_broker import Violation
from millstream_kafka.topic_partition import TopicPartition

if TYPE_CHECKING:
    from millstream_harness.simulated_cluster import SimulatedCluster


NO_LOG = (-1, -1)


@dataclass(slots=True)
class Channel:
    epoch: int
    partitions: set[TopicPartition] = field(default_factory=set)
    is_behind: bool = False
    to_stop: dict[TopicPartition, int] = field(default_factory=dict)
    to_delete: set[TopicPartition] = field(default_factory=set)
    to_ask: set[TopicPartition] = field(default_factory=set)
    making: Any = None
    """The next request, so far, and its partitions."""
    sent: Any = None

    @property
    def has_work(self) -> bool:
        return self.is_behind or self.making is not None or bool(self.to_stop) or bool(self.to_delete)


class SimulatedController:
    """A controller on one of the brokers; `is_over` once it knows."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int, epoch: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.epoch = epoch
        self.is_over = False
        self.history = cluster.history
        settings = Settings(min_isr=cluster.min_isr, unclean_election=False)
        self.machine = ControllerMachine(epoch, settings, cluster.rng.randrange)
        self.writes: deque[Any] = deque()
        self.removals: dict[str, dict[int, int]] = {}
        """By topic: the brokers, with their epochs, at the time its removal was decided."""
        self.answer: Any = None
        self.channels: dict[int, Channel] = {}
        self.news: set[Any] = set()
        self.replies: dict[Hashable, Any] = {}
        self.asked: set[Hashable] = set()
        self.carry_out(to_the_end(self.machine.start(cluster.image())))

    def handle(self, event: Any) -> None:
        self.carry_out(to_the_end(self.machine.handle(event)))

    def carry_out(self, instructions: Iterable[Any]) -> None:
        for one in instructions:
            if isinstance(one, Push):
                for broker in one.brokers:
                    channel = self.channel(broker)
                    channel.partitions.update(
                        self.machine.records if one.partitions is None else one.partitions
                    )
                    channel.is_behind = True
            elif isinstance(one, StopReplicas):
                channel = self.channel(one.broker)
                if one.delete:
                    channel.to_delete.update(one.partitions)
                else:
                    channel.to_stop.update(one.partitions)
            elif isinstance(one, AskLogEnds):
                self.channel(one.broker).to_ask.update(one.partitions)
            elif isinstance(one, AnswerCaller):
                if one.caller in self.replies:
                    raise Violation(f"{one.caller} is answered twice")
                self.replies[one.caller] = one.result
            elif isinstance(one, ComparisonWaits):
                pass  # for the log
            else:
                if isinstance(one, RemoveTopic):
                    self.removals[one.name] = {
                        number: broker.epoch for number, broker in self.machine.brokers.items()
                    }
                self.writes.append(one)

    def channel(self, broker: int) -> Channel:
        epoch = self.machine.brokers[broker].epoch
        channel = self.channels.get(broker)
        if channel is None or channel.epoch != epoch:
            channel = self.channels[broker] = Channel(epoch)
        return channel

    def ask(self, make: Callable[[int], Any]) -> int:
        caller = next(self.cluster.values)
        self.asked.add(caller)
        self.handle(make(caller))
        return caller

    def report(self) -> None:
        """A watch reports the current state."""
        kind = self.cluster.rng.choice(sorted(self.news, key=str))
        self.news.discard(kind)
        cluster = self.cluster
        if kind == "brokers":
            self.handle(BrokersChanged(dict(cluster.registered)))
        elif kind == "topics":
            self.handle(TopicsChanged(cluster.topics(), frozenset(cluster.assignments)))
        elif kind == "deletions":
            self.handle(DeletionsRequested(frozenset(cluster.deletions)))
        elif kind in cluster.states:
            self.handle(StatesChanged({kind: cluster.record(kind)}))

    def write(self) -> None:
        """The store carries out the next write, and perhaps responds."""
        write, cluster = self.writes[0], self.cluster
        if (cluster.controller_epoch, cluster.history) != (self.epoch, self.history):
            self.is_over = True
            return
        if isinstance(write, WriteStates):
            stored = {key: cluster.write_state(self.epoch, key, one) for key, one in write.states.items()}
            event: Any = StatesWritten(
                write.states, {key: one for key, one in stored.items() if one is not None}
            )
        elif isinstance(write, WriteAssignment):
            cluster.write_assignment(write.topic)
            event = AssignmentWritten(write.topic)
        elif isinstance(write, RemoveTopic):
            cluster.remove_topic(write.name, self.removals[write.name])
            event = TopicRemoved(write.name)
        elif isinstance(write, AcceptBroker):
            known = cluster.registered.get(write.broker.broker_id)
            if known is not None and known.epoch == write.broker.epoch:
                cluster.registered[known.broker_id] = replace(known, unclean=False, ahead=0)
                cluster.accepted(cluster.brokers[known.broker_id], known.epoch)
                cluster.tell("brokers")
            event = BrokerAccepted(write.broker)
        else:
            assert isinstance(write, RefuseDeletion)
            cluster.deletions.difference_update(
                name for name in write.names if name not in cluster.assignments
            )
            event = Tick(0.0)
        self.answer = event

    def send(self, broker: int) -> None:
        """Send a broker the state that it should know by now, or build some more of the request."""
        channel = self.channels[broker]
        if channel.making is None and channel.is_behind:
            partitions = sorted(channel.partitions)
            steps = update_request(self.id, channel.epoch, self.machine, partitions)
            channel.making = (steps, set(partitions))
            channel.partitions.clear()
            channel.is_behind = False
        if channel.making is not None:
            steps, told = channel.making
            try:
                for _ in range(self.cluster.rng.randint(1, 4)):
                    next(steps)
            except StopIteration as end:
                channel.making, channel.sent = None, (end.value, told, ())
        else:
            wanted = self.machine.to_delete(broker)
            channel.to_delete.intersection_update(wanted)
            deleting = {key: wanted[key] for key in sorted(channel.to_delete)}
            request: Any = to_the_end(
                stop_request(
                    self.id,
                    self.epoch,
                    channel.epoch,
                    {name: topic.topic_id for name, topic in self.machine.topics.items()},
                    deleting,
                    channel.to_stop,
                )
            )
            channel.sent = (request, set(), tuple(deleting))
            channel.to_stop = {}

    def ask_log_ends(self, number: int) -> None:
        """Request a broker's log ends; it may respond, for partitions that it knows."""
        channel, broker = self.channels[number], self.cluster.brokers[number]
        channel.to_ask = {key for key in channel.to_ask if self.machine.is_undecided(key)}
        if not broker.is_up or broker.epoch != channel.epoch or self.cluster.is_lost():
            return
        known = [key for key in sorted(channel.to_ask) if key in broker.view]
        channel.to_ask.difference_update(known)
        logs = {key: broker.logs.get((broker.view[key][0], key[1])) for key in known}
        ends = {key: NO_LOG if log is None else log.last for key, log in logs.items()}
        self.handle(LogEnds(number, channel.epoch, ends))

    def settle(self, broker: int, is_answered: bool) -> None:
        channel = self.channels[broker]
        _, partitions, deleted = channel.sent
        channel.sent = None
        if not is_answered:
            channel.partitions |= partitions
            channel.is_behind |= bool(partitions) or not deleted
            return
        channel.to_delete.difference_update(deleted)
        if deleted:
            self.handle(Stopped(broker, channel.epoch, deleted))
