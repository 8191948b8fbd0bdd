"""The state of a run's runner, from its Job or SparkApplication and the driver's pod; pure.

The job reports rows and errors in its container's termination message, as JSON:
``{"run": "daily-0001-1a2b3c4d", "state": "Succeeded", "rows": 336776, "error": "", "reason": ""}``. A driver that was
killed leaves none; Kubernetes' own message is then the error. A report that names another run says nothing about this
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from ...models.conditions import Reason
from ...models.load_run import ObservedRun, RunState
from ...resources.load import DRIVER_CONTAINER
from ...resources.load_job import DRIVER
from ...resources.owned import is_owned_by
from .pods import Object, executors_of, executors_wait, phase, why_ended, why_pending, words
from .pods import container as container_of

# Every state of a SparkApplication (api/v1beta2, ApplicationStateType), as a state of a run.
APPLICATION_STATES = {
    "": RunState.PENDING,
    "SUBMITTED": RunState.PENDING,
    "RUNNING": RunState.RUNNING,
    "SUCCEEDING": RunState.RUNNING,
    "COMPLETED": RunState.SUCCEEDED,
    "FAILING": RunState.RUNNING,
    "FAILED": RunState.FAILED,
    "SUBMISSION_FAILED": RunState.PENDING,  # tried again until its retries are used up: then FAILED
    "PENDING_RERUN": RunState.PENDING,
    "INVALIDATING": RunState.PENDING,
    "SUSPENDING": RunState.PENDING,
    "SUSPENDED": RunState.PENDING,
    "RESUMING": RunState.PENDING,
    "UNKNOWN": RunState.RUNNING,
}
REASONS = {
    reason.value: reason
    for reason in (
        Reason.TOPIC_NOT_FOUND,
        Reason.TOPIC_REPLACED,
        Reason.OFFSETS_GONE,
        Reason.CONFLICTING_TABLE,
        Reason.ALREADY_LOADED,
        Reason.TABLE_REPLACED,
        Reason.FENCED,
        Reason.CORRUPT_RECORDS,
        Reason.OUTPUT_NOT_WRITABLE,
        Reason.INVALID_SPEC,
    )
}
"""Reasons in a job's report."""
TIMED_OUT = "it exceeded spec.timeoutSeconds and was stopped: raise it, or give Spark more executors"
_EXECUTOR_KILLED = re.compile(r"ExecutorLostFailure.*(exit code(: | )?137|OOM)", re.DOTALL | re.IGNORECASE)
# A line of Spark's log that is no error: "26/11/21 04:30:00 INFO ShutdownHookManager: …".
_CHATTER = re.compile(r"\S+ [\d:.]+ (TRACE|DEBUG|INFO|WARN) ")


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The report of a job at its end, and the run it is about."""

    run: str = ""
    state: str = ""
    rows: int | None = None
    corrupt_records: int | None = None
    bytes: int | None = None
    warning: str = ""
    error: str = ""
    reason: str = ""


def reason_of(report: Report) -> Reason | None:
    """The reason that a job gives for its failure, if it is one that a job may give."""
    return REASONS.get(report.reason)


def see_job(job: Object, pods: Iterable[Object], run: str) -> ObservedRun:
    """The state of a run's Job, given pods in its namespace; ``run`` is the name that a report must give."""
    status, pods = job.get("status") or {}, list(pods)
    pod = driver_pod(job, pods)
    report = _report(pod, DRIVER)
    ended = {
        entry["type"]: entry for entry in status.get("conditions") or () if entry.get("status") == "True"
    }
    if "Complete" in ended:
        return _succeeded(report, run, status.get("completionTime"))
    if failed := ended.get("Failed"):
        if failed.get("reason") == Reason.DEADLINE_EXCEEDED:
            return _failed(Reason.DEADLINE_EXCEEDED, TIMED_OUT, failed.get("lastTransitionTime"))
        error = report.error or why_ended(pod, DRIVER) or words(failed.get("reason"), failed.get("message"))
        return _failed(reason_of(report), error, failed.get("lastTransitionTime"))
    if pod is None or phase(pod) == "Pending":
        return ObservedRun(RunState.PENDING, message=why_pending(pod))
    if phase(pod) == "Running":
        return _running(RunState.RUNNING, pod, pods)
    error = report.error or why_ended(pod, DRIVER)
    return ObservedRun(
        RunState.PENDING, message=error and f"an attempt failed ({error}), the next one follows"
    )


