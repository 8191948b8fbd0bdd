"""A local MirrorMaker: as many `millstream-mirror` processes as it has replicas.

DATA/mirrors/NAME/mirror.json   the configuration of the running workers
DATA/mirrors/NAME/N.log         the output of worker N
DATA/mirrors/NAME/secrets       values of Secrets (secrets.py), and of the workers' own user
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence

from ..models import Cluster, MirrorMaker
from ..models.conditions import Reason
from ..models.keys import Key
from ..models.mirror import SecretKey
from ..models.mirror_reports import WorkerReport, Workers
from ..models.problem import Problem
from ..reconcile.mirror.logins import login_of
from ..reconcile.mirror.plan import knows_topics
from ..reconcile.mirror.workers import ask_all
from ..resources.mirror import Endpoint, Mirrored, login_keys, mirror_file, secret_keys
from ..resources.owned import values_of
from ..state.cache import key_for
from ..state.context import MirrorParts
from . import ports, processes
from .clusters import LocalCluster, command, folder_name
from .folder import DataFolder
from .processes import StartFailed
from .secrets import Secrets, write

MIRROR_SETTLE_S = 5.0
"""How long to wait for the first reports of workers that have just started."""


class LocalMirrors:
    """The workers in a data folder. Blocking.

    ``started`` has the MirrorMakers whose workers run as specified, and whether they, or some of them, were started.
    """

    def __init__(self, data: DataFolder, secrets: Secrets, say: Callable[[str], None]) -> None:
        self.data = data
        self.secrets = secrets
        self.say = say
        self.started: dict[Key, bool] = {}

    def address_of(self, cluster: Cluster) -> str:
        return LocalCluster(self.data, cluster).bootstrap

    def run(
        self, services: MirrorParts, mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint
    ) -> Workers | Problem:
        local, key = LocalMirror(self.data, mirror), key_for(mirror)
        login = login_of(services, mirror, tuple(sources), target)
        if isinstance(login, Problem):
            return login
        own = [] if login is None else login_keys(mirror, login)
        names = {(mirror.namespace, one.name) for one in own}
        given = {each: values_of(services.kube.get("v1", "Secret", *each)) for each in names}
        try:
            changed = local.start(sources, target, own, {**self.secrets, **given}, self.say)
        except StartFailed as error:
            self.started.pop(key, None)
            return Problem(Reason.WORKERS_STARTING, str(error))
        self.started[key] = changed or self.started.get(key, False)
        deadline = time.monotonic() + MIRROR_SETTLE_S
        while True:
            workers = local.workers()
            settled = workers.ready >= workers.replicas and knows_topics(mirror, workers.reports)
            if settled or time.monotonic() > deadline:
                return workers
            time.sleep(processes.POLL_S)

    def observe(self, services: MirrorParts, mirror: MirrorMaker) -> Workers:
        return LocalMirror(self.data, mirror).workers()

    def stop(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        self.started.pop(key_for(mirror), None)
        LocalMirror(self.data, mirror).stop()
        return 0

    def count(self, services: MirrorParts, mirror: MirrorMaker) -> int:
        return LocalMirror(self.data, mirror).count()

    def reports(self, services: MirrorParts, mirror: MirrorMaker) -> tuple[WorkerReport, ...]:
        return self.observe(services, mirror).reports

    def running(self, services: MirrorParts, key: Key) -> Mirrored | None:
        """None: only the specs count here."""
        return None


class LocalMirror:
    """The workers of one MirrorMaker. Blocking."""

    def __init__(self, data: DataFolder, mirror: MirrorMaker) -> None:
        self.data = data
        self.state = data.state
        self.mirror = mirror
        self.prefix = f"mirror/{mirror.namespace}/{mirror.name}/"
        self.folder = data.path / "mirrors" / folder_name(mirror.namespace, mirror.name)
        self.file = self.folder / "mirror.json"
        self.secrets = self.folder / "secrets"

    def start(
        self,
        sources: Sequence[Endpoint],
        target: Endpoint,
        own: Sequence[SecretKey],
        secrets: Secrets,
        say: Callable[[str], None],
    ) -> bool:
        """Make the desired number of workers run with the present configuration; return False if they already did.

        ``own``: keys of Secrets that the manifest does not name.
        """
        if keys := [*secret_keys(self.mirror), *own]:
            self._make_folder()
            write(self.secrets, self.mirror.namespace, keys, secrets)
        with processes.files_of_a_start():
            stopped, changed, missing = self._start(sources, target)
        if stopped and changed and missing:
            say(f"MirrorMaker {self.mirror.name}: its configuration changed: workers are restarted")
        return bool(stopped or missing)

    def _start(self, sources: Sequence[Endpoint], target: Endpoint) -> tuple[int, bool, list[str]]:
        """How many workers were stopped, whether the configuration changed, which workers were started."""
        file = mirror_file(self.mirror, sources, target, http=f"{ports.HOST}:0", secrets=str(self.secrets))
        text = json.dumps(file, indent=1)
        changed = not self.file.exists() or self.file.read_text() != text
        wanted = [f"{self.prefix}{number}" for number in range(self.mirror.spec.replicas)]
        stopped = self.stop(keep=() if changed else wanted)
        if changed:
            self._make_folder()
            self.file.write_text(text)
        missing = [
            key for key in wanted if key not in self.state.daemons or not self.state.daemons[key].serves
        ]
        for key in missing:
            log = self.folder / f"{key.removeprefix(self.prefix)}.log"
            self.data.start(key, [command("millstream-mirror"), str(self.file)], log)
        return stopped, changed, missing

    def _make_folder(self) -> None:
        self.data.make("mirrors")
        self.folder.mkdir(exist_ok=True)

    def forget(self) -> None:
        """Stop its workers, and delete the values of Secrets. OSError."""
        self.stop()
        if self.secrets.exists():
            shutil.rmtree(self.secrets)

    def stop(self, keep: Sequence[str] = ()) -> int:
        """Stop its workers except those; return how many ran."""
        gone = [key for key in self.state.daemons if key.startswith(self.prefix) and key not in keep]
        return sum(processes.stop(self.state.daemons.pop(key)) for key in gone)

    def count(self) -> int:
        """The number of its workers that have not ended."""
        return sum(daemon.alive for key, daemon in self.state.daemons.items() if key.startswith(self.prefix))

    def workers(self) -> Workers:
        daemons = [daemon for key, daemon in self.state.daemons.items() if key.startswith(self.prefix)]
        alive = [daemon for daemon in daemons if daemon.serves]
        dead = [daemon for daemon in daemons if not daemon.alive]
        addresses = [daemon.ready["http"] for daemon in alive if "http" in daemon.ready]
        reports = ask_all(addresses)
        failure = processes.last_words(dead[0]) if dead else ""
        silent = max(0, len(addresses) - len(reports))
        return Workers(
            replicas=len(alive), ready=len(reports), reports=reports, failure=failure, silent=silent
        )
