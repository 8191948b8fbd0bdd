"""The checks of mirrors find each way in which a copy may be wrong, and nothing wrong in one that is right."""

from __future__ import annotations

import pytest

from millstream_faults.mirrors.checks import Log, lacks, misplaced, out_of_step, unequal
from millstream_faults.mirrors.moving import moved_back, number_of, strayed
from millstream_faults.mirrors.promotion import Point, mirrored_end, misreported_point, overwritten
from millstream_faults.mirrors.retention import Missing, misreported, next_missing
from millstream_faults.mirrors.settings import unlike
from millstream_harness.replica import batch

WHOLE = ("a", "b"), ("c", "d"), ("e",)


def log(*batches: tuple[str, ...], start: int = 0, first: int = 0) -> Log:
    """A log of these values, a tuple for each batch; ``first``: the offset of the first batch."""
    made, offset = [], first
    for values in batches:
        made.append(bytes(batch(*values, offset=offset)))
        offset += len(values)
    return Log(start, made)


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        (log(*WHOLE), ""),
        (log(), ""),
        (log(("a", "b")), ""),
        (log(("c", "d"), ("e",), start=2, first=2), ""),
        (log(("a", "b"), ("c", "x")), "offset 2 is not the source's"),
        (log(("a", "b", "c", "d")), "offset 0 is not the source's"),
        (log(*WHOLE, ("f",)), "offset 5 is not the source's"),
    ],
)
def test_an_identity_copy(copy: Log, said: str) -> None:
    assert said in unequal(log(*WHOLE), copy)
    assert bool(said) == bool(unequal(log(*WHOLE), copy))


def test_an_identity_copy_without_a_batch() -> None:
    copy = Log(0, [bytes(batch("a", "b")), bytes(batch("e", offset=4))])
    assert unequal(log(*WHOLE), copy) == "there is no batch at offset 2"


def test_what_the_source_has_deleted_may_be_in_the_copy() -> None:
    source = log(("c", "d"), ("e",), start=3, first=2)
    assert not unequal(source, log(*WHOLE))
    assert not misplaced(source, log(*WHOLE))


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        (log(*WHOLE), ""),
        (log(), ""),
        (log(("a", "b", "c")), ""),
        (log(("a",), ("b", "c", "d"), ("e",)), ""),
        (log(("a", "b"), ("b", "c")), "1 records are there twice"),
        (log(("a", "c")), "records are absent or in another order"),
        (log(("b", "a")), "records are absent or in another order"),
        (log(*WHOLE, ("f",)), "b'f' follows, which the source does not have"),
    ],
)
def test_an_aggregate_copy(copy: Log, said: str) -> None:
    assert misplaced(log(*WHOLE), copy) == said


def test_records_deleted_before_they_were_mirrored_may_be_absent() -> None:
    assert not misplaced(log(("c", "d"), ("e",), start=3, first=2), log(("a", "b"), ("d", "e")))


@pytest.mark.parametrize("is_identity", [True, False])
def test_how_far_a_copy_has_come(is_identity: bool) -> None:
    source = log(*WHOLE)
    assert lacks(source, log(), is_identity=is_identity)
    assert lacks(source, log(("a", "b")), is_identity=is_identity)
    assert not lacks(source, log(*WHOLE, ("f",)), is_identity=is_identity)


def test_positions() -> None:
    source, copy = log(*WHOLE), log(("a",), ("b", "c", "d", "e"), first=7)
    assert not out_of_step(source, copy, 2, 9)
    assert "position 8 for 2" in out_of_step(source, copy, 2, 8)
    assert "position 12 for 2" in out_of_step(source, copy, 2, 12)


WANTED = Missing("retained-0", 20, 40, 44)
GAP = {"partition": "retained-0", "from": 20, "until": 42, "stopped": True}


@pytest.mark.parametrize("stopped", [True, False])
def test_a_gap_that_is_reported(stopped: bool) -> None:
    other = {**GAP, "partition": "retained-1"}
    for until in (40, 44):
        gap = {**GAP, "until": until, "stopped": stopped}
        assert not misreported([other, gap], WANTED, stopped=stopped)


@pytest.mark.parametrize(
    "gaps",
    [
        [],
        [{**GAP, "partition": "retained-1"}],
        [{**GAP, "from": 19}],
        [{**GAP, "until": 39}],
        [{**GAP, "until": 45}],
        [{**GAP, "stopped": False}],
    ],
    ids=["none", "of another partition", "too early", "too short", "too long", "passed"],
)
def test_a_gap_that_is_not_reported_as_it_is(gaps: list[dict[str, object]]) -> None:
    ours = [gap for gap in gaps if gap["partition"] == WANTED.partition]
    assert misreported(gaps, WANTED, stopped=True) == f"reported gaps: {ours}, expected {WANTED}, stopped"


def test_the_first_offset_that_a_mirror_lacks() -> None:
    source = log(*WHOLE, start=1)
    for copy in (log(("a", "b")), log(("b",), first=1)):
        assert next_missing(source, copy, is_identity=True) == 2
    assert next_missing(source, log(("b", "c"), first=7), is_identity=False) == 3
    assert next_missing(source, log(), is_identity=False) == 0


