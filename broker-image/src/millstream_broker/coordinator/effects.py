"""What a coordinator's state machine returns for the runtime to carry out, in this order.

A ``Caller`` waits for a reply: it is any object, which the state machine only returns in a ``Reply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Caller = object
KeyValue = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Reply:
    caller: Caller
    result: object


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """Whose transaction records belong to. ``guard`` is what the partition's log needs to open the transaction."""

    producer_id: int
    producer_epoch: int
    guard: object = None


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """Append these records to a partition of the internal topic, then call ``stored([write], error)``."""

    write: int
    partition: int
    records: Sequence[KeyValue]
    producer: TransactionalProducer | None = None
    is_end: bool = False
    """Whether they end something, so that no limit of sizes applies."""


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


@dataclass(frozen=True, slots=True)
class StoreMarker:
    """Append a marker, after the records that were to be stored before, then call ``stored([write], error)``."""

    write: int
    partition: int
    marker: TransactionMarker


Effect = Reply | StoreRecords | StoreMarker
