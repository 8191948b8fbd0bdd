"""The records of __consumer_offsets: byte for byte as Kafka writes them, and any content of a log."""

from __future__ import annotations

import struct
import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.coordinator.partitioner import java_hash, partition_for
from millstream_broker.groups.group import CommittedOffset, Group, GroupState, Member
from millstream_broker.groups.records import (
    group_record,
    group_tombstone,
    java_length,
    offset_record,
    read_groups,
)
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.compiler import write_varint


def batch(*records: tuple[bytes, bytes | None], control: bool = False) -> bytes:
    return build_batch([Record(key, value, 0) for key, value in records], control=control)


def groups_in(batches: list[bytes]) -> list[Group]:
    """The groups; every record must be readable."""
    loaded = read_groups(batches)
    assert loaded.skipped.unreadable == 0, loaded.skipped.examples
    return loaded.groups


# Values from Java: "…".hashCode().
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


@pytest.mark.parametrize(
    ("text", "length"), [("", 0), ("abc", 3), ("Grüße", 5), ("\U0001f600", 2), ("\ud800", 1)]
)
def test_java_length(text: str, length: int) -> None:
    assert java_length(text) == length


def test_partition_of_the_one_hash_that_has_no_absolute_value() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("a", 50) == 47


def test_offset_bytes() -> None:
    key, value = offset_record("g", "t", 5, CommittedOffset(10, 2, "meta", 1_000))
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000005")
    assert value == bytes.fromhex("0004 000000000000000a 00000002 05 6d657461 00000000000003e8 00")


def test_an_offset_carries_its_topics_id_as_kafka_has_it() -> None:
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    key, value = offset_record("g", "t", 5, CommittedOffset(10, 2, "meta", 1_000, topic_id=topic_id))
    assert value == bytes.fromhex(
        "0004 000000000000000a 00000002 05 6d657461 00000000000003e8 01 00 10 00112233445566778899aabbccddeeff"
    )
    (group,) = groups_in([batch((key, value))])
    assert group.offsets["t", 5].topic_id == topic_id


def test_offset_with_an_expiry_is_written_in_version_1() -> None:
    committed = CommittedOffset(10, 2, "", 1_000, 2_000)
    key, value = offset_record("g", "t", 5, committed)
    assert value == bytes.fromhex("0001 000000000000000a 0000 00000000000003e8 00000000000007d0")
    (group,) = groups_in([batch((key, value))])
    assert group.offsets["t", 5] == CommittedOffset(10, -1, "", 1_000, 2_000)


def test_an_expiry_of_zero_is_one() -> None:
    committed = CommittedOffset(10, -1, "", 1_000, 0)
    (group,) = groups_in([batch(offset_record("g", "t", 5, committed))])
    assert group.offsets["t", 5] == committed


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
    (read,) = groups_in([batch((key, value))])
    assert read == group


def test_the_leader_and_a_rebalance_timeout_of_zero_are_read_as_written() -> None:
    group = Group("g", GroupState.STABLE, 77, 3, "consumer", "range")
    for member_id in ("a", "b"):
        group.add(member(member_id), "consumer")
    group.leader = "b"
    group.members["a"].rebalance_timeout_ms = 0
    (read,) = groups_in([batch(group_record(group))])
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
    (group,) = groups_in([batch((group_tombstone("g")[0], value))])
    assert (group.generation, group.leader, group.members["m"].assignment) == (3, "m", b"ASG")


def test_old_group_of_version_0_is_read() -> None:
    value = (
        b"\x00\x00\x00\x08consumer\x00\x00\x00\x01\x00\x05range\x00\x01m\x00\x00\x00\x01"
        b"\x00\x01m\x00\x06client\x00\x05/host\x00\x00\x27\x10\x00\x00\x00\x01S\x00\x00\x00\x01A"
    )
    (group,) = groups_in([batch((group_tombstone("g")[0], value))])
    assert (group.members["m"].rebalance_timeout_ms, group.state_timestamp) == (10_000, -1)


