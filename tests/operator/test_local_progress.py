"""Progress of a load on a laptop: the lines of the job's output, and what `up` writes of them into a pipe."""

from __future__ import annotations

import pytest

from millstream_operator.local.spark import SPARSE_S, Progress, Sparse, progress_in


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("load: reading: 0 of 336,776 records\n", "reading"),
        (
            "load: reading: 120,000 of 336,776 records, stage 3, 5 of 16 tasks\n",
            "reading: 120,000 of 336,776 records, stage 3, 5 of 16 tasks",
        ),
        ("load: publishing: 336,776 of 336,776 records\n", "publishing: 336,776 of 336,776 records"),
    ],
)
def test_line_of_progress(line: str, words: str) -> None:
    at = progress_in(line, "daily-0001")
    assert at is not None
    assert (at.run, at.total, str(at)) == ("daily-0001", 336776, words)


@pytest.mark.parametrize(
    "line", ["load: Succeeded: 5 rows\n", "load: published 5 rows to /lake/load: a: 1 of 2 records\n", ""]
)
def test_other_lines_are_no_progress(line: str) -> None:
    assert progress_in(line, "daily-0001") is None


def test_pipe_gets_few_lines_and_none_of_a_short_run() -> None:
    lines: list[str] = []
    now = 0.0
    sparse = Sparse(lines.append, lambda: now)
    sparse(Progress("daily-1", 100, "starting Spark"))
    for second in range(1, int(SPARSE_S)):
        now = second
        sparse(Progress("daily-1", 100, "reading", second))
    assert lines == []
    for second in range(int(SPARSE_S), int(SPARSE_S) * 3):
        now = second
        sparse(Progress("daily-1", 100, "reading", second, "stage 3, 5 of 16 tasks"))
    assert lines == [
        "daily-1: reading: 15 of 100 records, stage 3, 5 of 16 tasks",
        "daily-1: reading: 30 of 100 records, stage 3, 5 of 16 tasks",
    ]
    sparse(Progress("daily-1", 100))
    now += SPARSE_S
    sparse(Progress("daily-1", 100, "starting Spark"))
    assert len(lines) == 2, "the next attempt is a run of its own"
