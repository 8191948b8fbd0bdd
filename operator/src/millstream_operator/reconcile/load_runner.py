"""The state of a run's runner, from its Job or SparkApplication and the driver's pod; pure.

The job reports rows and errors in its container's termination message, as JSON:
``{"run": "daily-0001-1a2b3c4d", "state": "Succeeded", "rows": 336776, "error": ""}``. A driver that was killed leaves
none; Kubernetes' own message is then the error. A report that names another run says nothing about this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..conditions import Reason
from ..resources.load import DRIVER_CONTAINER
from ..resources.load_job import DRIVER
from ..resources.owned import is_owned_by
from .load import RunState, Seen

Object = Mapping[str, Any]

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
TIMED_OUT = "it took longer than spec.timeoutSeconds and was stopped: raise it, or give Spark more executors"
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
    error: str = ""


def see_job(job: Object, pods: Iterable[Object], run: str) -> Seen:
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
        error = report.error or _killed(pod, DRIVER) or _words(failed.get("reason"), failed.get("message"))
        return _failed(None, error, failed.get("lastTransitionTime"))
    if pod is None or _phase(pod) == "Pending":
        return Seen(RunState.PENDING, message=_waiting(pod))
    if _phase(pod) == "Running":
        return Seen(RunState.RUNNING, message=executors_wait(pod, pods))
    error = report.error or _killed(pod, DRIVER)
    return Seen(RunState.PENDING, message=error and f"an attempt failed ({error}), the next one follows")


def see_spark_application(
    application: Object, driver_pod: Object | None, run: str, pods: Iterable[Object] = ()
) -> Seen:
    """The state of a run's SparkApplication, given its driver's pod (None: not there) and pods in its namespace;
    ``run`` is the name that a report must give."""
    status = application.get("status") or {}
    told = status.get("applicationState") or {}
    named = told.get("state", "")
    state = APPLICATION_STATES.get(named, RunState.RUNNING)
    said = told.get("errorMessage") or ""
    report = _report(driver_pod, DRIVER_CONTAINER)
    end_time = status.get("terminationTime") or None
    if state is RunState.SUCCEEDED:
        return _succeeded(report, run, end_time)
    if state is RunState.FAILED:
        error = (
            report.error or _killed(driver_pod, DRIVER_CONTAINER) or said or "the Spark operator says FAILED"
        )
        return _failed(None, error, end_time)
    if driver_pod is not None and _phase(driver_pod) == "Pending" and (waits := _waiting(driver_pod)):
        return Seen(state, message=waits)
    if driver_pod is not None and (waits := executors_wait(driver_pod, list(pods))):
        return Seen(state, message=waits)
    if state is RunState.RUNNING:
        return Seen(state, message=said)
    if named == "SUBMITTED":
        return Seen(state)
    words = (
        _words(named.capitalize().replace("_", " "), said) if named else "the Spark operator has not seen it"
    )
    return Seen(state, message=words)


def _succeeded(report: Report, run: str, end_time: str | None) -> Seen:
    """The state of a runner that succeeded. If its pod is gone, there is no report; a report counts only if it names
    this run."""
    if report != Report() and report.run != run:
        error = (
            f"the driver reported {report.state or 'no state'} for run {report.run or 'without a name'}, not for {run}:"
            " spec.spark.image must be of this release"
        )
        return Seen(RunState.FAILED, error=error, end_time=end_time)
    return Seen(
        RunState.SUCCEEDED,
        rows=report.rows,
        corrupt_records=report.corrupt_records,
        bytes=report.bytes,
        end_time=end_time,
    )


def _failed(reason: Reason | None, error: str, end_time: str | None) -> Seen:
    reason, error = explained(reason, error)
    return Seen(RunState.FAILED, error=error, end_time=end_time, reason=reason)


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
        return reason, f"{error}: raise spec.spark.driver.memory or spec.spark.executor.memory"
    return reason, error


def driver_pod(job: Object, pods: Iterable[Object]) -> Object | None:
    """The pod of a Job's last attempt."""
    uid = job["metadata"]["uid"]
    return max((pod for pod in pods if is_owned_by(pod, uid)), key=_created, default=None)


def executors_wait(driver: Object, pods: Iterable[Object]) -> str:
    """What the first waiting executor of a driver waits for, if known."""
    uid = driver["metadata"].get("uid", "")
    for pod in pods:
        if is_owned_by(pod, uid) and _phase(pod) == "Pending" and (waits := _waiting(pod)):
            return f"executor {pod['metadata']['name']} waits: {waits}"
    return ""


def driver_pod_name(application: Object) -> str | None:
    info = (application.get("status") or {}).get("driverInfo") or {}
    name: str | None = info.get("podName") or None
    return name


def _created(pod: Object) -> str:
    created: str = pod["metadata"].get("creationTimestamp") or ""
    return created


def _phase(pod: Object) -> str:
    phase: str = (pod.get("status") or {}).get("phase", "Pending")
    return phase


def _container(pod: Object | None, name: str) -> Object:
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    state: Object = next((entry.get("state") or {} for entry in statuses if entry["name"] == name), {})
    return state


def _report(pod: Object | None, container: str) -> Report:
    message = (_container(pod, container).get("terminated") or {}).get("message") or ""
    try:
        return msgspec.json.decode(message, type=Report)
    except msgspec.MsgspecError:
        return Report(error=_last_words(message))


def _last_words(log: str) -> str:
    """The last log line of a driver that ended without a report, without Spark's own log lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    return lines[-1] if lines else ""


def _killed(pod: Object | None, container: str) -> str:
    """Why Kubernetes ended the driver: OOMKilled, Evicted, …"""
    status = (pod or {}).get("status") or {}
    ended = _container(pod, container).get("terminated") or {}
    if status.get("reason") and ended.get("reason") != "OOMKilled":
        return _words(status["reason"], status.get("message"))
    if ended.get("reason") not in (None, "", "Completed", "Error"):
        return f"{ended['reason']} (exit status {ended.get('exitCode')})"
    return f"the driver ended with exit status {ended['exitCode']}" if ended.get("exitCode") else ""


def _waiting(pod: Object | None) -> str:
    """What a pending pod waits for: an image, a volume, room on a node."""
    status = (pod or {}).get("status") or {}
    for entry in status.get("containerStatuses") or ():
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _words(waiting["reason"], waiting.get("message"))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _words(condition.get("reason"), condition.get("message"))
    return ""


def _words(*parts: str | None) -> str:
    return ": ".join(part for part in parts if part)
