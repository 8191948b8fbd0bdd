"""Runs on Kubernetes: a Job or a SparkApplication for each, with its ConfigMap. Blocking."""

from __future__ import annotations

from collections.abc import Sequence

from ...kubernetes.client import KubeError
from ...models import BatchLoad, BatchLoadStatus, Cluster
from ...models.conditions import Reason
from ...models.load_run import ObservedRun, RunState
from ...models.problem import Problem
from ...resources import load as resources
from ...resources.load_job import job
from ...resources.load_run_file import connects_as
from ...resources.load_spark_application import spark_application
from ...resources.pod_access import PodAccess
from ...state.context import LoadParts
from ...state.platform import pods_connect
from ..common.objects import delete, ensure, find
from ..common.reference import find_cluster, read_cluster
from ..common.volumes import claim_needs_owner
from .cleanup import clean
from .limits import check_limits
from .logins import ensure_access
from .observe import LOG_LINES, find_runner, log_of, see


class KubernetesLauncher:
    """Starts runs as Jobs or SparkApplications.

    Objects of a run are created once and never changed: a changed SparkApplication would run again.

    A Cluster closes its Internal listener when it finds no run that connects there: first it says in its status where
    pods connect, then it looks for the ConfigMaps of runs (cluster/platform.py). Here the order is the reverse: the run
    starts if the Cluster, read after the ConfigMap was written, still says the same.
    """

    def refusal(self, services: LoadParts, load: BatchLoad) -> Problem | None:
        """A run that has started continues while its load is paused."""
        return check_limits(services, load)

    def missing(self, load: BatchLoad) -> Problem | None:
        """None: whether Kubernetes has SparkApplications is known when it is asked to create one."""
        return None

    def start(self, services: LoadParts, load: BatchLoad, cluster: Cluster) -> ObservedRun | Problem:
        access = self._prepare(services, load, cluster)
        if isinstance(access, Problem):
            return access
        runner = (job if load.spec.runner == "Job" else spark_application)(load, services.images)
        runner = resources.with_files_of_access(runner, load, access)
        claim = load.spec.output.volume_claim_name
        if claim and claim_needs_owner(services, load.namespace, claim):
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

    def _prepare(self, services: LoadParts, load: BatchLoad, cluster: Cluster) -> PodAccess | Problem:
        """How the run connects; its ConfigMap says so, and the Cluster does after it."""
        while True:
            access = ensure_access(services, load, cluster, must_be_stored=True)
            if isinstance(access, Problem):
                return access
            ensure(services.kube, resources.service_account(load.namespace))
            ensure(services.kube, resources.role_binding(load.namespace, services.spark_role))
            wanted = resources.config_map(load, access, services.images)
            live = find(services.kube, wanted)
            if live is not None and not connects_as(live, wanted):  # an attempt to start, or a lost runner
                delete(services.kube, wanted)
                live = None
            if live is None:
                services.kube.create(wanted)
            latest = read_cluster(services, load.namespace, load.spec.cluster_ref)
            if isinstance(latest, Problem):
                return latest
            if pods_connect(latest) == pods_connect(cluster):
                return access
            cluster = latest

    def observe(self, services: LoadParts, load: BatchLoad) -> ObservedRun | None:
        found = find_runner(services, load)
        if found is None:
            return None
        cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
        if isinstance(
            cluster, Cluster
        ):  # which may have lost the user since the start, or have another authority
            ensure_access(services, load, cluster, must_be_stored=False)
        return see(services, load, found)

    def log(self, services: LoadParts, load: BatchLoad) -> Sequence[str]:
        return log_of(services, load)[-LOG_LINES:]

    def clean(self, services: LoadParts, load: BatchLoad, status: BatchLoadStatus) -> None:
        clean(services, load, status)

    def path_of_rows(self, load: BatchLoad) -> str:
        return ""
