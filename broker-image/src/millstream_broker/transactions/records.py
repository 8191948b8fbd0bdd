"""Kafka's records of the internal topic __transaction_state.

A key and a value each begin with an int16, the version of the rest: 0 for the key, the transactional id; 0 or 1 for the
value. Version 1 has KIP-482's form, and tagged fields; Kafka writes it from version 1 of transactions on. A null value
is a tombstone: the id has expired. Source: transaction-coordinator/src/main/resources/common/message of Apache Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.schema import Struct, array, int8, int16, int32, int64, string
from millstream_kafka.topic_partition import by_topic

from ..coordinator.effects import KeyValue
from ..coordinator.partitioner import partition_for
from ..coordinator.replay import Skipped, replay
from .transaction import EMPTY, TransactionMetadata, TransactionState

_VERSION = struct.Struct(">h")
_KEY_VERSION = 0
_VALUE_VERSIONS = range(2)
TAGGED_SINCE = 1
"""The first version of transactions whose values are written in version 1."""


class TransactionLogKey(Struct):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array("int32")


class TransactionLogValue(Struct):
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=-1)
    next_producer_id: int = int64(since=1, tag=1, default=-1)
    next_producer_epoch: int = int16(since=1, tag=3, default=-1)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2)


_KEY, _VALUE = Codec(TransactionLogKey), Codec(TransactionLogValue, flexible=1)


def transaction_record(
    transactional_id: str, metadata: TransactionMetadata | None, server_version: int = 2
) -> KeyValue:
    """The record of a transactional id, or, for None, its tombstone. `server_version` is that of transactions."""
    key = _VERSION.pack(_KEY_VERSION) + _KEY.encode(_KEY_VERSION, TransactionLogKey(transactional_id))
    if metadata is None:
        return key, None
    partitions = [PartitionsSchema(*each) for each in by_topic(sorted(metadata.partitions)).items()]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state.value,
        transaction_partitions=None if metadata.state is EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.update_timestamp,
        transaction_start_timestamp_ms=metadata.start_timestamp,
        client_transaction_version=metadata.client_version,
    )
    version = int(server_version >= TAGGED_SINCE)
    return key, _VERSION.pack(version) + _VALUE.encode(version, value)


@dataclass(slots=True)
class LoadedTransactions:
    """The transactional ids of a partition, and the unreadable parts of its log."""

    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)

    def __len__(self) -> int:
        return len(self.transactions)


def read_transactions(batches: Iterable[Buffer], partition: int, partitions: int) -> LoadedTransactions:
    """The transactional ids in the batches of a partition; those that belong to another one of `partitions` are
    skipped: they would replace the true ones."""
    loaded = LoadedTransactions()
    names = dict[bytes, str]()  # by key: a transaction is several records, and a hash takes long

    def apply(key: bytes, value: bytes | None) -> None:
        transactional_id = names.get(key)
        if transactional_id is None:
            transactional_id = names[key] = _read_key(key, partition, partitions)
        if value is None:
            loaded.transactions.pop(transactional_id, None)
        else:
            loaded.transactions[transactional_id] = _read(value)

    replay(batches, apply, loaded.skipped)
    return loaded


def _read_key(key: bytes, partition: int, partitions: int) -> str:
    (version,) = _VERSION.unpack_from(key)
    if version != _KEY_VERSION:
        raise ValueError(f"key version {version} is not known")
    transactional_id = _KEY.decode(version, key, 2).transactional_id
    if (home := partition_for(transactional_id, partitions)) != partition:
        raise ValueError(f"transactional id {transactional_id!r} belongs in partition {home}")
    return transactional_id


def _read(value: bytes) -> TransactionMetadata:
    (version,) = _VERSION.unpack_from(value)
    if version not in _VALUE_VERSIONS:
        raise ValueError(f"value version {version} is not known")
    read = _VALUE.decode(version, value, 2)
    state = TransactionState(read.transaction_status)  # type: ignore[call-arg]
    if state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise ValueError(f"state {state.label} is never stored")
    if read.producer_id < 0 or read.producer_epoch < 0:
        raise ValueError(f"producer id {read.producer_id} with epoch {read.producer_epoch}")
    partitions = frozenset(
        (topic.topic, index) for topic in read.transaction_partitions or () for index in topic.partition_ids
    )
    return TransactionMetadata(
        read.producer_id,
        read.producer_epoch,
        read.transaction_timeout_ms,
        state,
        frozenset() if state is EMPTY else partitions,
        read.transaction_start_timestamp_ms,
        read.transaction_last_update_timestamp_ms,
        read.previous_producer_id,
        read.next_producer_id,
        client_version=read.client_transaction_version,
    )
