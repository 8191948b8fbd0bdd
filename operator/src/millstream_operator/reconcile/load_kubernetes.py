"""BatchLoad on Kubernetes: begin a run when one is due, start what runs it, follow it to its end.

A run's offsets are in the status before anything is started. So a pass does one of two things: it begins a run (and
only writes the status), or it sees to the run that the status names. Everything of a run is created once and never
changed: a changed SparkApplication would run again.
"""

from __future__ import annotations

from ..conditions import Reason
from ..kube import KubeError, Manifest
from ..models import API_VERSION, BatchLoad, BatchLoadStatus, decode_as
from ..resources import load as resources
from ..resources.cluster import bootstrap_of
from ..resources.load_job import job
from ..resources.load_spark_application import API_VERSION as SPARK_API_VERSION
from ..resources.load_spark_application import spark_application
from ..services import Services
from ..status import write_status
from . import load as runs
from .load import RunState, Seen
from .load_limits import check_limits
from .load_offsets import find_ends
from .load_runner import driver_pod_name, see_job, see_spark_application
from .objects import create, ensure, find
from .reference import find_cluster
from .report import Problem
from .volumes import claim_needs_owner

AT_ONCE_S = 0.0
SOON_S = 5.0
ENDED_S = 300.0


def reconcile_load(services: Services, load: BatchLoad) -> float:
    """One pass; seconds until the next."""
    if load.metadata.deletion_timestamp is not None:
        return ENDED_S  # Kubernetes removes what the load owns
    if runs.needs_run(load):
        # What a watch showed may be older than what was written last, and a run must not begin twice.
        live = services.kube.get(API_VERSION, load.KIND, load.namespace, load.name)
        if live is None:
            return ENDED_S
        load = decode_as(BatchLoad, live)
        if runs.needs_run(load):
            return _begin(services, load)
    run = load.status.last_run
    if run is not None and run.state in (RunState.SUCCEEDED, RunState.FAILED):
        return ENDED_S
    seen = _runner(services, load)
    now = services.now()
    if isinstance(seen, Problem):
        write_status(services, load, runs.refuse(load, seen, now))
        return SOON_S
    write_status(services, load, runs.follow(load, seen, now))
    return ENDED_S if seen.state.ended else SOON_S


def _begin(services: Services, load: BatchLoad) -> float:
    status = _begun(services, load)
    if isinstance(status, Problem):
        write_status(services, load, runs.refuse(load, status, services.now()))
        return SOON_S
    write_status(services, load, status)
    return SOON_S if status.last_run == load.status.last_run else AT_ONCE_S


def _begun(services: Services, load: BatchLoad) -> BatchLoadStatus | Problem:
    if problem := check_limits(services, load):
        return problem
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return cluster
    partitions = find_ends(services.admins.at(services.address_of(cluster)), load)
    if isinstance(partitions, Problem):
        return partitions
    offsets = runs.resolve(load, partitions)
    return offsets if isinstance(offsets, Problem) else runs.begin(load, offsets, services.now())


def _runner(services: Services, load: BatchLoad) -> Seen | Problem:
    """What runs the load's run, made if it is not there."""
    kube, name = services.kube, resources.run_name(load)
    if load.spec.runner == "Job":
        found = find(
            kube, {"apiVersion": "batch/v1", "kind": "Job", "metadata": resources.metadata(load, name)}
        )
        if found is not None:
            return see_job(found, kube.list("v1", "Pod", load.namespace, {"millstream.dev/run": name}))
        return _start(services, load, job(load, services.images))
    application = {"apiVersion": SPARK_API_VERSION, "kind": "SparkApplication"}
    found = find(kube, {**application, "metadata": resources.metadata(load, name)})
    if found is None:
        return _start(services, load, spark_application(load, services.images))
    pod_name = driver_pod_name(found)
    return see_spark_application(found, kube.get("v1", "Pod", load.namespace, pod_name) if pod_name else None)


def _start(services: Services, load: BatchLoad, runner: Manifest) -> Seen | Problem:
    if problem := check_limits(services, load):
        return problem
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return cluster
    ensure(services.kube, resources.service_account(load.namespace))
    ensure(services.kube, resources.role_binding(load.namespace, services.spark_role))
    create(services.kube, resources.config_map(load, bootstrap_of(cluster), services.images))
    if (claim := load.spec.output.volume_claim_name) and claim_needs_owner(services, load.namespace, claim):
        runner = resources.with_volume_owner(runner, services.images)
    try:
        services.kube.create(runner)
    except KubeError as error:
        if error.status != 404:
            raise
        message = (
            f"spec.runner: {runner['kind']} is not there in this Kubernetes: "
            "install Kubeflow's Spark operator, or choose Job"
        )
        return Problem(Reason.RUNNER_NOT_AVAILABLE, message)
    return Seen(RunState.PENDING)
