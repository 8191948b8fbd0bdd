"""Changes of assignments that wait to be written, a topic at a time."""

from __future__ import annotations

from millstream_broker.controller.assignments import Assignments
from millstream_broker.coordination import PartitionRecord
from millstream_harness.controller import topic

T = topic("t", (1, 2), (1, 2))
IN_ISR = PartitionRecord((1,), 1, 3, (1, 2), 7, removing=(2,))
"""Broker 2 is no replica any more, and still in the ISR."""
RECORDS = {("t", 0): IN_ISR, ("t", 1): PartitionRecord((1, 2), 1, 3, (1, 2), 7)}
BACK = PartitionRecord((2, 1), 1, 3, (1, 2), 7, adding=(2,))
MOVED = PartitionRecord((3, 1, 2), 1, 3, (1, 2), 7, adding=(3,), removing=(1, 2))


def test_a_broker_that_is_still_in_the_isr_does_not_come_back_yet() -> None:
    """Other changes of its topic do not wait for it, and it is not forgotten."""
    assignments = Assignments()
    assignments.want(("t", 0), BACK)
    assignments.want(("t", 1), MOVED)
    ((name, indexes),) = assignments.next(RECORDS)
    assert (name, tuple(indexes)) == ("t", (1,))
    written = assignments.begin(T, RECORDS, indexes)
    assert written is not None
    assert written.partitions == (IN_ISR, MOVED)
    assert assignments.next(RECORDS) == [], "one write at a time"
    assert assignments.written("t") == {1: MOVED}
    assert assignments.next(RECORDS) == []
    left = PartitionRecord((1,), 1, 3, (1,), 8)
    assert assignments.is_wanted(("t", 0))
    ((name, indexes),) = assignments.next({**RECORDS, ("t", 0): left})
    assert (name, tuple(indexes)) == ("t", (0,))


def test_a_partition_without_a_state_is_written() -> None:
    assignments = Assignments()
    assignments.want(("t", 0), BACK)
    assert [(name, tuple(indexes)) for name, indexes in assignments.next({})] == [("t", (0,))]
    assert assignments.newest(("t", 0), IN_ISR) is BACK
    assignments.drop("t")
    assert assignments.next({}) == []
