"""Gives internal topics the replicas that they lack of their settings, when brokers register.

These are `offsets.topic.replication.factor` and `transaction.state.log.replication.factor`. The topics are created at
the first use of groups and of transactions, with as many replicas as brokers run. Kafka refuses both until enough do,
so a cluster of two serves none by default. Here the controller adds replicas later: to each partition on those brokers,
of the racks that have the fewest of its replicas, that have the fewest of the topic. It removes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord
from ..runtime.steps import Steps
from ..topic_rules.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from . import reassignment
from .machine_state import MachineState
from .messages import FactorRaised, Instruction


class FactorMachine(MachineState, Protocol):
    out: list[Instruction]


def raise_factor(machine: FactorMachine) -> Steps[None]:
    """Begin to add replicas, as far as brokers are there to take them. Yields after each partition."""
    for topic, factor in _factors(machine).items():
        yield from _raise(machine, topic, factor)


def _raise(machine: FactorMachine, topic: str, wanted: int) -> Steps[None]:
    if topic in machine.deletions:
        return
    able = {number: broker for number, broker in machine.brokers.items() if number not in machine.leaving}
    factor = min(wanted, len(able))
    records = _records(machine, topic)
    assigned = {key: machine.assignments.newest(key, record) for key, record in records.items()}
    short = [
        key
        for key, record in assigned.items()
        if len(record.replicas) < factor
        and not set(record.removing) & set(record.replicas)  # a move ends first
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
    machine.out.append(FactorRaised(topic, len(short), factor))


def missing(machine: MachineState) -> int:
    """Replicas that the partitions of __consumer_offsets lack of the factor; those being copied are missing."""
    factor, records = machine.settings.offsets_factor, _records(machine, OFFSETS_TOPIC)
    return sum(max(0, factor - len(reassignment.origin(record))) for record in records.values())


def _factors(machine: FactorMachine) -> Mapping[str, int]:
    settings = machine.settings
    return {OFFSETS_TOPIC: settings.offsets_factor, TRANSACTIONS_TOPIC: settings.transactions_factor}


def _records(machine: MachineState, name: str) -> Mapping[TopicPartition, PartitionRecord]:
    topic = machine.topics.get(name)
    keys = ((name, index) for index in range(0 if topic is None else len(topic.partitions)))
    return {key: machine.records[key] for key in keys}


def _best(
    replicas: Collection[int],
    able: Mapping[int, BrokerRecord],
    brokers: Mapping[int, BrokerRecord],
    load: Mapping[int, int],
) -> int:
    racks = Counter(_rack(brokers[replica]) for replica in replicas if replica in brokers)
    return min(
        (racks[_rack(broker)], load[number], number)
        for number, broker in able.items()
        if number not in replicas
    )[2]


def _rack(broker: BrokerRecord) -> Any:
    """A broker without a rack counts as a rack of its own."""
    return broker.broker_id if broker.rack is None else broker.rack
