"""Gives __consumer_offsets the replicas that it lacks of `offsets.topic.replication.factor`, when brokers register.

The topic is created at the first use of groups, with as many replicas as brokers run. Kafka refuses groups until enough
do, so a cluster of two serves none by default. Here the controller adds replicas later: to each partition on those
brokers, of the racks that have the fewest of its replicas, that have the fewest of the topic. It removes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord
from ..runtime.steps import Steps
from ..topic_rules.internal_topics import OFFSETS_TOPIC
from . import reassignment
from .machine_state import MachineState
from .messages import FactorRaised, Instruction


class FactorMachine(MachineState, Protocol):
    out: list[Instruction]


def raise_factor(machine: FactorMachine) -> Steps[None]:
    """Begin to add replicas, as far as brokers are there to take them. Yields after each partition."""
    if OFFSETS_TOPIC in machine.deletions:
        return
    able = {number: one for number, one in machine.brokers.items() if number not in machine.leaving}
    factor = min(machine.settings.offsets_factor, len(able))
    assigned = {key: machine.assignments.newest(key, record) for key, record in _records(machine).items()}
    short = [
        key
        for key, one in assigned.items()
        if len(one.replicas) < factor and not set(one.removing) & set(one.replicas)  # a move ends first
    ]
    if not short:
        return
    load = Counter(broker for record in assigned.values() for broker in record.replicas)
    for key in short:
        replicas = assigned[key].replicas
        while len(replicas) < factor:
            added = _best(replicas, able, machine.brokers, load)
            load[added] += 1
            replicas = (*replicas, added)
        machine.assignments.want(key, reassignment.begin(assigned[key], replicas))
        yield
    machine.out.append(FactorRaised(OFFSETS_TOPIC, len(short), factor))


def missing(machine: FactorMachine) -> int:
    """Replicas that the partitions of __consumer_offsets lack of the factor; those being copied are missing."""
    factor = machine.settings.offsets_factor
    return sum(max(0, factor - len(reassignment.origin(one))) for one in _records(machine).values())


def _records(machine: FactorMachine) -> Mapping[TopicPartition, PartitionRecord]:
    topic = machine.topics.get(OFFSETS_TOPIC)
    keys = ((OFFSETS_TOPIC, index) for index in range(0 if topic is None else len(topic.partitions)))
    return {key: machine.records[key] for key in keys}


def _best(
    replicas: Collection[int],
    able: Mapping[int, BrokerRecord],
    brokers: Mapping[int, BrokerRecord],
    load: Mapping[int, int],
) -> int:
    racks = Counter(_rack(brokers[one]) for one in replicas if one in brokers)
    return min(
        (racks[_rack(one)], load[number], number) for number, one in able.items() if number not in replicas
    )[2]


def _rack(broker: BrokerRecord) -> Any:
    """A broker without a rack counts as a rack of its own."""
    return broker.broker_id if broker.rack is None else broker.rack
