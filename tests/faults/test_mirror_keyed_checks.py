"""Checks of copies of compacted topics find each way in which one may be wrong, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from millstream_faults.mirrors.checks import Log
from millstream_faults.mirrors.keyed import (
    NUMBER,
    Produced,
    altered,
    key_of,
    lacks_keyed,
    misplaced_keyed,
    removed,
    unequal_keyed,
    value_of,
)
from millstream_kafka.batch import Record, build_batch

SENT = 24
PRODUCED = Produced(SENT, {number: number for number in range(SENT)})
ALL = range(SENT)
LATEST = {key_of(number): number for number in ALL}.values()
"""The records that compaction must leave at least; tombstones may be removed, too."""


def record(number: int, offset: int = -1, **changed: object) -> Record:
    made = Record(key_of(number), value_of(number), 1_000 + number, ((NUMBER, b"%d" % number),), offset)
    return made._replace(**changed)


def log(numbers: Iterable[int], end: int = SENT) -> Log:
    """These records at the offsets at which they were produced."""
    return Log(0, [build_batch([record(one, one) for one in sorted(numbers)], last_offset=end - 1)])


def renumbered(numbers: Iterable[int]) -> Log:
    """These records one after the other, as an Aggregate mirror appends them."""
    return Log(0, [build_batch([record(one) for one in numbers], base_offset=70)])


def without(numbers: Iterable[int], *absent: int) -> list[int]:
    return [one for one in numbers if one not in absent]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (ALL, ""),
        (LATEST, ""),
        (without(ALL, 2, 3), ""),
        (without(LATEST, 0), ""),
        (without(LATEST, 22), "the last record of b'hot-2' is nothing, not record 22"),
        (without(ALL, 22), "the last record of b'hot-2' is record 12, not record 22"),
    ],
    ids=["all", "latest", "replaced", "no tombstone", "a key is lost", "an older one is last"],
)
def test_what_is_left(kept: Iterable[int], said: str) -> None:
    for differs in (unequal_keyed(PRODUCED, log(kept)), misplaced_keyed(PRODUCED, renumbered(sorted(kept)))):
        assert differs == said


def test_a_deleted_key_may_be_there_as_its_tombstone_or_not_at_all() -> None:
    produced = Produced(14, {number: number for number in range(14)})
    for kept, said in (
        (range(14), ""),
        (without(range(14), 3, 13), ""),
        (range(13), "the last record of b'hot-3' is record 3, not record 13"),
    ):
        assert unequal_keyed(produced, log(kept, 14)) == said
    assert not misplaced_keyed(produced, renumbered(range(13))), "it has not come so far"
    assert "is record 3" in misplaced_keyed(
        Produced(15, {**PRODUCED.offsets}), renumbered(without(range(15), 13))
    )


def test_a_copy_that_has_not_come_so_far() -> None:
    early = log(range(9), 9)
    assert not unequal_keyed(PRODUCED, early)
    assert not misplaced_keyed(PRODUCED, renumbered(range(9)))
    assert not unequal_keyed(PRODUCED, Log(0, []))
    assert not misplaced_keyed(PRODUCED, Log(0, []))
    assert lacks_keyed(log(ALL), early, is_identity=True)
    assert lacks_keyed(log(ALL), renumbered(range(9)), is_identity=False)
    assert not lacks_keyed(log(LATEST), log(ALL), is_identity=True)
    assert not lacks_keyed(log(LATEST), renumbered(ALL), is_identity=False)


def test_what_has_no_answer_yet_may_have_replaced_what_is_absent() -> None:
    known = {number: number for number in without(ALL, 22)}
    copy = log(without(ALL, 2, 12, 22))
    assert not unequal_keyed(Produced(SENT, known), copy)
    assert unequal_keyed(Produced(22, known), log(without(range(22), 2, 12), 22)) == (
        "the last record of b'hot-2' is nothing, not record 12"
    )


def test_a_record_at_another_offset() -> None:
    moved = [record(one, one + 1) for one in range(3)]
    copy = Log(0, [build_batch(moved, base_offset=1)])
    assert unequal_keyed(PRODUCED, copy) == "record 0 is at offset 1, was produced at 0"
    assert not misplaced_keyed(PRODUCED, copy), "where an Aggregate copy has it does not matter"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0, 1, 1], "record 1 follows record 1 at offset 72"),
        ([0, 2, 1], "record 1 follows record 2 at offset 72"),
    ],
    ids=["twice", "another order"],
)
def test_records_twice_or_in_another_order(numbers: list[int], said: str) -> None:
    assert misplaced_keyed(PRODUCED, renumbered(numbers)) == said


@pytest.mark.parametrize("changed", [{"value": b"another"}, {"key": b"another"}, {"value": None}])
def test_a_record_that_nobody_produced(changed: dict[str, object]) -> None:
    copy = Log(0, [build_batch([record(0), record(1, **changed)])])
    for differs in (unequal_keyed(PRODUCED, copy), misplaced_keyed(PRODUCED, copy)):
        assert differs == "record 1 at offset 1 is another one than was produced"


def test_a_record_with_another_timestamp() -> None:
    copy = Log(0, [build_batch([record(0), record(1, timestamp=7)])])
    assert not unequal_keyed(PRODUCED, copy)
    assert altered(log(ALL), copy).startswith("record 1 is ")
    assert not altered(log(ALL), renumbered(LATEST))
    assert not altered(log(without(ALL, 1)), copy), "the source has it no more"


def test_how_much_compaction_has_removed() -> None:
    assert removed(log(ALL)) == 0
    assert removed(log(LATEST)) == SENT - len(LATEST) > 0
    assert removed(Log(5, log(without(ALL, 3, 7)).batches)) == 1
    assert removed(Log(0, [])) == 0