def test_later_records_replace_earlier_ones_and_tombstones_remove() -> None:
    first, second = CommittedOffset(1, 0, "", 5), CommittedOffset(2, 0, "", 6)
    batches = [
        batch(offset_record("g", "t", 0, first), offset_record("g", "t", 1, first)),
        batch(offset_record("g", "t", 0, second), offset_record("g", "t", 1, None)),
        batch(offset_record("gone", "t", 0, first)),
        batch(group_record(Group("gone"))),
        batch(offset_record("gone", "t", 0, None), group_tombstone("gone")),
    ]
    (group,) = groups_in(batches)
    assert (group.group_id, group.offsets, group.state) == ("g", {("t", 0): second}, GroupState.EMPTY)


def test_positions_of_an_idempotent_producer_outside_transactions_count_at_once() -> None:
    key, value = with_metadata("of a producer")
    written = build_batch([Record(key, value, 0)], producer_id=5, producer_epoch=0, base_sequence=0)
    (group,) = groups_in([written])
    assert [each.metadata for each in group.offsets.values()] == ["of a producer"]
    assert not group.transactional_offsets


def test_control_batches_are_skipped() -> None:
    control = batch((b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00"), control=True)
    (group,) = groups_in([control, batch(GOOD)])
    assert group.offsets.keys() == {("t", 1)}


# Unreadable records, and readable ones beside them

OFFSET_KEY, GROUP_KEY = offset_record("g", "t", 0, None)[0], group_tombstone("g")[0]
GOOD = offset_record("g", "t", 1, CommittedOffset(7, 0, "", 5))


def with_metadata(text: str) -> tuple[bytes, bytes]:
    """An offset of group g with a text of any length."""
    key, value = offset_record("g", "t", 0, CommittedOffset(9, 0, "", 5))
    assert value is not None
    encoded = text.encode()
    return key, value[:14] + write_varint(len(encoded) + 1) + encoded + value[15:]


def group_value(generation: int, *members: bytes, claimed: int | None = None) -> bytes:
    """A GroupMetadataValue of version 3."""
    count = len(members) if claimed is None else claimed
    head = b"\x00\x03\x00\x08consumer" + struct.pack(">i", generation) + b"\x00\x05range\x00\x01m" + bytes(8)
    return head + struct.pack(">i", count) + b"".join(members)


def member_value(member_id: bytes, instance: bytes) -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack(">h", len(value)) + value

    times = struct.pack(">ii", 30_000, 10_000)
    return text(member_id) + text(instance) + text(b"client") + text(b"/host") + times + bytes(8)


GARBAGE = {
    "no key": (b"", b"x"),
    "half a version": (b"\x00", b"x"),
    "truncated key": (OFFSET_KEY[:-2], GOOD[1]),
    "absurd length in a key": (b"\x00\x01\x7f\xffg", GOOD[1]),
    "unknown key version": (b"\x00\x63whatever", b"x"),
    "tombstone of an unknown key version": (b"\x00\x63whatever", None),
    "negative key version": (b"\xff\xffwhatever", b"x"),
    "negative partition": (offset_record("g", "t", -1, None)[0], GOOD[1]),
    "empty value": (OFFSET_KEY, b""),
    "truncated value": (OFFSET_KEY, (GOOD[1] or b"")[:-3]),
    "unknown value version": (OFFSET_KEY, b"\x00\x07" + bytes(40)),
    "bad utf-8 in a key": (b"\x00\x01\x00\x02\xc3\x28\x00\x01t" + bytes(4), GOOD[1]),
    "bad utf-8 in a value": (OFFSET_KEY, (GOOD[1] or b"").replace(b"\x01\x00\x00", b"\x02\xff\x00\x00", 1)),
    "absurd length in a value": (OFFSET_KEY, b"\x00\x04" + bytes(12) + b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "metadata longer than a response can carry": with_metadata("x" * 40_000),
    "group that is no group": (GROUP_KEY, b"\x00\x03" + b"\xff" * 10),
    "group with two billion members": (GROUP_KEY, group_value(1, claimed=2**31 - 1)),
    "group with a negative count of members": (GROUP_KEY, group_value(1, claimed=-2)),
    "group of a negative generation": (GROUP_KEY, group_value(-1)),
    "member twice": (GROUP_KEY, group_value(1, member_value(b"m", b"i"), member_value(b"m", b"j"))),
    "instance twice": (GROUP_KEY, group_value(1, member_value(b"m", b"i"), member_value(b"n", b"i"))),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_record_that_cannot_be_read_is_skipped_and_counted(garbage: tuple[bytes, bytes | None]) -> None:
    before, after = offset_record("before", "t", 0, CommittedOffset(1, 0, "", 5)), GOOD
    loaded = read_groups([batch(before), batch(before, garbage, after), batch(after)])
    assert {group.group_id for group in loaded.groups} == {"before", "g"}
    (group,) = (group for group in loaded.groups if group.group_id == "g")
    assert (group.offsets.keys(), group.members) == ({("t", 1)}, {})
    assert loaded.skipped.unreadable == 1
    assert loaded.skipped.examples[0].startswith("offset 1: ")


def test_a_batch_that_cannot_be_read_costs_no_other() -> None:
    broken = bytearray(batch(GOOD, GOOD))
    broken[-1] ^= 1
    gzip = batch(GOOD)
    header = gzip[:61]
    wrong_codec = bytearray(header[:22] + b"\x01" + header[23:] + gzip[61:])
    wrong_codec[17:21] = crc32c(memoryview(wrong_codec)[21:]).to_bytes(4, "big")
    loaded = read_groups([bytes(broken), bytes(wrong_codec), batch(GOOD)])
    assert [group.offsets.keys() for group in loaded.groups] == [{("t", 1)}]
    assert loaded.skipped.unreadable == 2


def test_groups_that_belong_in_another_partition_are_skipped() -> None:
    of_1, of_0 = "a", "b"
    assert [partition_for(group, 2) for group in (of_0, of_1)] == [0, 1]
    stored = [offset_record(group, "t", 0, CommittedOffset(1, 0, "", 5)) for group in (of_0, of_1)]
    stored.append(group_record(Group(of_0)))
    loaded = read_groups([batch(*stored)], 1, 2)
    assert ([group.group_id for group in loaded.groups], loaded.skipped.unreadable) == ([of_1], 2)


@pytest.mark.parametrize(
    ("metadata", "is_read"), [("x" * 32_767, True), ("x" * 32_768, False), ("é" * 16_384, False)]
)
def test_strings_are_as_long_as_a_response_can_carry(metadata: str, is_read: bool) -> None:
    loaded = read_groups([batch(with_metadata(metadata))])
    assert (len(loaded.groups), loaded.skipped.unreadable) == ((1, 0) if is_read else (0, 1))


def test_only_the_first_are_told_of() -> None:
    loaded = read_groups([batch(*[(b"\x00\x63", b"")] * 100)])
    assert (loaded.skipped.unreadable, len(loaded.skipped.examples)) == (100, 5)


def test_negative_offsets_are_as_committed() -> None:
    """Kafka accepts them, too; clients treat them as no position."""
    (group,) = groups_in([batch(offset_record("g", "t", 0, CommittedOffset(-5, -1, "", -1)))])
    assert group.offsets["t", 0].offset == -5


names = st.text(max_size=20)


@given(names, names, st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), st.text(max_size=50))
def test_offsets_survive(group_id: str, topic: str, partition: int, offset: int, metadata: str) -> None:
    committed = CommittedOffset(offset, 3, metadata, 1)
    (group,) = groups_in([batch(offset_record(group_id, topic, partition, committed))])
    assert (group.group_id, group.offsets) == (group_id, {(topic, partition): committed})
