"""Administrators' requests to the controller, and its own periodic work.

Each function notes the request with its partitions, and yields after each. The machine then looks at
these partitions, and replies to the caller when it is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord
from ..runtime.steps import Steps
from . import reassignment
from .elections import imbalanced
from .machine_state import MachineState
from .messages import ElectionRequested, ElectionType, ReassignmentRequested, ShutdownRequested
from .partitions import Partitions
from .requests import Request, Requests


class Controlled(MachineState, Protocol):
    requests: Requests
    partitions: Partitions

    def leads(self, broker: int) -> Iterable[TopicPartition]: ...


def shut_down(machine: Controlled, event: ShutdownRequested) -> Steps[None]:
    """Move a broker's leaderships to others, so that it can stop."""
    number = event.broker
    broker = machine.brokers.get(number)
    error = None
    if broker is None:
        error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {number} is not registered.")
    elif event.broker_epoch != broker.epoch:
        error = ApiError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {number} has registered again since.")
    if error is not None:
        machine.requests.add(Request(event.caller, lambda _: error))
        return
    machine.leaving.add(number)
    request = Request(event.caller, lambda _: _led_by(machine, number))
    for key in machine.partitions.of_broker(number):
        if number in machine.records[key].isr:
            machine.partitions.dirty.add(key)
            machine.requests.wait(request, key)
        yield
    machine.requests.add(request)


def _led_by(machine: Controlled, broker: int) -> list[TopicPartition]:
    """The partitions that this broker still leads, although a remaining replica may lead them once it is in sync."""
    staying = machine.brokers.keys() - machine.leaving
    return sorted(
        key
        for key in machine.leads(broker)
        if any(replica in staying for replica in machine.records[key].replicas)
    )


def elect(machine: Controlled, event: ElectionRequested) -> Steps[None]:
    everything = event.partitions is None
    request = Request(event.caller, lambda request: request.results)
    for key in machine.records if event.partitions is None else event.partitions:
        yield
        record = machine.records.get(key)
        if key[0] not in machine.topics or key[0] in machine.deletions:
            error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {key[0]}")
        elif record is None:
            error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {key[0]}-{key[1]}")
        elif _is_elected(machine, record, event.kind):
            error = ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        else:
            notes = machine.partitions.note(key)
            notes.preferred |= event.kind is ElectionType.PREFERRED
            notes.unclean |= event.kind is ElectionType.UNCLEAN
            machine.requests.wait(request, key, partial(_elected, machine, key, event.kind))
            continue
        if not everything:
            request.results[key] = error
    machine.requests.add(request)


def _is_elected(machine: Controlled, record: PartitionRecord, kind: ElectionType) -> bool:
    if kind is ElectionType.PREFERRED and record.leader != record.replicas[0]:
        return False
    return record.leader in machine.brokers


def _elected(machine: Controlled, key: TopicPartition, kind: ElectionType) -> ApiError | None:
    record = machine.records.get(key)
    if record is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic was deleted meanwhile.")
    if _is_elected(machine, record, kind):
        return None
    name = f"{key[0]}-{key[1]}"
    if kind is ElectionType.PREFERRED:
        return ApiError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {record.replicas[0]} of {name} is not alive or not in the ISR.",
        )
    return ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name} is alive.")


def rebalance(machine: Controlled) -> Steps[None]:
    """Give leadership back to the preferred replicas of brokers that lead too little (auto.leader.rebalance.enable)."""
    able = {number for number in machine.brokers if number not in machine.leaving}
    for key in (yield from imbalanced(machine.records, able, machine.settings.imbalance_percentage)):
        machine.partitions.note(key).preferred = True
        yield


def reassign(machine: Controlled, event: ReassignmentRequested) -> Steps[None]:
    answers: dict[TopicPartition, ApiError | None] = {}
    request = Request(event.caller, lambda _: answers)
    able = [number for number in machine.brokers if number not in machine.leaving]
    for key, wanted in event.targets.items():
        yield
        try:
            machine.assignments.want(key, _planned(machine, key, wanted, able, event.may_change_factor))
        except ApiError as error:
            answers[key] = error
        else:
            answers[key] = None
            machine.requests.wait(request, ("assigned", key))
    machine.requests.add(request)


def _planned(
    machine: Controlled,
    key: TopicPartition,
    wanted: tuple[int, ...] | None,
    able: Collection[int],
    may_change_factor: bool,
) -> PartitionRecord:
    """Raises ApiError."""
    name, index = key
    if name not in machine.topics or name in machine.deletions:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if key not in machine.records:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    record = machine.assignments.newest(key, machine.records[key])
    return reassignment.plan(record, wanted, able, may_change_factor=may_change_factor)
