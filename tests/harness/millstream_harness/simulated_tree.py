"""The tree of a simulated cluster, its watches, and its invariants (`Violation`)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import replace
from typing import Any

from millstream_broker.coordination import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord
from millstream_broker.coordination.controllership import Image
from millstream_harness.simulated_broker import (
    LogKey,
    SimulatedBroker,
    SimulatedLog,
    Violation,
)
from millstream_harness.simulated_controller import SimulatedController
from millstream_kafka.topic_partition import TopicPartition


class SimulatedTree:
    """The part of ZooKeeper that simulated brokers and controllers use."""

    brokers: dict[int, SimulatedBroker]

    def __init__(self) -> None:
        self.story: list[str] = []
        self.controllers: list[SimulatedController] = []
        self.controller_epoch = 0
        self.controller_id: int | None = None
        self.registered: dict[int, BrokerRecord] = {}
        self.sessions: set[int] = set()
        """Brokers that may write: one that was wrongly taken for ended is not registered, but has a session."""
        self.assignments: dict[str, tuple[uuid.UUID, dict[int, tuple[tuple[int, ...], ...]]]] = {}
        self.states: dict[TopicPartition, PartitionRecord] = {}
        self.generations: dict[int, int] = {}
        self.deletions: set[str] = set()
        self.history = 0
        """It grows with each older copy that replaces the tree: nothing of before has a session."""
        # checked facts
        self.names: dict[uuid.UUID, str] = {}
        self.truth: dict[LogKey, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.acked: dict[LogKey, dict[int, int]] = defaultdict(dict)
        self.led: dict[tuple[uuid.UUID, int, int], int] = {}
        self.epochs: dict[LogKey, int] = {}
        self.ended: set[uuid.UUID] = set()
        """Topics whose deletion was requested."""

    def tells(self, text: str) -> None:
        self.story.append(f"{len(self.story):5} {text}")

    def tell(self, kind: Any) -> None:
        for controller in self.controllers:
            if not controller.is_over and controller.history == self.history:
                controller.news.add(kind)

    def record(self, key: TopicPartition) -> PartitionRecord:
        replicas, adding, removing = self.assignments[key[0]][1][key[1]]
        state = self.states.get(key)
        if state is None:
            return PartitionRecord(replicas, NO_LEADER, -1, (), -1, adding=adding, removing=removing)
        return replace(state, replicas=replicas, adding=adding, removing=removing)

    def topics(self) -> dict[str, TopicRecord]:
        return {
            name: TopicRecord(
                name, topic_id, tuple(self.record((name, index)) for index in sorted(partitions))
            )
            for name, (topic_id, partitions) in self.assignments.items()
        }

    def image(self) -> Image:
        return Image(dict(self.registered), self.topics(), frozenset(self.deletions))

    def write_state(
        self, controller_epoch: int, key: TopicPartition, record: PartitionRecord
    ) -> PartitionRecord | None:
        """Write conditionally; returns the stored state, None if there is no such partition."""
        if key[0] not in self.assignments or key[1] not in self.assignments[key[0]][1]:
            return None
        before = self.states.get(key)
        if (before.version if before else -1) != record.version:
            return self.record(key)
        self._check_state(key, before, record)
        written = replace(record, version=record.version + 1)
        self.states[key] = written
        self.tells(
            f"zk {key[0]}-{key[1]} v{written.version} leader {written.leader} epoch {written.leader_epoch} "
            f"isr {written.isr} elr {written.elr} by controller {controller_epoch}"
        )
        return self.record(key)

    def write_assignment(self, topic: TopicRecord) -> None:
        if topic.name not in self.assignments or self.assignments[topic.name][0] != topic.topic_id:
            return
        partitions = self.assignments[topic.name][1]
        for index, one in enumerate(topic.partitions):
            if index in partitions:
                partitions[index] = (one.replicas, one.adding, one.removing)
                state = self.states.get((topic.name, index))
                if state is not None and not set(state.isr) & set(one.replicas):
                    raise Violation(f"the whole ISR {state.isr} of {topic.name}-{index} is dropped: {one}")
        self.tells(f"zk {topic.name} assigned {partitions}")
        self.tell("topics")

    def remove_topic(self, name: str, asked: dict[int, int]) -> None:
        """`asked` are the brokers, with their epochs, that the controller waited for.

        A broker that registers again during the removal may list the topic until the controller's next request.
        """
        if name not in self.assignments:
            return
        topic_id = self.assignments[name][0]
        for broker in self.brokers.values():
            if any(of[0] == topic_id and of not in broker.strays for of in broker.logs):
                raise Violation(f"{name} is removed though broker {broker.id} has a log of it")
            known = self.registered.get(broker.id)
            is_live = broker.is_up and known is not None and known.epoch == broker.epoch
            if (
                is_live
                and asked.get(broker.id) == broker.epoch
                and any(key[0] == name for key in broker.view)
            ):
                raise Violation(f"{name} is removed though broker {broker.id} lists it")
        del self.assignments[name]
        self.deletions.discard(name)
        for key in [key for key in self.states if key[0] == name]:
            del self.states[key]
        self.tells(f"zk {name} removed")
        self.tell("topics")
        self.tell("deletions")

    # What must never happen

    def _check_state(
        self, key: TopicPartition, before: PartitionRecord | None, after: PartitionRecord
    ) -> None:
        name = f"{key[0]}-{key[1]}"
        topic_id = self.assignments[key[0]][0]
        epoch = self.epochs.get((topic_id, key[1]), -1)
        if after.leader_epoch < epoch:
            raise Violation(f"{name}: leader epoch {after.leader_epoch} after {epoch}")
        self.epochs[topic_id, key[1]] = after.leader_epoch
        if not after.isr:
            raise Violation(f"{name}: an empty ISR")
        if after.leader != NO_LEADER and after.leader not in after.isr:
            raise Violation(f"{name}: the leader {after.leader} is not in the ISR {after.isr}")
        if before is None:
            return
        if after.leader_epoch == before.leader_epoch and after.leader != before.leader:
            raise Violation(f"{name}: two leaders in epoch {after.leader_epoch}")
        able = (NO_LEADER, *before.isr, *before.elr)
        if after.leader != before.leader and after.leader not in able and not before.doubted:
            raise Violation(
                f"{name}: {after.leader} is elected, neither in ISR {before.isr} nor ELR {before.elr}"
            )

    def leads(self, broker: int, key: TopicPartition, topic_id: uuid.UUID, record: PartitionRecord) -> None:
        led_by = self.led.setdefault((topic_id, key[1], record.leader_epoch), broker)
        self.tells(f"{broker} leads {key[0]}-{key[1]} in epoch {record.leader_epoch}, isr {record.isr}")
        if led_by != broker:
            raise Violation(f"{key}: {broker} and {led_by} both lead in epoch {record.leader_epoch}")

    def committed(
        self, broker: int, key: TopicPartition, topic_id: uuid.UUID, log: SimulatedLog, before: int
    ) -> None:
        truth = self.truth[topic_id, key[1]]
        for offset in range(before, log.high_watermark):
            record = log.records[offset]
            known = truth.setdefault(offset, record)
            if known != record and not self.is_stray((topic_id, key[1]), offset):
                raise Violation(
                    f"{key} offset {offset}: {record} at leader {broker}, {known} was committed before"
                )
            truth[offset] = record

    def is_stray(self, of: LogKey, offset: int) -> bool:
        """Whether what was committed at this offset is kept, but not served: no such thing happens here."""
        return False

    def acknowledged(self, key: TopicPartition, topic_id: uuid.UUID, offset: int, value: int) -> None:
        self.acked[topic_id, key[1]][offset] = value
