"""BatchLoad: the state machine over runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from millstream_harness.loads import (
    FLIGHTS,
    MORE,
    NONCE,
    NOW,
    a_load,
    edited,
    ended,
    listed,
    observed,
    run_of,
    started,
)
from millstream_operator.models import BatchLoad, BatchLoadStatus, ManifestError, Run
from millstream_operator.models.conditions import Condition, Reason
from millstream_operator.models.load_run import ObservedRun, RunState
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.load import plan as runs
from millstream_operator.reconcile.load.conditions import tell
from millstream_operator.reconcile.load.output import check_output
from millstream_operator.reconcile.load.plan import Cause, Trigger, Waiting
from millstream_operator.reconcile.load.ranges import Ends
from millstream_operator.state.context import new_nonce

HOUR = timedelta(hours=1)
FAILED = ObservedRun(RunState.FAILED, error="boom")
HOURLY: dict[str, Any] = {"schedule": {"cron": "30 * * * *"}}  # NOW is 08:00


def asks(load: BatchLoad, now: datetime = NOW, **options: bool) -> Cause | None:
    return runs.request(load, now, **options).cause


def says(load: BatchLoad, kind: str, now: datetime = NOW, what: Any = "") -> tuple[str, str, str] | None:
    load = observed(load, now)
    for one in tell(load, load.status, now, what).conditions or ():
        if one.type == kind:
            return one.status, one.reason, one.message
    return None


def ranges(load: BatchLoad) -> list[tuple[int, int]]:
    return [(part.from_, part.until) for part in load.status.offsets or ()]


def test_a_run_begins_with_its_offsets_pinned() -> None:
    load = started(a_load())
    run = run_of(load)
    assert (run.name, run.id, run.state) == ("daily-0001-1a2b3c4d", "daily-0001-1a2b3c4d", "Pending")
    assert (run.start_time, run.records, run.trigger) == ("2026-11-21T08:00:00Z", 130, "Spec")
    assert ranges(load) == [(0, 100), (20, 50)]
    assert says(load, "Ready") == (
        "True",
        "RunPending",
        "daily-0001-1a2b3c4d with 130 records waits for its pods",
    )
    assert (says(load, "Succeeded") or ())[:2] == ("Unknown", "RunPending")
    assert asks(load) is None


def test_it_waits_for_records() -> None:
    load = observed(a_load(minRecords=336776))
    waiting = runs.begin(load, Cause(Trigger.SPEC), FLIGHTS, NOW, NONCE)
    assert waiting == Waiting(130, 336776)
    assert says(load, "Ready", what=waiting) == ("True", "WaitingForRecords", "130 of 336,776 records")
    assert says(load, "Succeeded", what=waiting) == ("Unknown", "WaitingForRecords", "130 of 336,776 records")


def test_an_empty_range_succeeds_with_zero_rows_and_without_spark() -> None:
    load = started(a_load(minRecords=0), partitions={("flights", 0): Ends(7, 7, topic_id="T1")})
    run = run_of(load)
    assert (run.state, run.rows, run.corrupt_records, run.error) == ("Succeeded", 0, 0, "")
    assert load.status.committed is not None
    assert [one.offset for one in load.status.committed.offsets] == [7]
    assert (says(load, "Succeeded") or ())[0] == "True"


def test_a_run_to_success() -> None:
    load = started(a_load())
    pending = says(load, "Ready", what="ImagePullBackOff: no such image")
    words = "daily-0001-1a2b3c4d with 130 records waits for its pods: ImagePullBackOff: no such image"
    assert pending == ("False", "PodsPending", words)
    load = runs.with_status(load, runs.follow(load, ObservedRun(RunState.RUNNING), NOW))
    assert run_of(load).state == "Running"
    assert says(load, "Ready") == ("True", "Running", "daily-0001-1a2b3c4d loads 130 records")
    # A failed driver is restarted: the run continues.
    load = runs.with_status(load, runs.follow(load, ObservedRun(RunState.PENDING), NOW))
    assert run_of(load).state == "Running"
    end = ObservedRun(
        RunState.SUCCEEDED, rows=130, corrupt_records=5, bytes=99, end_time="2026-11-21T08:05:00Z"
    )
    load = runs.with_status(load, runs.follow(load, end, NOW))
    run = run_of(load)
    assert (run.state, run.rows, run.bytes, run.corrupt_records) == ("Succeeded", 130, 99, 5)
    assert (run.end_time, run.duration_seconds, run.error) == ("2026-11-21T08:05:00Z", 300, "")
    assert says(load, "Succeeded") == (
        "True",
        "Succeeded",
        "daily-0001-1a2b3c4d wrote 130 rows to /lake/flights",
    )
    words = "5 of 130 rows of daily-0001-1a2b3c4d are corrupt: see _corrupt_record"
    assert says(load, "DataQuality") == ("False", "CorruptRecords", words)
    committed = load.status.committed
    assert committed is not None
    assert [(one.partition, one.offset, one.topic_id) for one in committed.offsets] == [
        (0, 100, "T1"),
        (1, 50, "T1"),
    ]
    # An ended run stays ended.
    assert runs.follow(load, ObservedRun(RunState.PENDING), NOW) is load.status
    assert asks(load) is None
    assert asks(load, retry=True) is None


def test_warning_about_the_table_lasts_until_a_run_gives_none() -> None:
    words = "/lake/flights has the table feature deletionVectors"

    def after(load: BatchLoad, seen: ObservedRun) -> BatchLoad:
        load = ended(load, seen)
        return runs.with_status(load, tell(load, load.status, NOW))

    load = after(
        started(observed(a_load(**HOURLY)), NOW + HOUR),
        ObservedRun(RunState.SUCCEEDED, rows=130, warning=words),
    )
    assert run_of(load).warning == words
    assert says(load, "Warning") == ("True", "TableNotPortable", words)
    assert (says(load, "Ready") or ())[0] == "True"
    load = started(load, NOW + 2 * HOUR, MORE)
    assert says(load, "Warning") == ("True", "TableNotPortable", words)
    load = after(load, FAILED)
    assert says(load, "Warning") == ("True", "TableNotPortable", words)
    load = after(started(load, NOW + 3 * HOUR, MORE), ObservedRun(RunState.SUCCEEDED, rows=130))
    assert says(load, "Warning") is None


@pytest.mark.parametrize(
    ("edit", "acts"),
    [
        ({"spark": {"driver": {"memory": "2g"}}}, False),  # affects the next run
        ({"retries": 5}, False),
        ({"value": {"format": "Binary"}}, True),
        ({"topics": ["flights", "airports"]}, True),
        ({"until": listed((0, 10), (1, 20))}, True),
        ({"output": {"path": "/lake/b", "volumeClaimName": "lake"}}, True),
        ({"from": {"position": "Earliest"}}, True),
    ],
)
def test_an_edit_after_success_is_acted_on(edit: dict[str, Any], acts: bool) -> None:
    load = ended(started(a_load()), **edit)
    assert (asks(load) == Cause(Trigger.SPEC)) is acts
    seen = observed(load)
    assert seen.status.observed_generation == 2
    told = {one.type: one.observed_generation for one in tell(seen, seen.status, NOW).conditions or ()}
    assert (told["Ready"], told["Succeeded"]) == (2, 1)


def test_a_run_that_fails_says_why_and_a_changed_spec_repeats_it() -> None:
    error = "output.path: /lake/flights cannot be written to: Permission denied"
    load = ended(started(a_load()), ObservedRun(RunState.FAILED, error=error, log=("line 1", "line 2")))
    assert says(load, "Ready") == ("False", "OutputNotWritable", f"daily-0001-1a2b3c4d: {error}")
    assert (says(load, "Succeeded") or ())[:2] == ("False", "OutputNotWritable")
    assert run_of(load).log == ("line 1", "line 2")
    assert asks(load) is None
    assert asks(load, retry=True) == Cause(Trigger.SPEC)
    changed = edited(load, spark={"driver": {"memory": "2g"}})
    # The run may have published its rows: the next one has the same offsets, and the same id for them.
    again = started(changed, partitions=MORE)
    assert (run_of(again).name, run_of(again).id) == ("daily-0002-1a2b3c4d", "daily-0001-1a2b3c4d")
    assert ranges(again) == [(0, 100), (20, 50)]
    done = ended(again, **{"from": {"position": "Committed"}})
    assert done.status.unsettled is None
    assert [run.name for run in done.status.runs or ()] == ["daily-0001-1a2b3c4d"]


@pytest.mark.parametrize(
    "edit", [{"from": {"position": "Earliest"}}, {"output": {"path": "/lake/b", "volumeClaimName": "lake"}}]
)
def test_a_failed_run_is_not_repeated_into_another_table_or_from_another_start(edit: dict[str, Any]) -> None:
    load = started(ended(started(a_load()), FAILED, **edit), partitions=MORE)
    assert run_of(load).id == "daily-0002-1a2b3c4d"
    assert ranges(load) == [(0, 130), (20, 50)]


def test_a_failed_run_of_a_topic_that_was_created_again_is_not_repeated() -> None:
    again = {key: Ends(0, 5, topic_id="T2") for key in FLIGHTS}
    load = started(ended(started(a_load()), FAILED, retries=3), partitions=again)
    assert ranges(load) == [(0, 5), (0, 5)]


def test_a_spec_that_is_edited_before_the_start_supersedes_the_run() -> None:
    load = started(a_load())
    assert runs.superseded(load) is None
    assert runs.superseded(edited(load, spark={"driver": {"memory": "2g"}})) is None
    changed = edited(load, value={"format": "Binary"})
    seen = runs.superseded(changed)
    assert seen is not None
    assert asks(ended(changed, seen)) == Cause(Trigger.SPEC)


def test_a_run_that_takes_too_long_is_ended() -> None:
    load = started(a_load(timeoutSeconds=600))
    assert runs.overdue(load, NOW + timedelta(seconds=599)) is None
    late = runs.overdue(load, NOW + timedelta(seconds=600))
    assert late is not None
    load = ended(load, late)
    assert (says(load, "Ready") or ())[1] == "DeadlineExceeded"
    assert "spec.timeoutSeconds, 600" in (run_of(load).error or "")
    assert runs.overdue(load, NOW + HOUR) is None


def test_what_cannot_run_keeps_what_the_last_run_was() -> None:
    load = ended(started(a_load()))
    problem = Problem(Reason.OFFSETS_GONE, "offsets 5 to 9 are gone")
    load = runs.with_status(load, tell(load, load.status, NOW))
    assert says(load, "Ready", what=problem) == ("False", "OffsetsGone", "offsets 5 to 9 are gone")
    assert says(load, "DataQuality", what=problem) == ("False", "OffsetsGone", "offsets 5 to 9 are gone")
    assert (says(load, "Succeeded", what=problem) or ())[0] == "True"


def test_a_run_of_an_older_release_is_counted_on_from() -> None:
    load = replace(a_load(), status=BatchLoadStatus(last_run=Run(name="daily-0041", state="Failed")))
    assert runs.next_run_name(load, NONCE) == "daily-0042-1a2b3c4d"


def test_a_success_of_an_older_release_is_continued_and_not_repeated() -> None:
    load = started(a_load())
    done = replace(run_of(load), name="daily-0001", id=None, trigger=None, state="Succeeded")
    older = BatchLoadStatus(last_run=done, offsets=load.status.offsets)
    assert asks(replace(load, status=older)) is None
    seen = observed(replace(load, status=older))
    assert seen.status.committed is not None
    assert [one.offset for one in seen.status.committed.offsets] == [100, 50]


def test_a_failure_of_an_older_release_runs_again_when_the_spec_changed_since_it_began() -> None:
    begun = Condition(
        type="Succeeded",
        status="False",
        reason="RunFailed",
        message="",
        last_transition_time="",
        observed_generation=1,
    )
    status = BatchLoadStatus(last_run=Run(name="daily-0001", state="Failed"), conditions=(begun,))
    assert asks(replace(a_load(), status=status)) is None
    assert asks(replace(a_load(2), status=status)) == Cause(Trigger.SPEC)


def test_a_load_that_is_recreated_or_restored_has_runs_of_its_own() -> None:
    """Names count up in the status alone, so a random part makes them different."""
    assert runs.next_run_name(a_load(), NONCE) == "daily-0001-1a2b3c4d"
    assert runs.next_run_name(a_load(), "9f8e7d6c") == "daily-0001-9f8e7d6c"
    named = {new_nonce() for _ in range(100)}
    assert len(named) == 100
    assert {len(one) for one in named} == {8}


# Schedules


def scheduled(**schedule: Any) -> BatchLoad:
    """A load whose schedule was seen at NOW."""
    return observed(a_load(schedule={"cron": "30 * * * *", **schedule}))


def test_a_schedule_begins_with_its_first_time_and_not_before() -> None:
    load = scheduled()
    assert asks(load) is None
    words = "the first run begins at 2026-11-21T08:30:00Z"
    assert says(load, "Ready") == ("True", "Scheduled", words)
    assert (says(load, "Succeeded") or ())[:2] == ("Unknown", "Scheduled")
    assert asks(load, NOW + timedelta(minutes=29, seconds=59)) is None
    assert asks(load, NOW + timedelta(minutes=30)) == Cause(Trigger.SCHEDULE, NOW + timedelta(minutes=30))
    # However many scheduled times have passed, one run loads everything.
    assert asks(load, NOW + 5 * HOUR) == Cause(Trigger.SCHEDULE, NOW + timedelta(hours=4, minutes=30))


def test_each_run_continues_where_the_last_success_ended() -> None:
    first = ended(started(scheduled(), NOW + HOUR), now=NOW + HOUR)
    assert run_of(first).scheduled_time == "2026-11-21T08:30:00Z"
    assert asks(first, NOW + HOUR) is None
    second = started(first, NOW + 2 * HOUR, MORE)
    assert ranges(second) == [(100, 130), (50, 50)]
    words = "the next run begins at 2026-11-21T10:30:00Z"
    assert says(ended(second), "Late", NOW + 2 * HOUR) == ("False", "OnSchedule", words)


def test_a_run_that_finds_too_few_records_leaves_them_to_the_next() -> None:
    load = observed(a_load(minRecords=50, **HOURLY))
    first = ended(started(load, NOW + HOUR))
    second = started(first, NOW + 2 * HOUR, MORE)
    assert (run_of(second).state, run_of(second).rows) == ("Succeeded", 0)
    assert second.status.committed is not None
    assert [one.offset for one in second.status.committed.offsets] == [100, 50]


def test_a_schedule_survives_a_failure_and_the_next_run_repeats_it() -> None:
    load = ended(started(scheduled(), NOW + HOUR), FAILED, NOW + HOUR)
    assert says(load, "Late", NOW + HOUR) == (
        "True", "RunFailed", "daily-0001-1a2b3c4d failed; the next run, at 2026-11-21T09:30:00Z, repeats it",
    )  # fmt: skip
    assert asks(load, NOW + HOUR) is None
    again = started(load, NOW + 2 * HOUR, MORE)
    assert (run_of(again).id, ranges(again)) == ("daily-0001-1a2b3c4d", [(0, 100), (20, 50)])


def test_forbid_lets_the_next_time_wait() -> None:
    load = started(scheduled(), NOW + HOUR)
    later = NOW + 2 * HOUR
    assert asks(load, later) is None
    words = "the run of 2026-11-21T09:30:00Z waits for daily-0001-1a2b3c4d, which has not ended"
    assert says(load, "Late", later) == ("True", "RunLate", words)
    assert asks(ended(load, now=later), later) == Cause(Trigger.SCHEDULE, NOW + timedelta(minutes=90))


def test_replace_stops_the_run_and_loads_its_offsets() -> None:
    load = started(scheduled(concurrencyPolicy="Replace"), NOW + HOUR)
    second = started(load, NOW + 2 * HOUR, MORE)
    assert (run_of(second).name, run_of(second).id) == ("daily-0002-1a2b3c4d", "daily-0001-1a2b3c4d")
    assert ranges(second) == [(0, 100), (20, 50)]
    (stopped,) = second.status.runs or ()
    assert (stopped.state, stopped.name) == ("Failed", "daily-0001-1a2b3c4d")


def test_two_runs_at_a_time_are_refused() -> None:
    with pytest.raises(ManifestError, match="concurrencyPolicy"):
        scheduled(concurrencyPolicy="Allow")


def test_a_run_that_would_begin_too_late_is_skipped() -> None:
    load = scheduled(startingDeadlineSeconds=600)
    late = NOW + timedelta(minutes=41)
    assert asks(load, NOW + timedelta(minutes=40)) is not None
    assert asks(load, late) is None
    skipped = observed(load, late)
    assert (says(skipped, "Late", late) or ())[:2] == ("True", "RunSkipped")
    assert asks(skipped, NOW + timedelta(minutes=90)) is not None


def test_a_suspended_schedule_begins_no_run_and_catches_up_once() -> None:
    load = scheduled(suspend=True)
    assert asks(load, NOW + 3 * HOUR) is None
    assert says(load, "Ready", NOW + HOUR) == (
        "True", "Suspended", "no run begins by the schedule: spec.schedule.suspend is set",
    )  # fmt: skip
    resumed = edited(load, **HOURLY)
    assert asks(resumed, NOW + 3 * HOUR) == Cause(Trigger.SCHEDULE, NOW + timedelta(hours=2, minutes=30))


def test_a_schedule_that_is_edited_counts_from_the_edit() -> None:
    load = ended(started(scheduled(), NOW + HOUR), now=NOW + HOUR, schedule={"cron": "0 * * * *"})
    assert asks(load, NOW + timedelta(minutes=90)) is None
    seen = observed(load, NOW + timedelta(minutes=90))
    assert asks(seen, NOW + 2 * HOUR) == Cause(Trigger.SCHEDULE, NOW + 2 * HOUR)


def test_a_clock_that_was_far_ahead_does_not_stop_the_schedule() -> None:
    ahead = ended(started(scheduled(), NOW + 1000 * HOUR), now=NOW + 1000 * HOUR)
    back = observed(ahead, NOW + HOUR)
    assert asks(back, NOW + HOUR) is None
    assert asks(back, NOW + 2 * HOUR) == Cause(Trigger.SCHEDULE, NOW + timedelta(minutes=90))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 3 * * *", "timeZone": "Europe/Berln"}, "'Europe/Berln' is not allowed"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        a_load(schedule=schedule)


# Reruns


def test_a_rerun_runs_once_and_moves_nothing() -> None:
    rerun: dict[str, Any] = {"requestId": "july", "from": {"position": "Earliest"}}
    load = ended(started(a_load()), rerun=rerun)
    assert asks(load) == Cause(Trigger.RERUN)
    again = started(load, partitions=MORE)
    assert (run_of(again).trigger, run_of(again).request_id, run_of(again).id) == (
        "Rerun", "july", "daily-0002-1a2b3c4d",
    )  # fmt: skip
    assert ranges(again) == [(0, 100), (20, 50)]
    for seen in (None, FAILED):
        done = ended(again, seen)
        assert asks(done) is None
        assert done.status.committed == load.status.committed
        assert done.status.unsettled is None
        assert asks(edited(done, rerun={**rerun, "requestId": "again"})) == Cause(Trigger.RERUN)


def test_a_rerun_that_cannot_be_has_failed_and_keeps_no_schedule_waiting() -> None:
    rerun = {"requestId": "1", "from": listed((0, 999), (1, 20))}
    load = started(ended(started(a_load()), rerun=rerun, **HOURLY))
    assert (run_of(load).state, run_of(load).reason) == ("Failed", "InvalidSpec")
    assert "spec.rerun.from.offsets: 999 of flights-0 is not allowed" in (run_of(load).error or "")
    assert asks(load, NOW + HOUR) == Cause(Trigger.SCHEDULE, NOW + timedelta(minutes=30))


def test_a_rerun_from_where_everything_ends_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"spec\.rerun\.from\.position"):
        a_load(rerun={"requestId": "1", "from": {"position": "Committed"}})


# Retention


def test_runs_are_kept_up_to_their_limits() -> None:
    load = observed(a_load(successfulRunsHistoryLimit=2, failedRunsHistoryLimit=1, **HOURLY))
    for hour in range(1, 9):
        load = ended(started(load, NOW + hour * HOUR), FAILED if hour % 2 else None, NOW + hour * HOUR)
    kept = [(run.name, run.state) for run in load.status.runs or ()]
    assert kept == [
        ("daily-0007-1a2b3c4d", "Failed"), ("daily-0006-1a2b3c4d", "Succeeded"), ("daily-0004-1a2b3c4d", "Succeeded"),
    ]  # fmt: skip
    none = observed(edited(load, successfulRunsHistoryLimit=0, failedRunsHistoryLimit=0, **HOURLY))
    assert none.status.runs is None


@pytest.mark.parametrize(
    ("path", "claim", "part"),
    [
        ("/lake/flights", None, "would be lost with its pod"),
        ("/tmp/flights", "lake", "allowed: a folder of its own"),
        ("/lake/../etc", "lake", "allowed: a folder of its own"),
        ("//x", "lake", "allowed: a folder of its own"),
    ],
)
def test_outputs_that_kubernetes_cannot_have(path: str, claim: str | None, part: str) -> None:
    output = {"path": path, **({"volumeClaimName": claim} if claim else {})}
    problem = check_output(a_load(output=output))
    assert problem is not None
    assert part in problem.message
    assert path in problem.message


@pytest.mark.parametrize(
    "output", [{"path": "/lake/flights", "volumeClaimName": "lake"}, {"path": "s3a://bucket/flights"}]
)
def test_outputs_that_kubernetes_can_have(output: dict[str, Any]) -> None:
    assert check_output(a_load(output=output)) is None
