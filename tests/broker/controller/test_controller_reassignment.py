"""The steps of a reassignment, as functions of the stored assignment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.controller import reassignment
from millstream_broker.coordination import PartitionRecord
from millstream_kafka.protocol.errors import ApiError

MOVING = PartitionRecord((3, 4, 1, 2), 1, 5, (1, 2), 7, adding=(3, 4), removing=(1, 2))
LEFTOVER = PartitionRecord((3, 4), 3, 5, (3, 4), 7, removing=(1, 2))


def test_what_is_under_way() -> None:
    assert reassignment.is_moving(MOVING)
    assert reassignment.target(MOVING) == (3, 4)
    assert reassignment.origin(MOVING) == (1, 2)
    assert reassignment.leftover(MOVING) == ()
    assert not reassignment.is_moving(LEFTOVER)
    assert reassignment.leftover(LEFTOVER) == (1, 2)


@pytest.mark.parametrize(
    ("isr", "live", "expected"),
    [
        ((1, 2), {1, 2, 3, 4}, False),
        ((1, 2, 3), {1, 2, 3, 4}, False),
        ((1, 2, 3, 4), {1, 2, 3, 4}, True),
        ((3, 4), {3, 4}, True),
        ((3, 4), {3}, True),
        ((3, 4), {1, 2}, False),
    ],
)
def test_a_move_finishes_when_all_that_come_are_in_sync_and_one_of_them_lives(
    isr: tuple[int, ...], live: set[int], expected: bool
) -> None:
    assert reassignment.can_finish(replace(MOVING, isr=isr), live, 1) == expected


@pytest.mark.parametrize("version", [0, 1])
def test_a_move_finishes_whatever_the_version_of_the_state(version: int) -> None:
    assert reassignment.can_finish(replace(MOVING, isr=(3, 4), version=version), {3, 4}, 1)


@pytest.mark.parametrize(("min_isr", "expected"), [(1, True), (2, False), (3, False)])
def test_move_finishes_only_with_the_minimum_isr(min_isr: int, expected: bool) -> None:
    """Broker 2, which stays, is down: what is dropped has the only other copy. No more is needed than replicas stay."""
    shrinking = PartitionRecord((2, 1, 3), 1, 5, (1, 3), 7, removing=(3,))
    assert reassignment.can_finish(shrinking, {1, 3}, min_isr) == expected
    assert reassignment.can_finish(replace(shrinking, isr=(1, 2, 3)), {1, 3}, min_isr)


def test_the_replica_that_joins_is_the_last_and_stays() -> None:
    found = reassignment.joined(LEFTOVER, 2)
    assert found == replace(LEFTOVER, replicas=(3, 4, 2), removing=(1,))


@pytest.mark.parametrize("wanted", [(2, 3), (2,), (1, 2, 3)])
def test_factor_changes_only_where_the_request_allows_it(wanted: tuple[int, ...]) -> None:
    record = PartitionRecord((1, 2), 1, 5, (1, 2), 7)
    assert reassignment.target(reassignment.plan(record, wanted, {3}, may_change_factor=True)) == wanted
    if len(wanted) == 2:
        assert reassignment.plan(record, wanted, {3}, may_change_factor=False)
    else:
        with pytest.raises(ApiError, match=f"is changed from 2 to {len(wanted)}"):
            reassignment.plan(record, wanted, {3}, may_change_factor=False)


def test_move_of_a_doubted_partition_does_not_finish() -> None:
    """The most complete log may be one of those to be dropped."""
    assert not reassignment.can_finish(replace(MOVING, isr=(3, 4), leader=-1, doubted=True), {3, 4}, 1)


def test_what_stays_and_lives_must_be_in_sync() -> None:
    shrinking = PartitionRecord((2, 1), 1, 5, (1,), 7, removing=(1,))
    assert not reassignment.can_finish(shrinking, {1, 2}, 1)
    assert not reassignment.can_finish(shrinking, {1}, 1)
    assert reassignment.can_finish(replace(shrinking, isr=(1, 2)), {1, 2}, 1)


def test_nothing_is_to_be_finished_where_nothing_moves_or_nobody_has_led_yet() -> None:
    assert not reassignment.can_finish(LEFTOVER, {1, 2, 3, 4}, 1)
    new = PartitionRecord((3, 1), -1, -1, (), -1, adding=(3,), removing=(1,))
    assert not reassignment.can_finish(new, {1, 3}, 1)


def test_a_log_is_deleted_that_is_no_replicas() -> None:
    assert reassignment.deleted(LEFTOVER, 1).removing == (2,)
    assert reassignment.deleted(LEFTOVER, 3) is LEFTOVER
    assert reassignment.deleted(LEFTOVER, 9) is LEFTOVER
    assert reassignment.deleted(MOVING, 1) is MOVING, "it still is one: that was said of an earlier one"


def test_a_log_that_is_wanted_again_is_not_deleted_and_the_others_still_are() -> None:
    begun = reassignment.begin(LEFTOVER, (1, 3))
    assert (begun.replicas, begun.adding, begun.removing) == ((1, 3, 4), (1,), (4, 2))
