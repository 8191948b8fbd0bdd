"""Assignments of group members, which any client may have written."""

from __future__ import annotations

import struct

import pytest

from millstream_kafka.admin.consumer_protocol import assigned_partitions


def topic(name: bytes, *partitions: int) -> bytes:
    head = struct.pack(f">h{len(name)}si", len(name), name, len(partitions))
    return head + struct.pack(f">{len(partitions)}i", *partitions)


VALID = struct.pack(">hi", 1, 2) + topic(b"flights", 2, 0) + topic(b"airports") + struct.pack(">i", -1)


def test_partitions_are_sorted_within_a_topic() -> None:
    assert assigned_partitions(VALID) == (("flights", 0), ("flights", 2))


def test_incomplete_assignment_has_no_partitions() -> None:
    needed = len(VALID) - 4  # without the user data
    assert [size for size in range(needed) if assigned_partitions(VALID[:size])] == []


@pytest.mark.parametrize(
    "assignment",
    [
        struct.pack(">hi", 1, 1) + struct.pack(">h", -1),
        struct.pack(">hi", 1, 1) + struct.pack(">hi", 0, -1),
        struct.pack(">hi", 1, 1) + struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 1, 2**31 - 1),
        struct.pack(">hi", 1, -1),
        struct.pack(">hi", 1, 1) + topic(b"\xff", 0),
    ],
    ids=["negative length", "negative count", "huge count", "huge topics", "no topics", "not UTF-8"],
)
def test_malformed_assignment_has_no_partitions(assignment: bytes) -> None:
    assert assigned_partitions(assignment) == ()
