"""The states of a partition task, and the ways between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream_mirror.kafka.progress import Gap, Progress
from millstream_mirror.partitions.partition_task import PartitionTask
from millstream_mirror.partitions.task_state import AtGap, Halted, Recovering, Running

LIMIT = 1 << 20
PROGRESS = Progress(100, 7, 0, 10, 0, "topic", "cluster", 0, first=90)


def task() -> PartitionTask:
    made = PartitionTask("t", 0, "t", PROGRESS)
    assert isinstance(made.state, Recovering)
    assert not made.may_fetch(LIMIT)
    made.end_recovery()
    assert isinstance(made.state, Running)
    return made


def test_failure_halts_and_rewind_resumes() -> None:
    of = task()
    of.fail("refused")
    assert of.state == Halted(has_failed=True)
    of.start_recovery()
    of.find(target_missing=True)
    assert isinstance(of.state, Recovering)
    assert of.findings.target_missing
    of.rewind(PROGRESS)
    of.end_recovery()
    assert isinstance(of.state, Running)
    assert of.may_fetch(LIMIT)


def test_comparison_keeps_responses_until_a_failure() -> None:
    of = task()
    of.compare_again("the source's leader has moved")
    assert of.is_stopped
    assert not of.has_failed
    of.fail("the target refused the last batches")
    assert of.has_failed
    assert of.findings.compare_source


def test_failure_during_recovery_halts_again() -> None:
    of = task()
    of.fail("refused")
    of.start_recovery()
    of.rewind(PROGRESS)
    of.find(other_id="another")
    of.fail("topic t has another id")
    of.end_recovery()
    assert isinstance(of.state, Halted)
    assert of.findings.other_id == "another"


@pytest.mark.parametrize("error", ["", "an election"])
def test_gap_ends_no_recovery(error: str) -> None:
    of = task()
    of.fail("refused")
    of.start_recovery()
    of.stop_at(Gap(100, 150, 5))
    if error:
        of.fail(error)
    of.start_recovery()
    of.end_recovery()
    assert isinstance(of.state, AtGap)
    assert of.gap == Gap(100, 150, 5)
    assert of.is_recovering
    assert not of.may_fetch(LIMIT)


def test_same_findings_halt_nothing() -> None:
    of = task()
    of.find(target_missing=False)
    assert isinstance(of.state, Running)
    of.find(target_missing=True)
    assert of.state == Halted(replace(of.findings, target_missing=True))
    assert not of.may_fetch(LIMIT)
