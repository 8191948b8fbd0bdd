"""The operator's condition for a BatchLoad whose driver has ended with a report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream_jobs.failures import JobError, root_cause
from millstream_jobs.run import BadRun, Result
from millstream_operator.models import BatchLoadStatus, Run
from millstream_operator.reconcile.load import plan as runs
from millstream_operator.reconcile.load.conditions import tell
from millstream_operator.reconcile.load.runner import see_job
from millstream_operator.resources.load_job import DRIVER

from .loads import a_load

NAME = "daily-0001-1a2b3c4d"
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def ready(report: dict[str, Any]) -> tuple[str, str, str]:
    """Status, reason and message of ``Ready`` after a driver's report, which is in RUN.json's ``result``."""
    message = msgspec.json.encode({**report, "run": NAME}).decode()
    ended = {"name": DRIVER, "state": {"terminated": {"exitCode": 1, "message": message}}}
    owner = {"kind": "Job", "uid": "u-job"}
    pod = {
        "metadata": {"name": "driver", "ownerReferences": [owner], "creationTimestamp": "1"},
        "status": {"phase": "Failed", "containerStatuses": [ended]},
    }
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
    job = {"metadata": {"uid": "u-job"}, "status": {"conditions": [failed]}}
    load = runs.with_status(a_load(), BatchLoadStatus(last_run=Run(name=NAME, state="Running")))
    status = tell(load, runs.end(load, see_job(job, [pod], NAME), NOW), NOW)
    (found,) = [one for one in status.conditions or () if one.type == "Ready"]
    return found.status, found.reason, found.message


def ready_after(error: Exception) -> tuple[str, str, str]:
    """The same after a job that raised this."""
    reason = error.reason if isinstance(error, BadRun | JobError) else ""
    said = str(error) if isinstance(error, BadRun | JobError) else root_cause(error)
    report = Result("Failed", error=said, reason=reason)
    return ready(msgspec.json.decode(report.encode()))
