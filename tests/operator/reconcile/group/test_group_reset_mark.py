"""The mark of a group's resets, and what it decides about a request that the status does not know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millstream_operator.kafka.records import Mark
from millstream_operator.reconcile.group.reset import known_end
from millstream_operator.reconcile.group.reset_mark import MOST_DONE, ResetMark, read

THEN = datetime(2026, 11, 24, 12, 0, 0, 999_999, tzinfo=UTC)
LATER = THEN + timedelta(hours=1)
ODD = "a request, with spaces"


def test_mark_is_read_as_written() -> None:
    mark = ResetMark().after(ODD, THEN, 1, is_last=False)
    assert read(mark.written()) == mark
    assert (mark.steps_of(ODD, THEN), mark.has_begun(ODD), mark.has_done(ODD)) == (1, True, False)
    mark = mark.after(ODD, THEN, 2, is_last=True)
    assert read(mark.written()) == mark
    assert (mark.steps_of(ODD, THEN), mark.has_done(ODD)) == (2, True)
    assert mark.after(ODD, THEN, 2, is_last=True).done == mark.done, "a step that is repeated"


def test_mark_remembers_the_last_requests() -> None:
    mark = ResetMark()
    for number in range(MOST_DONE + 1):
        mark = mark.after(f"r{number}", THEN, 1, is_last=True)
    mark = read(mark.written())
    assert [number for number in range(MOST_DONE + 1) if not mark.has_done(f"r{number}")] == [0]
    assert len(mark.written().name) < 1000


@pytest.mark.parametrize(
    "metadata", ["", "millstream.dev/", "millstream.dev/resets", "millstream.dev/resets r"]
)
def test_metadata_of_anyone_else_is_no_mark(metadata: str) -> None:
    assert read(Mark(metadata, 3)) == read(None) == ResetMark()


def end(request_id: str, began: datetime | None, mark: ResetMark) -> str | None:
    found = known_end(request_id, began, mark, LATER)
    return None if found is None else found.state


def test_status_that_does_not_know_a_request_learns_its_end_from_the_mark() -> None:
    begun = ResetMark().after("r1", THEN, 1, is_last=False)
    done = begun.after("r1", THEN, 2, is_last=True)
    newer = done.after("r2", LATER, 1, is_last=False)
    assert [end("r1", None, mark) for mark in (ResetMark(), begun, done, newer)] == [
        None,
        "Refused",
        "Done",
        "Done",
    ]
    assert [end("r2", None, mark) for mark in (begun, done, newer)] == [None, None, "Refused"]


def test_status_that_knows_a_running_request_continues_it() -> None:
    begun = ResetMark().after("r1", THEN, 1, is_last=False)
    done = begun.after("r1", THEN, 2, is_last=True)
    assert [end("r1", THEN, mark) for mark in (ResetMark(), begun, done)] == [None, None, None]


def test_older_status_with_a_running_request_ends_it() -> None:
    done = ResetMark().after("r1", THEN, 2, is_last=True).after("r2", LATER, 1, is_last=True)
    assert end("r1", THEN, done) == "Done"
    assert end("r2", THEN, ResetMark().after("r2", LATER, 1, is_last=False)) == "Refused"
