"""The checks of mirrors find each way in which a copy may be wrong, and nothing wrong in one that is right."""

from __future__ import annotations

import pytest

from millstream_faults.mirrors.checks import Log, lacks, misplaced, out_of_step, unequal
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
