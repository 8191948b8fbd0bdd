"""The records of __consumer_offsets, byte by byte as Kafka writes them, and what may come back from a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.groups.group import CommittedOffset, Group, GroupState, Member
from millstream_broker.groups.records import (
    group_record,
    group_tombstone,
    java_hash,
    offset_record,
    partition_for,
    read_groups,
)
from millstream_broker.log.batch import Record, build_batch


def batch(*records: tuple[bytes, bytes | None], control: bool = False) -> bytes:
    return build_batch([Record(key, value, 0) for key, value in records], control=control)


# Values by Java itself: "…".hashCode().
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),
        ("Grüße", 69215351),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_partition_of_the_one_hash_that_has_no_absolute_value() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("a", 50) == 47


def test_offset_bytes() -> None:
    key, value = offset_record("g", "t", 5, CommittedOffset(10, 2, "meta", 1_000))
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000005")
    assert value == bytes.fromhex("0004 000000000000000a 00000002 05 6d657461 00000000000003e8 00")


def test_offset_with_an_expiry_is_written_in_version_1() -> None:
    committed = CommittedOffset(10, 2, "", 1_000, 2_000)
    key, value = offset_record("g", "t", 5, committed)
    assert value == bytes.fromhex("0001 000000000000000a 0000 00000000000003e8 00000000000007d0")
    (group,) = read_groups([batch((key, value))])
    assert group.offsets["t", 5] == CommittedOffset(10, -1, "", 1_000, 2_000)


def member(member_id: str, instance: str | None = None) -> Member:
    return Member(member_id, instance, "client", "/host", 10_000, 30_000, (("range", b"SUB"),), b"ASG")


def test_group_bytes() -> None:
    group = Group("g", GroupState.STABLE, 77, 3, "consumer", "range")
    group.add(member("m", "i"), "consumer")
    key, value = group_record(group)
    assert key == bytes.fromhex("0002 0001 67")
    assert value is not None
    assert value == b"".join(
        [
            b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x01m",
            (77).to_bytes(8, "big"),
            b"\x00\x00\x00\x01\x00\x01m\x00\x01i\x00\x06client\x00\x05/host",
            (30_000).to_bytes(4, "big") + (10_000).to_bytes(4, "big"),
            b"\x00\x00\x00\x03SUB\x00\x00\x00\x03ASG",
        ]
    )
    (read,) = read_groups([batch((key, value))])
    assert read == group


def test_flexible_group_of_a_newer_kafka_is_read() -> None:
    value = b"".join(
        [
            b"\x00\x04\x09consumer\x00\x00\x00\x03\x06range\x02m",
            (77).to_bytes(8, "big"),
            b"\x02\x02m\x00\x07client\x06/host",
            (30_000).to_bytes(4, "big") + (10_000).to_bytes(4, "big"),
            b"\x04SUB\x04ASG\x01\x07\x02xx\x00",
        ]
    )
    (group,) = read_groups([batch((group_tombstone("g")[0], value))])
    assert (group.generation, group.leader, group.members["m"].assignment) == (3, "m", b"ASG")


def test_old_group_of_version_0_is_read() -> None:
    value = (
        b"\x00\x00\x00\x08consumer\x00\x00\x00\x01\x00\x05range\x00\x01m\x00\x00\x00\x01"
        b"\x00\x01m\x00\x06client\x00\x05/host\x00\x00\x27\x10\x00\x00\x00\x01S\x00\x00\x00\x01A"
    )
    (group,) = read_groups([batch((group_tombstone("g")[0], value))])
    assert (group.members["m"].rebalance_timeout_ms, group.state_timestamp) == (10_000, -1)


def test_later_records_replace_earlier_ones_and_tombstones_remove() -> None:
    first, second = CommittedOffset(1, 0, "", 5), CommittedOffset(2, 0, "", 6)
    batches = [
        batch(offset_record("g", "t", 0, first), offset_record("g", "t", 1, first)),
        batch(offset_record("g", "t", 0, second), offset_record("g", "t", 1, None)),
        batch(offset_record("gone", "t", 0, first)),
        batch(group_record(Group("gone"))),
        batch(offset_record("gone", "t", 0, None), group_tombstone("gone")),
        batch((b"\x00\x09newer", b"whatever"), (b"\x00\x09newer", None)),
    ]
    (group,) = read_groups(batches)
    assert (group.group_id, group.offsets, group.state) == ("g", {("t", 0): second}, GroupState.EMPTY)


def test_control_batches_are_skipped() -> None:
    assert read_groups([batch((b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00"), control=True)]) == []


@pytest.mark.parametrize("value", [b"", b"\x00\x07", b"\x00\x03\x00", b"\x00\x03" + b"\xff" * 10])
def test_record_that_cannot_be_read_is_named(value: bytes) -> None:
    key, _ = offset_record("g", "t", 0, None)
    with pytest.raises(ValueError, match="record at offset 0 of __consumer_offsets"):
        read_groups([batch((key, value))])


names = st.text(max_size=20)


@given(names, names, st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), st.text(max_size=50))
def test_offsets_survive(group_id: str, topic: str, partition: int, offset: int, metadata: str) -> None:
    committed = CommittedOffset(offset, 3, metadata, 1)
    (group,) = read_groups([batch(offset_record(group_id, topic, partition, committed))])
    assert (group.group_id, group.offsets) == (group_id, {(topic, partition): committed})
