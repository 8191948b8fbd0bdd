"""Questions about all partitions that the controller answers from its state, for administrators and metrics."""

from __future__ import annotations

from collections.abc import Iterable

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import PartitionRecord
from ..runtime.steps import Steps
from . import factor, reassignment
from .machine_state import MachineState


def reassignments(
    machine: MachineState, partitions: Iterable[TopicPartition] | None
) -> Steps[dict[TopicPartition, PartitionRecord]]:
    """Those of these partitions (None: of all) that are being moved. Yields after each partition."""
    found = {}
    for key in list(machine.records) if partitions is None else partitions:
        if (record := machine.records.get(key)) is not None and reassignment.is_moving(record):
            found[key] = record
        yield
    return found


def count(machine: MachineState) -> Steps[tuple[int, int, int]]:
    """The numbers of partitions without a leader (OfflinePartitionsCount), of those not led by their preferred
    replica (PreferredReplicaImbalanceCount), and of replicas that __consumer_offsets lacks. Yields after each
    partition.
    """
    leaderless = not_preferred = 0
    for key in list(machine.records):
        if (record := machine.records.get(key)) is not None and key[0] not in machine.deletions:
            leaderless += record.leader not in machine.brokers
            not_preferred += record.leader != record.replicas[0]
        yield
    return leaderless, not_preferred, factor.missing(machine)
