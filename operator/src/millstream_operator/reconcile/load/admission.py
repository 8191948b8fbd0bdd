"""Whether a BatchLoad may run now, and what its next run loads: the same rules wherever its runs are started.

What a place where runs are started does not allow is the launcher's to say: see `limits` for Kubernetes.
"""

from __future__ import annotations

from ...models import BatchLoad, BatchLoadStatus
from ...models.conditions import Reason
from ...models.problem import Problem
from ...state.context import LoadParts
from ..common.reference import find_cluster
from . import plan as runs
from .columns import check_columns
from .limits import KubernetesLauncher
from .offsets import check_topics, find_ends
from .tables import check_table


def refusal(services: LoadParts, load: BatchLoad) -> Problem | None:
    """Why no run of the load starts in its present form; None if one may.

    Checked before a run begins, and again before anything is started, since the spec may have changed in between.
    """
    launcher = services.launcher or KubernetesLauncher()
    return launcher.refusal(services, load) or check_columns(load) or check_table(services.store, load)


def begin(
    services: LoadParts, load: BatchLoad, asks: runs.Request
) -> BatchLoadStatus | Problem | runs.Waiting:
    """The status with the requested run and its offsets."""
    if problem := refusal(services, load):
        return problem
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return cluster
    rerun = load.spec.rerun if asks.trigger is runs.Trigger.RERUN else None
    partitions = find_ends(services.brokers_of(cluster), load, rerun)
    if isinstance(partitions, Problem):
        return partitions
    return runs.begin(load, asks, partitions, services.now(), services.nonce())


def scheduled_problem(services: LoadParts, load: BatchLoad) -> Problem | None:
    """Why the next run of the schedule could not begin, if that is known before its time."""
    if load.spec.schedule is None or load.spec.schedule.suspend:
        return None
    if problem := refusal(services, load):
        return None if problem.reason is Reason.RECONCILE_PAUSED else problem
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return cluster
    return check_topics(services.brokers_of(cluster), load)
