"""The controller's notes about partitions, and which partitions count as undecided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_broker.controller.partitions import Notes, Partitions, topic_portions
from millstream_broker.controller.recovery import is_undecided
from millstream_broker.coordination import NO_LEADER, NO_STATE, PartitionRecord, same_state

KEY = ("t", 0)


def test_notes_of_before_are_added_to_those_since() -> None:
    notes = Notes({1}, {2}, preferred=True, new_epoch=True)
    notes.add(Notes({3}, {4}, unclean=True))
    assert notes == Notes({1, 3}, {2, 4}, preferred=True, unclean=True, new_epoch=True)
    for doubted in (Notes(), Notes(doubted=True)):
        doubted.add(Notes(doubted=True))
        assert doubted == Notes(doubted=True)
    notes = Notes()
    notes.add(Notes(preferred=True, new_epoch=True))
    assert notes == Notes(preferred=True, new_epoch=True)


def test_a_state_is_taken_when_it_is_newer_and_an_assignment_by_itself() -> None:
    partitions = Partitions()
    known = PartitionRecord((1, 2), 1, 3, (1, 2), 7)
    partitions.add(KEY, known)
    partitions.dirty.clear()
    for version in (6, 7):
        assert not partitions.take_state(KEY, replace(known, leader=2, version=version))
    assert partitions.records[KEY] is known
    assert not partitions.dirty
    assert partitions.take_state(KEY, PartitionRecord((9,), 2, 4, (2,), 8))
    assert partitions.records[KEY] == PartitionRecord((1, 2), 2, 4, (2,), 8)
    assert partitions.dirty == {KEY}
    partitions.take_assignment(KEY, PartitionRecord((3, 2), 9, 9, (9,), 1, adding=(3,), removing=(1,)))
    assert partitions.records[KEY] == PartitionRecord((3, 2), 2, 4, (2,), 8, adding=(3,), removing=(1,))


def test_partitions_are_found_by_the_brokers_that_have_or_had_them() -> None:
    partitions = Partitions()
    partitions.add(KEY, PartitionRecord((3, 2), 2, 4, (2,), 8, removing=(1,)))
    assert [bool(partitions.of_broker(one)) for one in (1, 2, 3, 4)] == [True, True, True, False]
    assert partitions.to_delete(1) == {KEY: 4}
    assert partitions.to_delete(2) == {}
    assert (list(partitions.leads(2)), list(partitions.leads(3))) == ([KEY], [])
    partitions.forget(KEY)
    assert not any(partitions.of_broker(one) for one in (1, 2, 3))
    assert not partitions.dirty


def test_states_are_the_same_whatever_their_versions_and_assignments() -> None:
    state = PartitionRecord((1, 2), 1, 3, (1, 2), 7)
    assert same_state(state, replace(state, version=8, replicas=(1, 2, 3), adding=(3,)))
    for change in (
        {"leader": 2},
        {"leader_epoch": 4},
        {"isr": (1,)},
        {"elr": (2,)},
        {"suspects": (2,)},
        {"controller_epoch": 1},
    ):
        assert not same_state(state, replace(state, **change))


@pytest.mark.parametrize(
    ("leader", "isr", "suspects", "expected"),
    [
        (NO_LEADER, (1, 2), (1, 2), True),
        (NO_LEADER, (1,), (1, 2), True),
        (NO_LEADER, (1, 2), (1,), False),
        (NO_LEADER, (1, 2), (), False),
        (1, (1, 2), (1, 2), False),
        (1, (1, 2), (), False),
        (NO_LEADER, (), (), False),
    ],
)
def test_a_partition_is_undecided_when_nobody_leads_it_and_its_whole_isr_is_suspect(
    leader: int, isr: tuple[int, ...], suspects: tuple[int, ...], expected: bool
) -> None:
    version = 3 if isr else NO_STATE
    assert is_undecided(PartitionRecord((1, 2), leader, 4, isr, version, suspects=suspects)) == expected


@pytest.mark.parametrize(
    ("topics", "portions"),
    [
        ((), []),
        ((1, 1), [2]),
        ((3, 3), [6]),
        ((3, 3, 3, 3), [6, 6]),
        ((5, 5, 1), [5, 5, 1]),
        ((4, 12, 1), [9, 5, 3]),
    ],
)
def test_portions_keep_a_topic_together_where_it_fits(topics: tuple[int, ...], portions: list[int]) -> None:
    record = PartitionRecord((1,), 1, 0, (1,), 0)
    states = [{(f"t{at}", index): record for index in range(count)} for at, count in enumerate(topics)]
    found = list(topic_portions(states, 5))
    assert [len(one) for one in found] == portions
    assert [key for one in found for key in one] == [key for one in states for key in one]
