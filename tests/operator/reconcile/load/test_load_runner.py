"""BatchLoad: the state of a run, from Jobs, SparkApplications and pods."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_operator.models.conditions import Reason
from millstream_operator.models.load_run import RunState
from millstream_operator.reconcile.load.runner import (
    APPLICATION_STATES,
    driver_pod_name,
    explained,
    see_job,
    see_spark_application,
)

RUN = "daily-0001-1a2b3c4d"
RESULT = (
    '{"run": "daily-0001-1a2b3c4d", "state": "Succeeded", "rows": 336776, "corruptRecords": 0, "error": ""}'
)
LOG = (
    "26/11/21 04:30:00 WARN NativeCodeLoader: no\nTraceback\nImportError: No module named x\n"
    "26/11/21 04:30:00 INFO ShutdownHookManager: called\n"
)
BAD = '{"state": "Failed", "rows": 0, "error": "output.path: /lake cannot be written to: denied"}'


OWNED = {"ownerReferences": [{"kind": "Job", "uid": "u-job"}]}


def a_pod(
    phase: str, message: str = "", container: str = "driver", created: str = "1", **terminated: Any
) -> Any:
    state = {"terminated": {"message": message, **terminated}} if message or terminated else {"running": {}}
    return {
        "metadata": {**OWNED, "name": f"pod-{created}", "creationTimestamp": created},
        "status": {"phase": phase, "containerStatuses": [{"name": container, "state": state}]},
    }


def a_job(kind: str = "", **more: Any) -> Any:
    ended = {"type": kind, "status": "True", "lastTransitionTime": "T2", **more}
    return {
        "metadata": {"uid": "u-job"},
        "status": {"completionTime": "T1", "conditions": [ended] if kind else []},
    }


def test_a_job_that_has_no_pod_yet_is_pending() -> None:
    assert see_job(a_job(), [], RUN).state is RunState.PENDING


def test_a_pending_pod_says_what_it_waits_for() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pod = {
        "metadata": {**OWNED, "name": "p"},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "driver", "state": waiting}]},
    }
    assert see_job(a_job(), [pod], RUN).message == "ImagePullBackOff: no such image"
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": 'no claim "lake"',
    }
    pod = {"metadata": {**OWNED, "name": "p"}, "status": {"phase": "Pending", "conditions": [unscheduled]}}
    assert see_job(a_job(), [pod], RUN).message == 'Unschedulable: no claim "lake"'


def test_a_running_pod_runs() -> None:
    assert see_job(a_job(), [a_pod("Running")], RUN).state is RunState.RUNNING


def test_a_failed_attempt_is_told_while_the_next_one_is_awaited() -> None:
    seen = see_job(a_job(), [a_pod("Failed", BAD)], RUN)
    assert seen.state is RunState.PENDING
    assert "output.path: /lake cannot be written to: denied" in seen.message


@pytest.mark.parametrize("order", [1, -1])
def test_rows_come_from_the_last_pod(order: int) -> None:
    pods = [a_pod("Succeeded", RESULT, created="2"), a_pod("Failed", BAD, created="1")]
    seen = see_job(a_job("Complete"), pods[::order], RUN)
    assert (seen.state, seen.rows, seen.error, seen.end_time) == (RunState.SUCCEEDED, 336776, "", "T1")


@pytest.mark.parametrize(
    ("pods", "error"),
    [
        ([a_pod("Failed", BAD, exitCode=1)], "output.path: /lake cannot be written to: denied"),
        ([a_pod("Failed", LOG, exitCode=1)], "ImportError: No module named x"),
        ([a_pod("Failed", "Killed by nobody", exitCode=1)], "Killed by nobody"),
        (
            [a_pod("Failed", reason="OOMKilled", exitCode=137)],
            "OOMKilled (exit status 137): the driver needed more memory: raise spec.spark.driver.memory",
        ),
        ([a_pod("Failed", reason="Error", exitCode=3)], "the driver ended with exit status 3"),
        ([{"metadata": OWNED, "status": {"reason": "Evicted", "message": "disk"}}], "Evicted: disk"),
        ([], "BackoffLimitExceeded: too often"),
    ],
)
def test_a_failed_job_has_the_best_words_there_are(pods: list[Any], error: str) -> None:
    seen = see_job(a_job("Failed", reason="BackoffLimitExceeded", message="too often"), pods, RUN)
    assert (seen.state, seen.error, seen.end_time) == (RunState.FAILED, error, "T2")


@pytest.mark.parametrize(("named", "state"), APPLICATION_STATES.items())
def test_every_state_of_a_spark_application(named: str, state: RunState) -> None:
    application = {"status": {"applicationState": {"state": named, "errorMessage": "why"}}}
    assert see_spark_application(application, None, RUN).state is state


def test_a_spark_application_nobody_has_seen_is_pending() -> None:
    seen = see_spark_application({"metadata": {}}, None, RUN)
    assert (seen.state, seen.message) == (RunState.PENDING, "waiting for the Spark operator")


def test_a_spark_application_that_completed_tells_rows_from_its_driver() -> None:
    application = {
        "status": {
            "applicationState": {"state": "COMPLETED"},
            "terminationTime": "T3",
            "driverInfo": {"podName": "daily-0001-driver"},
        }
    }
    assert driver_pod_name(application) == "daily-0001-driver"
    seen = see_spark_application(
        application, a_pod("Succeeded", RESULT, container="spark-kubernetes-driver"), RUN
    )
    assert (seen.state, seen.rows, seen.end_time) == (RunState.SUCCEEDED, 336776, "T3")


def test_a_spark_application_that_failed_tells_the_jobs_error_or_its_own() -> None:
    application = {
        "status": {"applicationState": {"state": "FAILED", "errorMessage": "driver pod not found"}}
    }
    assert see_spark_application(application, None, RUN).error == "driver pod not found"
    pod = a_pod("Failed", BAD, container="spark-kubernetes-driver", exitCode=1)
    assert (
        see_spark_application(application, pod, RUN).error
        == "output.path: /lake cannot be written to: denied"
    )


def test_a_submission_that_failed_is_tried_again() -> None:
    application = {"status": {"applicationState": {"state": "SUBMISSION_FAILED", "errorMessage": "no image"}}}
    seen = see_spark_application(application, None, RUN)
    assert (seen.state, seen.message) == (RunState.PENDING, "Submission failed: no image")


def test_an_attempt_that_did_not_fail_says_nothing() -> None:
    assert see_job(a_job(), [a_pod("Running")], RUN).message == ""


def test_a_pod_that_only_starts_waits_for_nothing_in_particular() -> None:
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    scheduled = {"type": "PodScheduled", "status": "True", "reason": "Scheduled"}
    pod = {
        "metadata": {**OWNED, "name": "p"},
        "status": {"phase": "Pending", "conditions": [unready, scheduled]},
    }
    assert see_job(a_job(), [pod], RUN).message == ""


ANOTHER = RESULT.replace("1a2b3c4d", "9f8e7d6c")
NAMELESS = '{"state": "Succeeded", "rows": 336776, "corruptRecords": 0, "error": ""}'


@pytest.mark.parametrize(
    ("report", "named"), [(ANOTHER, "daily-0001-9f8e7d6c"), (NAMELESS, "without a name")]
)
def test_a_report_of_another_run_is_no_success(report: str, named: str) -> None:
    application = {"status": {"applicationState": {"state": "COMPLETED"}}}
    driver = a_pod("Succeeded", report, container="spark-kubernetes-driver")
    for seen in (
        see_job(a_job("Complete"), [a_pod("Succeeded", report)], RUN),
        see_spark_application(application, driver, RUN),
    ):
        assert (seen.state, seen.rows) == (RunState.FAILED, None)
        assert seen.error.startswith(f"the driver reported Succeeded for run {named}, not for {RUN}: ")


def test_pods_of_another_job_say_nothing() -> None:
    theirs = {
        **a_pod("Running"),
        "metadata": {"name": "p", "ownerReferences": [{"kind": "Job", "uid": "u-old"}]},
    }
    assert see_job(a_job(), [theirs], RUN).state is RunState.PENDING
    seen = see_job(a_job("Complete"), [theirs], RUN)
    assert (seen.state, seen.rows) == (RunState.SUCCEEDED, None)


def test_a_job_that_took_too_long_names_the_field() -> None:
    seen = see_job(a_job("Failed", reason="DeadlineExceeded", message="too long"), [], RUN)
    assert seen.reason is Reason.DEADLINE_EXCEEDED
    assert "spec.timeoutSeconds" in seen.error


LOST = (
    "SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of the"
    " running tasks) Reason: The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM)."
)


@pytest.mark.parametrize(
    ("error", "reason", "field"),
    [
        (LOST, Reason.OOM_KILLED, "raise spec.spark.executor.memory"),
        ("OOMKilled (exit status 137)", Reason.OOM_KILLED, "raise spec.spark.driver.memory"),
        (
            "OutOfMemoryError: Java heap space",
            Reason.OOM_KILLED,
            "raise spec.spark.driver.memory or spec.spark.executor.memory",
        ),
    ],
)
def test_too_little_memory_names_the_field_to_raise(error: str, reason: Reason | None, field: str) -> None:
    found, words = explained(None, error)
    assert found is reason
    assert words.startswith(error)
    assert words.endswith(field)


def test_corrupt_records_and_bytes_are_told() -> None:
    more = '"corruptRecords": 5, "bytes": 1234, "warning": "/lake has deletion vectors"'
    report = RESULT.replace('"corruptRecords": 0', more)
    seen = see_job(a_job("Complete"), [a_pod("Succeeded", report)], RUN)
    assert (seen.rows, seen.corrupt_records, seen.bytes) == (336776, 5, 1234)
    assert seen.warning == "/lake has deletion vectors"


@pytest.mark.parametrize(
    ("given", "reason"),
    [("TopicReplaced", Reason.TOPIC_REPLACED), ("Succeeded", None), ("Nonsense", None), ("", None)],
)
def test_a_job_may_give_the_reason_of_its_failure_and_no_other(given: str, reason: Reason | None) -> None:
    report = f'{{"state": "Failed", "error": "topics: no", "reason": "{given}"}}'
    failed = a_pod("Failed", report, exitCode=2)
    assert see_job(a_job("Failed", reason="PodFailurePolicy"), [failed], RUN).reason is reason
    failed = a_pod("Failed", report, "spark-kubernetes-driver", exitCode=2)
    application = {"status": {"applicationState": {"state": "FAILED"}}}
    assert see_spark_application(application, failed, RUN).reason is reason


def test_an_init_container_that_cannot_start_or_fails_is_told() -> None:
    """One changes a volume's owner, others are the users' own; the driver's status says only that it waits for them."""
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    starts = {"name": "driver", "state": {"waiting": {"reason": "PodInitializing"}}}
    pod = {
        "metadata": {**OWNED, "name": "p"},
        "status": {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "volume-owner", "state": waits}],
            "containerStatuses": [starts],
        },
    }
    assert see_job(a_job(), [pod], RUN).message == "ErrImagePull: no such image"
    ended = {"terminated": {"exitCode": 1, "message": "chown:\nnot permitted\n"}}
    pod["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "volume-owner", "state": ended}],
        "containerStatuses": [starts],
    }
    seen = see_job(a_job("Failed", reason="BackoffLimitExceeded"), [pod], RUN)
    assert seen.error == "init container volume-owner ended with exit status 1: not permitted"