def see_spark_application(
    application: Object, driver_pod: Object | None, run: str, pods: Iterable[Object] = ()
) -> ObservedRun:
    """The state of a run's SparkApplication, given its driver's pod (None: not there) and pods in its namespace;
    ``run`` is the name that a report must give."""
    status = application.get("status") or {}
    application_state = status.get("applicationState") or {}
    named = application_state.get("state", "")
    state = APPLICATION_STATES.get(named, RunState.RUNNING)
    said = application_state.get("errorMessage") or ""
    report = _report(driver_pod, DRIVER_CONTAINER)
    end_time = status.get("terminationTime") or None
    if state is RunState.SUCCEEDED:
        return _succeeded(report, run, end_time)
    if state is RunState.FAILED:
        error = (
            report.error
            or why_ended(driver_pod, DRIVER_CONTAINER)
            or said
            or "the Spark operator says FAILED"
        )
        return _failed(reason_of(report), error, end_time)
    if driver_pod is not None and phase(driver_pod) == "Pending" and (waits := why_pending(driver_pod)):
        return ObservedRun(state, message=waits)
    if driver_pod is not None and (seen := _running(state, driver_pod, list(pods))).message:
        return seen
    if state is RunState.RUNNING:
        return ObservedRun(state, message=said)
    if named == "SUBMITTED":
        return ObservedRun(state)
    if not named:
        return ObservedRun(state, message="waiting for the Spark operator")
    return ObservedRun(state, message=words(named.capitalize().replace("_", " "), said))


def _running(state: RunState, driver: Object, pods: Iterable[Object]) -> ObservedRun:
    """A run whose driver runs: it is held up while all of its executors wait."""
    executors = executors_of(driver, pods)
    waits = executors_wait(executors)
    stuck = waits and not any(phase(pod) == "Running" for pod in executors)
    return ObservedRun(state, message=waits, reason=Reason.PODS_PENDING if stuck else None)


def _succeeded(report: Report, run: str, end_time: str | None) -> ObservedRun:
    """The state of a runner that succeeded. If its pod is gone, there is no report; a report counts only if it names
    this run."""
    if report != Report() and report.run != run:
        error = (
            f"the driver reported {report.state or 'no state'} for run {report.run or 'without a name'}, not for {run}:"
            " spec.spark.image must be of this release"
        )
        return ObservedRun(RunState.FAILED, error=error, end_time=end_time)
    return succeeded(report, end_time)


def succeeded(report: Report, end_time: str | None = None) -> ObservedRun:
    return ObservedRun(
        RunState.SUCCEEDED,
        rows=report.rows,
        corrupt_records=report.corrupt_records,
        bytes=report.bytes,
        warning=report.warning,
        end_time=end_time,
    )


def _failed(reason: Reason | None, error: str, end_time: str | None) -> ObservedRun:
    reason, error = explained(reason, error)
    return ObservedRun(RunState.FAILED, error=error, end_time=end_time, reason=reason)


def explained(reason: Reason | None, error: str) -> tuple[Reason | None, str]:
    """Why a run failed, if known, and its error with advice."""
    if error.startswith("OOMKilled"):
        return Reason.OOM_KILLED, f"{error}: the driver needed more memory: raise spec.spark.driver.memory"
    if _EXECUTOR_KILLED.search(error):
        return (
            Reason.OOM_KILLED,
            f"{error}: OOMKilled: an executor needed more memory: raise spec.spark.executor.memory",
        )
    if "java.lang.OutOfMemoryError" in error or error.startswith("OutOfMemoryError"):
        return Reason.OOM_KILLED, f"{error}: raise spec.spark.driver.memory or spec.spark.executor.memory"
    return reason, error


def driver_pod(job: Object, pods: Iterable[Object]) -> Object | None:
    """The pod of a Job's last attempt."""
    uid = job["metadata"]["uid"]
    return max((pod for pod in pods if is_owned_by(pod, uid)), key=_created, default=None)


def driver_pod_name(application: Object) -> str | None:
    info = (application.get("status") or {}).get("driverInfo") or {}
    name: str | None = info.get("podName") or None
    return name


def _created(pod: Object) -> str:
    created: str = pod["metadata"].get("creationTimestamp") or ""
    return created


def _report(pod: Object | None, container: str) -> Report:
    message = (container_of(pod, container).get("terminated") or {}).get("message") or ""
    try:
        return msgspec.json.decode(message, type=Report)
    except msgspec.MsgspecError:
        return Report(error=_lastwords(message))


def _lastwords(log: str) -> str:
    """The last log line of a driver that ended without a report, without Spark's own log lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    return lines[-1] if lines else ""
