"""Runs of BatchLoads on this machine: Spark as a process in the foreground (see spark.py). Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..models import BatchLoad, BatchLoadStatus, Cluster, Run
from ..models.conditions import Reason
from ..models.load_run import ObservedRun
from ..models.problem import Problem
from ..models.words import count_of
from ..reconcile.load.logins import ensure_access
from ..resources.certificates import CA
from ..resources.load import login_secret, trust_secret
from ..resources.load_run_file import run_name
from ..state.context import LoadParts
from . import spark
from .clusters import folder_name
from .folder import DataFolder
from .java import NotInstalled


class LocalLauncher:
    """Starts runs as processes of this machine, with the user's own rights, and waits until they have ended."""

    def __init__(
        self, data: DataFolder, say: Callable[[str], None], progress: Callable[[spark.Progress], None]
    ) -> None:
        self.data = data
        self.say = say
        self.progress = progress

    def refusal(self, services: LoadParts, load: BatchLoad) -> Problem | None:
        """None: images, volume claims and pausing have no effect here, and any folder may be written."""
        return None

    def missing(self, load: BatchLoad) -> Problem | None:
        try:
            spark.job_file(load)
        except NotInstalled as error:
            return Problem(Reason.RUNNER_NOT_AVAILABLE, f"not loaded ({error})")
        return None

    def start(self, services: LoadParts, load: BatchLoad, cluster: Cluster) -> ObservedRun | Problem:
        if (problem := self.missing(load)) is not None:
            return problem
        access = ensure_access(services, load, cluster, must_be_stored=True)
        if isinstance(access, Problem):
            return access
        if access.has_login:
            users = self.data.path / "users"
            user, trust = (
                users / folder_name(load.namespace, name) for name in (login_secret(load), trust_secret(load))
            )
            access = replace(access, folder=str(user), ca_file=str(trust / CA))
        else:
            access = replace(access, bootstrap=services.address_of(cluster))
        self.data.save()  # fix the offsets before anything reads them
        count = (load.status.last_run or Run()).records or 0
        self.say(f"{load.KIND} {load.name}: {run_name(load)} loads {count_of(count, 'record')} with Spark")
        self.data.make("loads")
        if load.spec.output.volume_claim_name is not None:
            self.data.make("volumes")
        return spark.run(
            load,
            access,
            self.data.path,
            spark.job_file(load),
            self.progress,
            load.spec.timeout_seconds,
        )

    def observe(self, services: LoadParts, load: BatchLoad) -> ObservedRun | None:
        """None: no run outlives the command that started it; an interrupted run is started again."""
        return None

    def log(self, services: LoadParts, load: BatchLoad) -> Sequence[str]:
        return spark.log_of(load, self.data.path)

    def clean(self, services: LoadParts, load: BatchLoad, status: BatchLoadStatus) -> None:
        """Nothing: folders of runs stay, so that their logs can be read."""

    def path_of_rows(self, load: BatchLoad) -> str:
        return spark.output_path(load, self.data.path)