def test_a_run_is_held_up_while_none_of_its_executors_runs() -> None:
    driver = a_pod("Running")
    driver["metadata"] = {**driver["metadata"], "uid": "u-driver"}
    own = {"ownerReferences": [{"kind": "Pod", "uid": "u-driver"}]}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}
    waits = {
        "metadata": {"name": "e-1", **own},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "x", "state": waiting}]},
    }
    runs = {"metadata": {"name": "e-2", **own}, "status": {"phase": "Running"}}
    for executors, reason in (([waits], Reason.PODS_PENDING), ([waits, runs], None), ([runs], None)):
        seen = see_job(a_job(), [driver, *executors], RUN)
        assert (seen.state, seen.reason) == (RunState.RUNNING, reason)
        assert (seen.message == "executor e-1 waits: ImagePullBackOff: no") is (waits in executors)


def test_an_executor_that_waits_is_told() -> None:
    driver = a_pod("Running")
    driver["metadata"] = {**driver["metadata"], "uid": "u-driver"}
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    executor = {
        "metadata": {"name": "e-1", "ownerReferences": [{"kind": "Pod", "uid": "u-driver"}]},
        "status": {"phase": "Pending", "conditions": [no_room]},
    }
    theirs = {**executor, "metadata": {"name": "e-2", "ownerReferences": [{"kind": "Pod", "uid": "u-other"}]}}
    seen = see_job(a_job(), [driver, theirs, executor], RUN)
    assert (seen.state, seen.message) == (RunState.RUNNING, "executor e-1 waits: Unschedulable: 0/3 nodes")
    application = {"status": {"applicationState": {"state": "RUNNING"}}}
    assert see_spark_application(application, driver, RUN, [executor]).message == seen.message


def test_a_pending_driver_of_a_spark_application_says_what_it_waits_for() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    pod = {
        "metadata": {"name": "d"},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "spark-kubernetes-driver", "state": waiting}],
        },
    }
    application = {"status": {"applicationState": {"state": "SUBMITTED"}}}
    assert see_spark_application(application, pod, RUN).message == "ErrImagePull: no such image"
    assert see_spark_application(application, None, RUN).message == ""
