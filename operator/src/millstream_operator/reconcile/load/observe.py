"""A run as Kubernetes shows it: its Job or SparkApplication, the pods, their Events and logs. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...kubernetes.client import KubeError, Manifest
from ...models import BatchLoad
from ...models.conditions import Reason
from ...models.load_run import ObservedRun, RunState
from ...resources import load as resources
from ...resources.load_job import DRIVER
from ...resources.load_run_file import run_id, run_name
from ...resources.load_spark_application import API_VERSION as SPARK_API_VERSION
from ...resources.owned import is_owned_by
from ...state.context import LoadParts
from ..common.objects import find
from .pods import MOUNTS, Object, executors_of, phase, why_refused
from .runner import driver_pod, driver_pod_name, see_job, see_spark_application

RUNNERS = {"Job": "batch/v1", "SparkApplication": SPARK_API_VERSION}
LOG_LINES = 20
REFUSED_LINES = 200
"""Lines of a driver's log searched for the refusal of an executor, which Spark tries to create every second."""


def find_runner(services: LoadParts, load: BatchLoad) -> Manifest | None:
    """The runner of the load's run; None if it does not exist. Raises NotOurs.

    A run keeps its runner when an edit of the spec names another: a second one would be a second driver."""
    name, wanted = run_name(load), load.spec.runner
    metadata = resources.metadata(load, name)
    found = find(services.kube, {"apiVersion": RUNNERS[wanted], "kind": wanted, "metadata": metadata})
    if found is not None:
        return found
    (other,) = RUNNERS.keys() - {wanted}
    found = services.kube.get(RUNNERS[other], other, load.namespace, name)
    return found if found is not None and is_owned_by(found, load.metadata.uid) else None


def see(services: LoadParts, load: BatchLoad, runner: Manifest) -> ObservedRun:
    """The state of the run."""
    run, (driver, pods) = run_id(load), _pods(services, load, runner)
    if runner["kind"] == "SparkApplication":
        seen = see_spark_application(runner, driver, run, pods)
    else:
        seen = see_job(runner, pods, run)
        if seen.state is RunState.PENDING and driver is None:
            return replace(seen, message=_latest(services, load, runner["metadata"], "FailedCreate"))
    return _with_hindrance(services, load, seen, runner, driver, pods)


def log_of(services: LoadParts, load: BatchLoad) -> Sequence[str]:
    """The end of the driver's log, while its pod exists."""
    try:
        runner = find_runner(services, load)
        driver, _ = _pods(services, load, runner) if runner is not None else (None, ())
        return (
            _log(services, load, runner, driver, LOG_LINES)
            if runner is not None and driver is not None
            else []
        )
    except KubeError:
        return []  # report the failure even without its log


def _pods(services: LoadParts, load: BatchLoad, runner: Manifest) -> tuple[Object | None, Sequence[Object]]:
    """The driver's pod, if there is one, and all pods of the run."""
    kube, label = services.kube, {resources.RUN_LABEL: run_name(load)}
    if runner["kind"] == "Job":
        pods = kube.list("v1", "Pod", load.namespace, label)
        return driver_pod(runner, pods), pods
    name = driver_pod_name(runner)
    driver = kube.get("v1", "Pod", load.namespace, name) if name else None
    return driver, kube.list("v1", "Pod", load.namespace, label) if driver is not None else ()


def _log(services: LoadParts, load: BatchLoad, runner: Manifest, driver: Object, lines: int) -> Sequence[str]:
    container = DRIVER if runner["kind"] == "Job" else resources.DRIVER_CONTAINER
    return services.kube.log(load.namespace, driver["metadata"]["name"], container, lines)


def _with_hindrance(
    services: LoadParts,
    load: BatchLoad,
    seen: ObservedRun,
    runner: Manifest,
    driver: Object | None,
    pods: Sequence[Object],
) -> ObservedRun:
    """Add hindrances that no pod's status shows: volumes that cannot be mounted, executors that Kubernetes refuses."""
    if driver is None or seen.message or seen.state.ended:
        return seen
    if phase(driver) == "Pending":
        return replace(seen, message=_latest(services, load, driver["metadata"], *MOUNTS))
    if phase(driver) != "Running" or executors_of(driver, pods):
        return seen
    refused = why_refused(_log(services, load, runner, driver, REFUSED_LINES))
    return replace(seen, message=refused, reason=Reason.PODS_PENDING) if refused else seen


def _latest(services: LoadParts, load: BatchLoad, metadata: Mapping[str, Any], *reasons: str) -> str:
    """The message of the latest Event about an object with one of these reasons.

    For example a quota, a limit range or a webhook that refuses a pod, or a volume that cannot be mounted.
    """
    found = [
        (one.get("lastTimestamp") or one.get("eventTime") or "", one.get("message") or "")
        for reason in reasons
        for one in services.kube.events_about(load.namespace, metadata.get("uid") or "", reason)
    ]
    return max(found, default=("", ""))[1]
