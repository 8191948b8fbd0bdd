"""Moves a partition to other brokers, step by step (KIP-455); functions of its stored assignment.

    [1, 2]                   replicas
    [3, 4, 1, 2] +3,4 -1,2   begun: the new ones first; `adding` 3 and 4, `removing` 1 and 2
                             3 and 4 fetch until they are in the ISR
                             then one of them becomes the leader
    [3, 4]       -1,2        finished: the ISR shrinks, 1 and 2 still have to delete their logs
    [3, 4]                   they have

All of it is stored with the topic's assignment, so any controller can continue it. A replica that is in `removing` but
no longer in `replicas` has not yet confirmed the deletion of its log: it may be down for long. A cancellation is a
reassignment to the original replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination import PartitionRecord


def is_moving(record: PartitionRecord) -> bool:
    """Whether a reassignment is in progress; logs still to be deleted do not count."""
    return bool(record.adding) or any(r in record.replicas for r in record.removing)


def target(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas after the reassignment."""
    return tuple(r for r in record.replicas if r not in record.removing)


def origin(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas before the reassignment."""
    return tuple(r for r in record.replicas if r not in record.adding)


def leftover(record: PartitionRecord) -> tuple[int, ...]:
    """Brokers that are no longer replicas of a partition and have not yet deleted its log."""
    return tuple(r for r in record.removing if r not in record.replicas) if record.removing else ()


def plan(
    record: PartitionRecord,
    wanted: Sequence[int] | None,
    live: Collection[int],
    *,
    may_change_factor: bool,
) -> PartitionRecord:
    """The assignment that begins the move to `wanted`, None to cancel; raises ApiError."""
    if wanted is None:
        if not is_moving(record):
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return begin(record, origin(record))
    check_assignment(wanted, {*origin(record), *live})
    factor = len(target(record))
    if not may_change_factor and len(wanted) != factor:
        message = f"The replication factor is changed from {factor} to {len(wanted)}"
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return begin(record, tuple(wanted))


def check_assignment(replicas: Sequence[int], brokers: Collection[int]) -> None:
    """Raises ApiError INVALID_REPLICA_ASSIGNMENT, in Kafka's words, for replicas that a partition cannot have."""
    problem = None if replicas else "an empty replica list."
    before = None
    for replica in sorted(replicas):
        if replica not in brokers:
            problem = f"broker {replica}, but no such broker is registered."
        elif replica == before:
            problem = f"the broker {replica} more than once."
        if problem is not None:
            break
        before = replica
    if problem is not None:
        message = f"The manual partition assignment includes {problem}"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def begin(record: PartitionRecord, wanted: tuple[int, ...]) -> PartitionRecord:
    """The assignment that begins the move to `wanted`.

    Replicas that an earlier move was adding, and this one does not need, stay until the end: they may be all that is in
    sync.
    """
    before = origin(record)
    going = [r for r in record.replicas if r not in wanted]
    return replace(
        record,
        replicas=(*wanted, *going),
        adding=tuple(r for r in wanted if r not in before),
        removing=(*going, *(r for r in leftover(record) if r not in wanted)),
    )


def can_finish(record: PartitionRecord, live: Collection[int], min_isr: int) -> bool:
    """Whether all new replicas, and all live remaining ones, are in sync, and one of them can lead.

    At least `min_isr` of them must be in sync: the dropped ones may have the only other copy of acknowledged records.
    Not while the ISR is doubted: the most complete log may be one of those to be dropped.
    """
    if record.doubted or not (is_moving(record) and all(r in record.isr for r in record.adding)):
        return False
    after = target(record)
    if sum(r in record.isr for r in after) < min(min_isr, len(after)):
        return False
    staying = [r for r in after if r in live]
    return bool(staying) and all(r in record.isr for r in staying)


def finish(record: PartitionRecord) -> PartitionRecord:
    return replace(record, replicas=target(record), adding=())


def joined(record: PartitionRecord, broker: int) -> PartitionRecord:
    """The record with one more replica, the last: it has the most complete log (`comparison`)."""
    return replace(
        record,
        replicas=(*record.replicas, broker),
        removing=tuple(r for r in record.removing if r != broker),
    )


def deleted(record: PartitionRecord, broker: int) -> PartitionRecord:
    """The record after that broker has deleted the log."""
    if broker in record.replicas or broker not in record.removing:
        return record
    return replace(record, removing=tuple(r for r in record.removing if r != broker))
