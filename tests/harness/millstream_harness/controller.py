"""A controller's machine with a store and brokers that carry out its instructions at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from millstream_broker.controller.channels import update_request
from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    AnswerCaller,
    AssignmentWritten,
    RemoveTopic,
    Settings,
    StatesWritten,
    Stopped,
    StopReplicas,
    TopicRemoved,
    WriteAssignment,
    WriteStates,
)
from millstream_broker.coordination import BrokerRecord, PartitionRecord, TopicRecord
from millstream_broker.coordination.controllership import BrokersChanged, Image, StatesChanged
from millstream_broker.runtime.steps import to_the_end

T = TypeVar("T")
HELD_BACK = (-1, -1)
"""Leader and version sent instead of a state that is being written: brokers learn only that the partition exists."""


def topic(name: str, *replicas: tuple[int, ...], version: int = 0) -> TopicRecord:
    """A topic led by its first replicas, all in sync; version -1 means without partition states."""
    partitions = tuple(
        PartitionRecord(one, -1, -1, (), -1)
        if version < 0
        else PartitionRecord(one, one[0], 0, one, version, 1)
        for one in replicas
    )
    return TopicRecord(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), partitions)


class Controller:
    """A machine with a store that writes at once, and brokers that delete replicas on request."""

    def __init__(
        self,
        *topics: TopicRecord,
        brokers: Iterable[int] = (1, 2, 3),
        settings: Settings | None = None,
        deletions: Iterable[str] = (),
        distance: int = 0,
        known: Iterable[int] = (),
    ) -> None:
        """``known``: brokers that the store knows, besides the live ones."""
        self.machine = ControllerMachine(2, settings or Settings(), lambda limit: distance)
        self.epochs = dict.fromkeys(brokers, 1)
        self.unclean: set[int] = set()
        self.silent: set[int] = set()
        """Brokers that do not respond to StopReplica."""
        self.is_slow = False
        """Whether the store waits for `write`."""
        self.waiting: list[Any] = []
        """Pending writes of a slow store."""
        self.seen: list[Any] = []
        image = Image(
            self.brokers(), {one.name: one for one in topics}, frozenset(deletions), frozenset(known)
        )
        self._do(to_the_end(self.machine.start(image)))

    def brokers(self) -> dict[int, BrokerRecord]:
        return {
            number: BrokerRecord(number, (), None, epoch, number in self.unclean)
            for number, epoch in self.epochs.items()
        }

    def decide(self, event: Any) -> list[Any]:
        """The machine's instructions, not carried out."""
        return to_the_end(self.machine.handle(event))

    def handle(self, event: Any) -> list[Any]:
        """Handle the event, and all instructions that follow from it."""
        self.seen = []
        self._do(self.decide(event))
        return self.seen

    def live(self, *brokers: int) -> list[Any]:
        self.epochs = {number: self.epochs.get(number, 1) for number in brokers}
        return self.handle(BrokersChanged(self.brokers()))

    def restart(self, broker: int, *, unclean: bool = False) -> list[Any]:
        self.epochs[broker] = self.epochs.get(broker, 0) + 10
        self.unclean = {broker} if unclean else set()
        return self.handle(BrokersChanged(self.brokers()))

    def write(self) -> list[Any]:
        """Let a slow store carry out its pending writes, and everything that follows."""
        self.seen, waiting, self.waiting = [], self.waiting, []
        for one in waiting:
            self._carry_out(one)
        return self.seen

    def _do(self, instructions: Iterable[Any]) -> None:
        for one in instructions:
            self.seen.append(one)
            if self.is_slow and isinstance(one, WriteStates | WriteAssignment | RemoveTopic):
                self.waiting.append(one)
            else:
                self._carry_out(one)

    def _carry_out(self, one: Any) -> None:
        if isinstance(one, WriteStates):
            stored = {key: replace(each, version=each.version + 1) for key, each in one.states.items()}
            self._do(self.decide(StatesWritten(one.states, stored)))
        elif isinstance(one, WriteAssignment):
            self._do(self.decide(AssignmentWritten(one.topic)))
        elif isinstance(one, RemoveTopic):
            self._do(self.decide(TopicRemoved(one.name)))
        elif isinstance(one, StopReplicas) and one.delete and one.broker not in self.silent:
            self._do(self.decide(Stopped(one.broker, self.epochs[one.broker], one.partitions)))

    def record(self, name: str, index: int = 0) -> PartitionRecord:
        return self.machine.records[name, index]

    def in_sync(self, name: str, index: int, *isr: int) -> list[Any]:
        """The leader writes an ISR."""
        record = self.record(name, index)
        return self.handle(
            StatesChanged({(name, index): replace(record, isr=isr, version=record.version + 1)})
        )

    def reply(self, event: Any) -> Any:
        (reply,) = of(AnswerCaller, self.handle(event))
        return reply.result


def of(kind: type[T], seen: Iterable[Any]) -> list[T]:
    return [one for one in seen if isinstance(one, kind)]


def told(controller: Controller, *keys: tuple[str, int]) -> list[tuple[int, int]]:
    """Leader and version of these partitions, as sent to brokers."""
    request = to_the_end(update_request(1, 1, controller.machine, keys))
    return [(one.leader, one.zk_version) for topic in request.topic_states for one in topic.partition_states]
