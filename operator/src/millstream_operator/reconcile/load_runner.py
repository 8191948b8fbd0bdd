"""How far a run's runner is, read from its Job or SparkApplication and the driver's pod; pure.

The job reports rows and errors in its container's termination message, as JSON:
``{"state": "Succeeded", "rows": 336776, "error": ""}``. A driver that was killed leaves none; then Kubernetes' own
words have to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..resources.load import DRIVER_CONTAINER
from ..resources.load_job import DRIVER
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
# A line of Spark's log that is no error: "26/11/21 04:30:00 INFO ShutdownHookManager: …".
_CHATTER = re.compile(r"\S+ [\d:.]+ (TRACE|DEBUG|INFO|WARN) ")


class Report(msgspec.Struct, frozen=True):
    """What the job said at its end."""

    state: str = ""
    rows: int | None = None
    error: str = ""


def see_job(job: Object, pods: Iterable[Object]) -> Seen:
    """The state of a Job, given its pods."""
    status = job.get("status") or {}
    pod = max(pods, key=_created, default=None)
    report = _report(pod, DRIVER)
    ended = {
        entry["type"]: entry for entry in status.get("conditions") or () if entry.get("status") == "True"
    }
    if "Complete" in ended:
        return Seen(RunState.SUCCEEDED, rows=report.rows, end_time=status.get("completionTime"))
    if failed := ended.get("Failed"):
        return Seen(
            RunState.FAILED,
            error=report.error or _killed(pod, DRIVER) or _words(failed.get("reason"), failed.get("message")),
            end_time=failed.get("lastTransitionTime"),
        )
    if pod is None or _phase(pod) == "Pending":
        return Seen(RunState.PENDING, message=_waiting(pod))
    message = report.error and f"an attempt failed ({report.error}), the next one follows"
    return Seen(RunState.RUNNING if _phase(pod) == "Running" else RunState.PENDING, message=message)


def see_spark_application(application: Object, driver_pod: Object | None) -> Seen:
    """The state of a SparkApplication, given its driver's pod (None: not there)."""
    status = application.get("status") or {}
    told = status.get("applicationState") or {}
    named = told.get("state", "")
    state = APPLICATION_STATES.get(named, RunState.RUNNING)
    said = told.get("errorMessage") or ""
    report = _report(driver_pod, DRIVER_CONTAINER)
    end_time = status.get("terminationTime") or None
    if state is RunState.SUCCEEDED:
        return Seen(state, rows=report.rows, end_time=end_time)
    if state is RunState.FAILED:
        error = (
            report.error or _killed(driver_pod, DRIVER_CONTAINER) or said or "the Spark operator says FAILED"
        )
        return Seen(state, error=error, end_time=end_time)
    message = (
        _words(named.capitalize().replace("_", " "), said) if named else "the Spark operator has not seen it"
    )
    return Seen(state, message=message)


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
    """What a driver that never came to report said last, Spark's chatter aside."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _CHATTER.match(line)]
    return lines[-1] if lines else ""


def _killed(pod: Object | None, container: str) -> str:
    """Why Kubernetes ended the driver: OOMKilled, Evicted, …"""
    status = (pod or {}).get("status") or {}
    if status.get("reason"):
        return _words(status["reason"], status.get("message"))
    ended = _container(pod, container).get("terminated") or {}
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