def test_what_the_copy_has_deleted_by_itself_may_be_absent_from_its_start() -> None:
    assert not misplaced(log(*WHOLE), log(("c", "d"), start=7, first=7))
    assert misplaced(log(*WHOLE), log(("c", "d"), first=7)) == "records are absent or in another order"
    assert (
        misplaced(log(*WHOLE), log(("c", "e"), start=7, first=7)) == "records are absent or in another order"
    )


THEIRS = log(("source:0", "source:1"), ("source:2",), ("source:3",))
OURS = ("own:0",), ("probe:", "own:1")


@pytest.mark.parametrize(
    ("copy", "end", "said"),
    [
        (log(("source:0", "source:1"), ("source:2",), *OURS), 3, ""),
        (log(("source:0", "source:1"), ("source:2",), ("source:3",), *OURS), 4, ""),
        (log(("source:0", "source:1")), 2, ""),
        (log(), 0, ""),
        (
            log(("source:0", "source:1"), *OURS, ("source:2",)),
            2,
            "a batch of the source is at offset 5, behind",
        ),
        (log(("source:0", "source:x"), *OURS), 2, "the batch at offset 0 is not the source's"),
        (log(("source:0",), ("source:1",), *OURS), 2, "the batch at offset 0 is not the source's"),
    ],
    ids=["promoted", "all of it", "nothing own", "empty", "behind the end", "altered", "other batches"],
)
def test_a_promoted_copy(copy: Log, end: int, said: str) -> None:
    assert mirrored_end(copy) == end
    assert overwritten(THEIRS, copy).startswith(said)
    assert bool(overwritten(THEIRS, copy)) == bool(said)


def test_a_promoted_copy_without_a_batch() -> None:
    copy = Log(0, [*log(("source:0", "source:1")).batches, bytes(batch("own:1", offset=4))])
    assert overwritten(THEIRS, copy) == "there is no batch at offset 2"


POINTS = [Point(10, 14, 16), Point(20, 18, 21)]
ROW = {"ends": [10, 20], "sourceEnds": [15, 20], "sourceEndsFrom": "Source", "notMirrored": 5}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, ""),
        ({"sourceEnds": [16, 21], "notMirrored": 7}, ""),
        ({"sourceEnds": [15, 19], "sourceEndsFrom": "LastKnown"}, ""),
        (
            {"sourceEnds": [15, 19]},
            "the source's ends [15, 19] are reported, though records up to [10, 20] were",
        ),
        ({"ends": [10, 21]}, "ends [10, 21] are reported, [10, 20] are true"),
        ({"ends": [10]}, "ends [10] are reported"),
        ({"sourceEnds": [17, 20], "notMirrored": 7}, "the source's ends [17, 20] (Source) are reported"),
        ({"sourceEnds": [13, 20], "notMirrored": 3}, "the source's ends [13, 20] (Source) are reported"),
        ({"sourceEnds": [15, -1]}, "the source's ends [15, -1] (Source) are reported"),
        ({"sourceEnds": [15]}, "the source's ends [15] (Source) are reported"),
        ({"notMirrored": 4}, "4 and 4 records are reported as missing, 5 are"),
        ({"notMirrored": None}, "None and None records are reported"),
    ],
)
def test_the_recovery_point(wrong: dict[str, object], said: str) -> None:
    row = {**ROW, **wrong}
    found = misreported_point({"topics": [row], "notMirrored": row["notMirrored"]}, POINTS)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_the_recovery_point_of_all_topics_together() -> None:
    assert misreported_point({"topics": [ROW], "notMirrored": 6}, POINTS) == (
        "5 and 6 records are reported as missing, 5 are"
    )


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ([7, 8, 9], ""),
        ([], ""),
        ([5, 6, 7], ""),
        ([8, 9], "records 7 to 7 are lost"),
        ([7, 9], "record 9 follows record 7"),
        ([7, 7, 8], "record 7 follows record 7"),
        ([7, 8, 7, 8], "record 7 follows record 8"),
        ([4, 5, 6, 7], "records 4 to 4 are read again"),
    ],
)
def test_a_group_that_has_moved(read: list[int], said: str) -> None:
    assert strayed(read, 7, 5) == said


def test_a_group_that_has_moved_as_planned_reads_nothing_again() -> None:
    assert strayed([6, 7], 7, 7) == "records 6 to 6 are read again"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([5, 7], ""),
        ([6, 7, 1], ""),
        ([4, 9], "positions [5, 7] became [4, 9]"),
        ([5], "positions [5, 7] became [5]"),
    ],
)
def test_positions_that_are_moved_back(now: list[int], said: str) -> None:
    assert moved_back([5, 7], now) == said


def test_the_number_of_a_record() -> None:
    assert number_of(b"load3:17:xxx") == 17


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        ({"retention.ms": "5", "segment.bytes": "9"}, ""),
        ({"retention.ms": "6", "segment.bytes": "9"}, "retention.ms=6, expected retention.ms=5"),
        ({"retention.ms": "5"}, "segment.bytes=None, expected segment.bytes=9"),
        (
            {"retention.ms": "5", "segment.bytes": "9", "max.message.bytes": "7"},
            "max.message.bytes=7, expected max.message.bytes=None",
        ),
    ],
)
def test_settings_of_a_copy(copy: dict[str, str], said: str) -> None:
    assert unlike({"retention.ms": "5", "segment.bytes": "9"}, copy) == said
