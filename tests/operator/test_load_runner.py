"""BatchLoad: what Jobs, SparkApplications and pods say, as the state of a run."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_operator.reconcile.load import RunState
from millstream_operator.reconcile.load_runner import (
    APPLICATION_STATES,
    driver_pod_name,
    see_job,
    see_spark_application,
)

RESULT = '{"state": "Succeeded", "rows": 336776, "corruptRecords": 0, "error": ""}'
LOG = (
    "26/11/21 04:30:00 WARN NativeCodeLoader: no\nTraceback\nImportError: No module named x\n"
    "26/11/21 04:30:00 INFO ShutdownHookManager: called\n"
)
BAD = '{"state": "Failed", "rows": 0, "error": "output.path: /lake cannot be written to: denied"}'


def a_pod(
    phase: str, message: str = "", container: str = "driver", created: str = "1", **terminated: Any
) -> Any:
    state = {"terminated": {"message": message, **terminated}} if message or terminated else {"running": {}}
    return {
        "metadata": {"name": f"pod-{created}", "creationTimestamp": created},
        "status": {"phase": phase, "containerStatuses": [{"name": container, "state": state}]},
    }


def a_job(kind: str = "", **more: Any) -> Any:
    ended = {"type": kind, "status": "True", "lastTransitionTime": "T2", **more}
    return {"status": {"completionTime": "T1", "conditions": [ended] if kind else []}}


def test_a_job_that_has_no_pod_yet_is_pending() -> None:
    assert see_job({"metadata": {}}, []).state is RunState.PENDING


def test_a_pending_pod_says_what_it_waits_for() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod = {
        "metadata": {"name": "p"},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "driver", "state": waiting}]},
    }
    assert see_job({}, [pod]).message == "ImagePullBackOff: no such image"
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": 'no claim "lake"',
    }
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [unscheduled]}}
    assert see_job({}, [pod]).message == 'Unschedulable: no claim "lake"'


def test_a_running_pod_runs() -> None:
    assert see_job(a_job(), [a_pod("Running")]).state is RunState.RUNNING


def test_a_failed_attempt_is_told_while_the_next_one_is_awaited() -> None:
    seen = see_job(a_job(), [a_pod("Failed", BAD)])
    assert seen.state is RunState.PENDING
    assert "output.path: /lake cannot be written to: denied" in seen.message


@pytest.mark.parametrize("order", [1, -1])
def test_rows_come_from_the_last_pod(order: int) -> None:
    pods = [a_pod("Succeeded", RESULT, created="2"), a_pod("Failed", BAD, created="1")]
    seen = see_job(a_job("Complete"), pods[::order])
    assert (seen.state, seen.rows, seen.error, seen.end_time) == (RunState.SUCCEEDED, 336776, "", "T1")


@pytest.mark.parametrize(
    ("pods", "error"),
    [
        ([a_pod("Failed", BAD, exitCode=1)], "output.path: /lake cannot be written to: denied"),
        ([a_pod("Failed", LOG, exitCode=1)], "ImportError: No module named x"),
        ([a_pod("Failed", "Killed by nobody", exitCode=1)], "Killed by nobody"),
        ([a_pod("Failed", reason="OOMKilled", exitCode=137)], "OOMKilled (exit status 137)"),
        ([a_pod("Failed", reason="Error", exitCode=3)], "the driver ended with exit status 3"),
        ([{"metadata": {}, "status": {"reason": "Evicted", "message": "disk"}}], "Evicted: disk"),
        ([], "DeadlineExceeded: too long"),
    ],
)
def test_a_failed_job_has_the_best_words_there_are(pods: list[Any], error: str) -> None:
    seen = see_job(a_job("Failed", reason="DeadlineExceeded", message="too long"), pods)
    assert (seen.state, seen.error, seen.end_time) == (RunState.FAILED, error, "T2")


@pytest.mark.parametrize(("named", "state"), APPLICATION_STATES.items())
def test_every_state_of_a_spark_application(named: str, state: RunState) -> None:
    application = {"status": {"applicationState": {"state": named, "errorMessage": "why"}}}
    assert see_spark_application(application, None).state is state


def test_a_spark_application_nobody_has_seen_is_pending() -> None:
    seen = see_spark_application({"metadata": {}}, None)
    assert (seen.state, seen.message) == (RunState.PENDING, "the Spark operator has not seen it")


def test_a_spark_application_that_completed_tells_rows_from_its_driver() -> None:
    application = {
        "status": {
            "applicationState": {"state": "COMPLETED"},
            "terminationTime": "T3",
            "driverInfo": {"podName": "daily-0001-driver"},
        }
    }
    assert driver_pod_name(application) == "daily-0001-driver"
    seen = see_spark_application(application, a_pod("Succeeded", RESULT, container="spark-kubernetes-driver"))
    assert (seen.state, seen.rows, seen.end_time) == (RunState.SUCCEEDED, 336776, "T3")


def test_a_spark_application_that_failed_tells_the_jobs_error_or_its_own() -> None:
    application = {
        "status": {"applicationState": {"state": "FAILED", "errorMessage": "driver pod not found"}}
    }
    assert see_spark_application(application, None).error == "driver pod not found"
    pod = a_pod("Failed", BAD, container="spark-kubernetes-driver", exitCode=1)
    assert see_spark_application(application, pod).error == "output.path: /lake cannot be written to: denied"


def test_a_submission_that_failed_is_tried_again() -> None:
    application = {"status": {"applicationState": {"state": "SUBMISSION_FAILED", "errorMessage": "no image"}}}
    seen = see_spark_application(application, None)
    assert (seen.state, seen.message) == (RunState.PENDING, "Submission failed: no image")


def test_an_attempt_that_did_not_fail_says_nothing() -> None:
    assert see_job(a_job(), [a_pod("Running")]).message == ""


def test_a_pod_that_only_starts_waits_for_nothing_in_particular() -> None:
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    scheduled = {"type": "PodScheduled", "status": "True", "reason": "Scheduled"}
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [unready, scheduled]}}
    assert see_job({}, [pod]).message == ""
