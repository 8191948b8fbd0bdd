"""BatchLoad on Kubernetes: begins a run when one is due, starts its runner, and follows it to its end.

A run's offsets are in the status before anything is started. So a pass does one of three things: it begins a run (and
only writes the status), it continues the run that the status names, or, if there is none, it measures how far the load
is behind the log. Objects of a run are created once and never changed: a changed SparkApplication would run again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ...kubernetes.client import KubeError, Manifest
from ...models import API_VERSION, BatchLoad, decode_as
from ...models.conditions import Reason
from ...models.load_run import ObservedRun, RunState
from ...models.problem import Problem
from ...resources import load as resources
from ...resources.cluster import bootstrap_of
from ...resources.load_job import job
from ...resources.load_spark_application import spark_application
from ...state.context import LoadParts
from ...state.status import write_status
from ..common.objects import create, ensure
from ..common.reference import find_cluster, login_problem
from ..common.volumes import claim_needs_owner
from . import plan as runs
from .admission import begin, refusal, scheduled_problem
from .cleanup import clean
from .conditions import PendingPods, tell
from .lag import with_lag
from .observe import LOG_LINES, find_runner, log_of, see
from .plan import Request, Waiting

AT_ONCE_S = 0.0
SOON_S = 5.0
IDLE_S = 60.0  # with a schedule: how often the lag is measured
ENDED_S = 300.0
MAX_LINE = 400


def reconcile_load(services: LoadParts, load: BatchLoad) -> float:
    """One pass; seconds until the next."""
    if load.metadata.deletion_timestamp is not None:
        return ENDED_S  # Kubernetes removes what the load owns
    now = services.now()
    observed = runs.with_status(load, runs.observe(load, now))
    if runs.request(observed, now) is not None:
        # The watch may lag behind the last write, and a run must not begin twice.
        live = services.kube.get(API_VERSION, load.KIND, load.namespace, load.name)
        if live is None:
            return ENDED_S
        services.store.put_written(live)
        load = decode_as(BatchLoad, live)
        observed = runs.with_status(load, runs.observe(load, now))
        if (asks := runs.request(observed, now)) is not None:
            return _begin(services, load, observed, asks)
    if not runs.in_flight(observed.status):
        return _idle(services, load, observed)
    return _follow(services, load, observed)


def _begin(services: LoadParts, load: BatchLoad, observed: BatchLoad, asks: Request) -> float:
    now, begun = services.now(), begin(services, observed, asks)
    if isinstance(begun, Problem | Waiting):
        write_status(services, load, tell(observed, observed.status, now, begun))
        return SOON_S
    write_status(services, load, tell(observed, begun, now))
    clean(services, load, begun)
    return AT_ONCE_S


def _idle(services: LoadParts, load: BatchLoad, observed: BatchLoad) -> float:
    """A pass without a current run, and with none due."""
    now = services.now()
    status = with_lag(services, observed)
    write_status(services, load, tell(observed, status, now, scheduled_problem(services, load) or ""))
    if load.spec.schedule is None or load.spec.ttl_seconds_after_finished is not None:
        clean(services, load, status)  # with a schedule: as each run begins and ends
    again = ENDED_S
    if status.schedule is not None and status.schedule.next is not None:
        again = min(IDLE_S, _seconds_to(status.schedule.next, now))
    ended, ttl = status.last_run.end_time if status.last_run else None, load.spec.ttl_seconds_after_finished
    if ended and ttl is not None and (left := ttl + _seconds_to(ended, now)) > 0:
        again = min(again, left + 1)
    return again


def _seconds_to(moment: str, now: datetime) -> float:
    return (runs.parsed(moment) - now).total_seconds()


def _follow(services: LoadParts, load: BatchLoad, observed: BatchLoad) -> float:
    seen = _runner(services, observed)
    now = services.now()
    if isinstance(seen, Problem):
        write_status(services, load, tell(observed, observed.status, now, seen))
        return SOON_S
    if not seen.state.ended:
        seen = runs.overdue(observed, now) or seen
    if seen.state is RunState.FAILED:
        lines = log_of(services, observed)[-LOG_LINES:]
        seen = replace(seen, log=tuple(line[:MAX_LINE] for line in lines))
    status = runs.follow(observed, seen, now)
    what = PendingPods(seen.message) if seen.reason is Reason.PODS_PENDING else seen.message
    write_status(services, load, tell(observed, status, now, "" if seen.state.ended else what))
    if not seen.state.ended:
        return SOON_S
    clean(services, load, status)
    return AT_ONCE_S if load.spec.schedule or load.spec.rerun else ENDED_S


def _runner(services: LoadParts, load: BatchLoad) -> ObservedRun | Problem:
    """The runner of the load's run, created if it does not exist."""
    found = find_runner(services, load)
    if found is not None:
        return see(services, load, found)
    build = job if load.spec.runner == "Job" else spark_application
    return _start(services, load, build(load, services.images))


def _start(services: LoadParts, load: BatchLoad, runner: Manifest) -> ObservedRun | Problem:
    if edited := runs.superseded(load):
        return edited
    if problem := refusal(services, load):
        return problem
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return cluster
    if (problem := login_problem(cluster)) is not None:
        return problem
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
            f"{runner['kind']} is not a kind of this Kubernetes: install Kubeflow's Spark operator, "
            "or set spec.runner: Job"
        )
        return Problem(Reason.RUNNER_NOT_AVAILABLE, message)
    return ObservedRun(RunState.PENDING)
