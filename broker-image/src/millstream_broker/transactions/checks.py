"""Which requests of a producer the state of its transactional id allows, and Kafka's error for the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from .transaction import EMPTY, LAST_EPOCH, NO_PRODUCER_EPOCH, ONGOING, TransactionMetadata, TransactionState

NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
CONCURRENT, INVALID_STATE = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
Producer = tuple[int, int]
"""Id and epoch."""


def check_init(found: TransactionMetadata, expected: Producer | None) -> ErrorCode:
    """Whether a producer may start, or go on as `expected`."""
    if expected is not None:
        producer_id, epoch = expected
        is_retry = producer_id == found.previous_producer_id and epoch >= LAST_EPOCH
        if (
            found.producer_epoch != NO_PRODUCER_EPOCH
            and producer_id != found.producer_id
            and not is_retry  # after a rotation of the id whose response was lost
        ):
            return FENCED
    return CONCURRENT if found.state.is_ending else NONE


def check_producer(found: TransactionMetadata, producer: Producer) -> ErrorCode:
    """Whether the producer may add to its transaction."""
    producer_id, epoch = producer
    if producer_id != found.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != found.producer_epoch:
        return FENCED
    return CONCURRENT if found.state.is_ending else NONE


def verify(
    found: TransactionMetadata, producer: Producer, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """Whether each partition is part of the producer's transaction."""
    if error := check_producer(found, producer):
        return dict.fromkeys(partitions, error)
    return {
        each: NONE if each in found.partitions else ErrorCode.TRANSACTION_ABORTABLE for each in partitions
    }


def check_end(
    found: TransactionMetadata, producer: Producer, *, commits: bool, raises_epoch: bool
) -> ErrorCode | None:
    """Whether the producer may end its transaction; None: yes. NONE: it has ended so before, and this is a retry."""
    return (_check_end_raising if raises_epoch else _check_end)(found, producer, commits=commits)


def _check_end(found: TransactionMetadata, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """In the versions of transactions in which the epoch stays: an end with the same outcome is a retry."""
    producer_id, epoch = producer
    if producer_id != found.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch != found.producer_epoch:
        return FENCED
    if found.state is ONGOING:
        return None
    if found.state is EMPTY or found.commits != commits:
        return INVALID_STATE
    return CONCURRENT if found.state.is_ending else NONE


def _check_end_raising(found: TransactionMetadata, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """A retry has the epoch before the present one; a producer may abort although it has added nothing."""
    producer_id, epoch = producer
    raised = found.raises_epoch and found.producer_epoch == epoch + 1
    rotated = (
        found.raises_epoch
        and (producer_id, epoch) == (found.previous_producer_id, LAST_EPOCH)
        and found.producer_epoch == 0
    )
    if producer_id != found.producer_id and not rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_current = producer_id == found.producer_id and epoch == found.producer_epoch
    is_retry = raised or rotated
    if found.state is ONGOING:
        return None if is_current else FENCED
    if found.state is EMPTY:
        return _of_empty(commits) if is_current else FENCED
    if found.state.is_ending:
        if not raised and (found.raises_epoch or not is_current):
            return FENCED
        return CONCURRENT if found.commits == commits else INVALID_STATE
    if is_retry:
        return NONE if found.commits == commits else INVALID_STATE
    return _of_empty(commits) if is_current else FENCED


def _of_empty(commits: bool) -> ErrorCode | None:
    return INVALID_STATE if commits else None


def state_named(name: str) -> TransactionState | None:
    return next((state for state in TransactionState if state.label == name), None)
