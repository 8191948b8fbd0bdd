"""Kafka's requests about transactions (KIP-664), which librdkafka does not send: bodies, and what the answers say.

    FindCoordinator 1        10   which broker coordinates a transactional id
    WriteTxnMarkers 1        27   ends a transaction in a partition's log
    DescribeProducers 0      61   the producers in partitions' logs, and where their transactions begin
    DescribeTransactions 0   65   transactional ids, as their coordinator knows them
    ListTransactions 0–2     66   the transactional ids of a coordinator; 1 filters by age, 2 by a pattern

All but the first are flexible. Functions that read raise struct.error for an answer that is none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from millstream.raw import NO_TAGS, Reader, compact_count, compact_text, text

FIND_COORDINATOR: Final = 10
WRITE_TXN_MARKERS: Final = 27
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
_OF_TRANSACTION: Final = 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id; ``broker`` coordinates it."""

    transactional_id: str
    broker: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """A transactional id. ``started_ms`` is None without a transaction.

    ``partitions`` are those of the transaction; while it ends, those that have no marker yet.
    """

    transactional_id: str
    broker: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction in the log of a partition that ``broker`` leads, from ``start_offset`` on.

    ``last_ms`` is the timestamp of its last records.
    """

    topic: str
    partition: int
    broker: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int


def find_coordinator(transactional_id: str) -> bytes:
    return text(transactional_id) + struct.pack(">b", _OF_TRANSACTION)


def read_coordinator(reader: Reader) -> tuple[int, int]:
    """The error, and the broker."""
    _, code = reader.take(">ih")
    reader.text()
    (broker,) = reader.take(">i")
    return code, broker


def list_transactions(
    version: int, states: Collection[str], producer_ids: Collection[int], older_than_ms: int, pattern: str
) -> bytes:
    body = compact_count(len(states)) + b"".join(map(compact_text, states))
    body += compact_count(len(producer_ids)) + struct.pack(f">{len(producer_ids)}q", *producer_ids)
    if version >= 1:
        body += struct.pack(">q", older_than_ms)
    if version >= 2:
        body += compact_text(pattern or None)
    return body + NO_TAGS


def read_transactions(reader: Reader, broker: int) -> tuple[int, list[Transaction]]:
    """The error, and the transactional ids."""
    _, code = reader.take(">ih")
    for _ in range(reader.compact_count()):
        reader.compact_text()  # a state that the broker does not know
    found = []
    for _ in range(reader.compact_count()):
        name = reader.compact_text()
        (producer_id,) = reader.take(">q")
        found.append(Transaction(name, broker, producer_id, reader.compact_text()))
        reader.skip_tags()
    return code, found


def describe_transactions(ids: Collection[str]) -> bytes:
    return compact_count(len(ids)) + b"".join(map(compact_text, ids)) + NO_TAGS


def read_described(reader: Reader, broker: int) -> list[tuple[int, TransactionDetails]]:
    """Each with its error."""
    reader.take(">i")
    found = []
    for _ in range(reader.compact_count()):
        (code,) = reader.take(">h")
        name, state = reader.compact_text(), reader.compact_text()
        timeout_ms, started_ms, producer_id, epoch = reader.take(">iqqh")
        partitions = []
        for _ in range(reader.compact_count()):
            topic = reader.compact_text()
            numbers = reader.take(f">{reader.compact_count()}i")
            partitions += [(topic, number) for number in numbers]
            reader.skip_tags()
        reader.skip_tags()
        started = started_ms if started_ms >= 0 else None
        details = TransactionDetails(
            name, broker, producer_id, epoch, state, timeout_ms, started, sorted(partitions)
        )
        found.append((code, details))
    return found


def describe_producers(topics: Mapping[str, Collection[int]]) -> bytes:
    body = compact_count(len(topics))
    for topic, partitions in topics.items():
        body += compact_text(topic) + compact_count(len(partitions))
        body += struct.pack(f">{len(partitions)}i", *partitions) + NO_TAGS
    return body + NO_TAGS


def read_open(reader: Reader, broker: int) -> tuple[dict[tuple[str, int], int], list[OpenTransaction]]:
    """The errors of partitions that have one, and the open transactions of the others."""
    reader.take(">i")
    errors, found = {}, []
    for _ in range(reader.compact_count()):
        topic = reader.compact_text()
        for _ in range(reader.compact_count()):
            partition, code = reader.take(">ih")
            reader.compact_text()
            if code:
                errors[topic, partition] = code
            for _ in range(reader.compact_count()):
                producer_id, epoch, _, last_ms, coordinator_epoch, start = reader.take(">qiiqiq")
                reader.skip_tags()
                if start >= 0:
                    found.append(
                        OpenTransaction(
                            topic, partition, broker, producer_id, epoch, coordinator_epoch, start, last_ms
                        )
                    )
            reader.skip_tags()
        reader.skip_tags()
    return errors, found


def abort_marker(transaction: OpenTransaction) -> bytes:
    """The body of WriteTxnMarkers."""
    body = compact_count(1) + struct.pack(">qhb", transaction.producer_id, transaction.producer_epoch, 0)
    body += compact_count(1) + compact_text(transaction.topic)
    body += compact_count(1) + struct.pack(">i", transaction.partition) + NO_TAGS
    return body + struct.pack(">i", max(transaction.coordinator_epoch, 0)) + NO_TAGS + NO_TAGS


def read_marked(reader: Reader) -> int:
    """The error of the one partition."""
    reader.take(">i")
    reader.compact_count()
    reader.take(">q")
    reader.compact_count()
    reader.compact_text()
    reader.compact_count()
    _, code = reader.take(">ih")
    return int(code)
