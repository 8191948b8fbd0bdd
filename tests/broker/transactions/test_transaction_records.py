"""The records of __transaction_state: byte for byte as Kafka writes them, and any content of a log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.coordinator.effects import KeyValue
from millstream_broker.coordinator.partitioner import partition_for
from millstream_broker.transactions.records import LoadedTransactions, read_transactions, transaction_record
from millstream_broker.transactions.transaction import TransactionMetadata, TransactionState
from millstream_kafka.batch import Record, build_batch

STORED = [
    state
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
ONGOING = TransactionMetadata(
    5,
    2,
    60_000,
    TransactionState.ONGOING,
    frozenset({("t", 1), ("t", 0), ("u", 7)}),
    1000,
    2000,
    previous_producer_id=4,
    next_producer_id=6,
    client_version=2,
)


def read(*records: KeyValue, partition: int = 0, partitions: int = 1) -> LoadedTransactions:
    batch = build_batch([Record(key, value, 0) for key, value in records])
    return read_transactions([batch], partition, partitions)


def test_record_with_tagged_fields() -> None:
    key, value = transaction_record("id", ONGOING)
    assert key == bytes.fromhex("0000 0002 6964")
    assert value == bytes.fromhex(
        "0001 0000000000000005 0002 0000ea60 01"
        "03 02 74 03 00000000 00000001 00 02 75 02 00000007 00"
        "00000000000007d0 00000000000003e8"
        "03 00 08 0000000000000004 01 08 0000000000000006 02 02 0002"
    )


def test_record_of_version_0_of_transactions() -> None:
    empty = TransactionMetadata(5, 0, 60_000, update_timestamp=2000, previous_producer_id=4)
    _, value = transaction_record("id", empty, server_version=0)
    assert value == bytes.fromhex(
        "0000 0000000000000005 0000 0000ea60 00 ffffffff 00000000000007d0 ffffffffffffffff"
    )


def test_an_empty_transaction_is_read_without_partitions() -> None:
    key, value = transaction_record("id", ONGOING)
    assert value is not None
    status = 2 + 8 + 2 + 4
    read_back = read((key, value[:status] + b"\0" + value[status + 1 :])).transactions["id"]
    assert read_back.state is TransactionState.EMPTY
    assert not read_back.partitions


def test_a_tombstone_removes_an_id() -> None:
    loaded = read(transaction_record("id", ONGOING), transaction_record("id", None))
    assert not loaded.transactions
    assert not loaded.skipped.unreadable


@given(
    st.builds(
        TransactionMetadata,
        st.integers(0, 2**63 - 1),
        st.integers(0, 32_767),
        st.integers(0, 2**31 - 1),
        st.sampled_from(STORED),
        st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1))),
        st.integers(-1, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
    ),
    st.text(max_size=20),
)
def test_any_state_is_read_as_written(metadata: TransactionMetadata, transactional_id: str) -> None:
    if metadata.state is TransactionState.EMPTY:
        metadata = replace(metadata, partitions=frozenset())
    assert read(transaction_record(transactional_id, metadata)).transactions == {transactional_id: metadata}


@pytest.mark.parametrize(("server_version", "version"), [(0, 0), (1, 1), (2, 1)])
def test_values_have_tagged_fields_since_version_1_of_transactions(server_version: int, version: int) -> None:
    _, value = transaction_record("id", ONGOING, server_version)
    assert value is not None
    assert int.from_bytes(value[:2]) == version


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        ((bytes.fromhex("0001 0002 6964"), b""), "key version 1"),
        ((bytes.fromhex("0000 0002 6964"), bytes.fromhex("0002")), "value version 2"),
        (transaction_record("id", replace(ONGOING, state=TransactionState.DEAD)), "state Dead"),
        (transaction_record("id", replace(ONGOING, producer_epoch=-1)), "epoch -1"),
        ((b"\0", b""), ""),
        ((bytes.fromhex("0000 0002 6964"), bytes.fromhex("0001 00")), ""),
    ],
    ids=["key", "value", "state", "epoch", "short-key", "short-value"],
)
def test_a_damaged_record_is_skipped_and_the_others_are_read(damaged: KeyValue, why: str) -> None:
    loaded = read(damaged, transaction_record("other", ONGOING))
    assert loaded.transactions == {"other": ONGOING}
    assert loaded.skipped.unreadable == 1
    assert why in loaded.skipped.examples[0]


def test_ids_of_another_partition_are_skipped() -> None:
    home = partition_for("id", 50)
    assert len(read(transaction_record("id", ONGOING), partition=home, partitions=50)) == 1
    loaded = read(transaction_record("id", ONGOING), partition=(home + 1) % 50, partitions=50)
    assert (len(loaded), loaded.skipped.unreadable) == (0, 1)


@given(st.lists(st.tuples(st.binary(max_size=30), st.none() | st.binary(max_size=60)), max_size=5))
def test_any_log_is_read(records: list[KeyValue]) -> None:
    read(*records)
