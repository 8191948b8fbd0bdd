"""The controller's state, as the modules see it that change it for the machine (`machine.ControllerMachine`)."""

from __future__ import annotations

from typing import Protocol

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord, TopicRecord
from .assignments import Assignments
from .deletion import Deletion
from .messages import Settings


class MachineState(Protocol):
    """The cluster as the machine knows it. Each module adds what else it needs."""

    brokers: dict[int, BrokerRecord]
    leaving: set[int]
    records: dict[TopicPartition, PartitionRecord]
    topics: dict[str, TopicRecord]
    deletions: dict[str, Deletion]
    assignments: Assignments
    settings: Settings
