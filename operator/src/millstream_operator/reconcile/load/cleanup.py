"""Deletes the Jobs, SparkApplications and ConfigMaps of a BatchLoad's old runs: those that the status no longer keeps,
those that ended longer ago than `spec.ttlSecondsAfterFinished`, and those that were stopped.

Deleted objects name the load's uid as their owner. The rows of a run stay.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ...kubernetes.client import KubeError, Manifest
from ...models import BatchLoad, BatchLoadStatus, Run
from ...models.load_run import RunState, in_flight
from ...resources.load import RUN_LABEL
from ...resources.load_spark_application import API_VERSION as SPARK_API_VERSION
from ...resources.owned import is_owned_by
from ...state.context import LoadParts
from .plan import parsed

KINDS = (("batch/v1", "Job"), (SPARK_API_VERSION, "SparkApplication"), ("v1", "ConfigMap"))
ENDED_APPLICATION = ("COMPLETED", "FAILED")


def clean(services: LoadParts, load: BatchLoad, status: BatchLoadStatus) -> None:
    """Delete what the status does not keep."""
    now, labels = services.now(), {"millstream.dev/batch-load": load.name}
    for api_version, kind in KINDS:
        try:
            found = services.kube.list(api_version, kind, load.namespace, labels)
        except KubeError as error:
            if error.status != 404:  # a Kubernetes without the Spark operator
                raise
            continue
        for one in found:
            metadata = one["metadata"]
            if is_owned_by(one, load.metadata.uid) and not _kept(load, status, one, now):
                services.kube.delete(api_version, kind, load.namespace, metadata["name"], uid=metadata["uid"])


def _kept(load: BatchLoad, status: BatchLoadStatus, found: Manifest, now: datetime) -> bool:
    name = (found["metadata"].get("labels") or {}).get(RUN_LABEL, found["metadata"]["name"])
    last = status.last_run
    if in_flight(status) and last is not None and name == last.name:
        return True
    ended = {run.name: run for run in (*((last,) if last is not None else ()), *(status.runs or ()))}
    run = ended.get(name)
    return run is not None and not _outlived(load, run, now) and not _stopped(run, found)


def _outlived(load: BatchLoad, run: Run, now: datetime) -> bool:
    limit = load.spec.ttl_seconds_after_finished
    if limit is None or not run.end_time:
        return False
    return now - parsed(run.end_time) >= timedelta(seconds=limit)


def _stopped(run: Run, found: Manifest) -> bool:
    """Whether a run was stopped from outside: its runner has not ended."""
    status = found.get("status") or {}
    if run.state != RunState.FAILED or found["kind"] == "ConfigMap":
        return False
    if found["kind"] == "SparkApplication":
        return (status.get("applicationState") or {}).get("state") not in ENDED_APPLICATION
    ended = {
        condition["type"] for condition in status.get("conditions") or () if condition.get("status") == "True"
    }
    return not ended & {"Complete", "Failed"}
