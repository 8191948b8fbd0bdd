"""Events of the controller's state machine, besides the store's reports, and its instructions.

A `caller` is the driver's handle for a request; each gets exactly one `AnswerCaller`, unless `Abandoned`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.topic_partition import TopicPartition

from ..coordination import BrokerRecord, PartitionRecord, TopicRecord
from ..coordination.controllership import StoreEvent


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of the brokers' configuration that concerns the controller."""

    min_isr: int = 1
    unclean_election: bool = False
    auto_rebalance: bool = True
    imbalance_check_s: float = 300.0
    imbalance_percentage: int = 10
    offsets_factor: int = 1
    """Replicas of __consumer_offsets, as soon as there are as many brokers."""
    transactions_factor: int = 1
    """Of __transaction_state."""


class ElectionType(IntEnum):
    """By the numbers of ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


# Events


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """The result of a WriteStates; `stored` is the store's response."""

    requested: Mapping[TopicPartition, PartitionRecord]
    stored: Mapping[TopicPartition, PartitionRecord]


@dataclass(frozen=True, slots=True)
class AssignmentWritten:
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class BrokerAccepted:
    broker: BrokerRecord


@dataclass(frozen=True, slots=True)
class Stopped:
    """A broker, in the incarnation of that epoch, has stopped and deleted these replicas, or never had them."""

    broker: int
    broker_epoch: int
    partitions: Collection[TopicPartition]


LogEnd = tuple[int, int]
"""The epoch of a log's last record, and its end offset; -1, -1 if the log cannot be used."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of these logs on a broker, in the incarnation of that epoch."""

    broker: int
    broker_epoch: int
    ends: Mapping[TopicPartition, LogEnd]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    settings: Settings


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; `now` is in seconds of a monotonic clock."""

    now: float


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The reply has the partitions it still leads though they have other replicas, or ApiError."""

    caller: Hashable
    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """The reply has an ApiError or None for each partition; for all partitions (None), those that needed one."""

    caller: Hashable
    kind: ElectionType
    partitions: Collection[TopicPartition] | None


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """The reply has an ApiError or None for each partition, once it is stored. A target of None cancels."""

    caller: Hashable
    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    may_change_factor: bool = True


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The caller no longer waits."""

    caller: Hashable


Event = (
    StoreEvent
    | StatesWritten
    | AssignmentWritten
    | TopicRemoved
    | BrokerAccepted
    | Stopped
    | LogEnds
    | SettingsChanged
    | Tick
    | ShutdownRequested
    | ElectionRequested
    | ReassignmentRequested
    | Abandoned
)


# Instructions


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Results in StatesWritten."""

    states: Mapping[TopicPartition, PartitionRecord]


@dataclass(frozen=True, slots=True)
class WriteAssignment:
    """Results in AssignmentWritten."""

    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Results in TopicRemoved."""

    name: str


@dataclass(frozen=True, slots=True)
class RefuseDeletion:
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class AcceptBroker:
    """The consequences of the broker's `unclean` registration are written. Results in BrokerAccepted."""

    broker: BrokerRecord


@dataclass(frozen=True, slots=True)
class Push:
    """Send these brokers the state of these partitions (None: of all) at the time of sending, and the live brokers."""

    brokers: tuple[int, ...]
    partitions: Collection[TopicPartition] | None


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Make a broker stop these replicas, each at its leader epoch; sent after earlier pushes.

    With `delete` it is repeated until the broker has done it (Stopped), or is gone.
    """

    broker: int
    partitions: Mapping[TopicPartition, int]
    delete: bool


@dataclass(frozen=True, slots=True)
class AskLogEnds:
    """Repeated until the broker responds (LogEnds), or is gone, or a partition is led again."""

    broker: int
    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class AnswerCaller:
    caller: Hashable
    result: Collection[TopicPartition] | Mapping[TopicPartition, ApiError | None] | ApiError


@dataclass(frozen=True, slots=True)
class FactorRaised:
    """For the log: these partitions of a topic are given more replicas."""

    topic: str
    partitions: int
    factor: int


@dataclass(frozen=True, slots=True)
class ComparisonWaits:
    """For the log: the logs of these partitions cannot be compared before some of these brokers start."""

    brokers: tuple[int, ...]
    partitions: int
    examples: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        names = ", ".join(f"{topic}-{index}" for topic, index in self.examples)
        more = f" and {left} more" if (left := self.partitions - len(self.examples)) else ""
        which = "broker" if len(self.brokers) == 1 else "some of brokers"
        return (
            f"no leader until the logs are compared, because ZooKeeper was restored from an older copy: {names}{more};"
            f" start {which} {', '.join(map(str, self.brokers))}"
        )


Instruction = (
    WriteStates
    | WriteAssignment
    | RemoveTopic
    | RefuseDeletion
    | AcceptBroker
    | Push
    | StopReplicas
    | AskLogEnds
    | AnswerCaller
    | FactorRaised
    | ComparisonWaits
)
