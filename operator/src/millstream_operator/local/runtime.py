"""`LocalRuntime`: applies manifests on this machine, with the operator's own resources and plans.

    up       read and validate all manifests, then: brokers, topics, groups, mirrors, loads. A repetition reconciles:
             anything up to date is left alone, dead processes restart, loads that have become ready run.
    status   resources and processes with their state
    delete   delete the resources in the manifests, as `kubectl delete -f` does (deleting.py)
    down     stop the processes; data and resources stay, so `up` continues from them

Errors before any change are raised (`ManifestError`, `StateError`); later problems of one resource are in its Ready
condition and in `Outcome.failures`, and the others continue.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..kafka.pools import AdminPool
from ..models import BatchLoad, Cluster, decode_as
from . import deleting, manifests, processes, scheduler
from .clusters import LocalCluster
from .folder import DataFolder
from .processes import StartFailed
from .reconcile import SCHEDULE, LocalReconciler
from .spark import Progress
from .state import Resource, State, StateError, Store, key_of
from .workloads import stop_all

SCHEDULER_STOP_S = 30.0  # Spark is stopped first
DEFAULT_DATA = Path(".millstream")
STOPPED = (
    "schedule",
    "consumers",
    "mirror",
    "broker",
    "zookeeper",
)  # in this order: dependencies first


@dataclass(frozen=True, slots=True)
class Reporter:
    """Receives progress: a line per step, and how far a load's run is."""

    say: Callable[[str], None] = lambda line: None
    progress: Callable[[Progress], None] = lambda at: None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of `up` by resource: those not in their desired state, and waiting loads."""

    resources: list[Resource]
    failures: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of `status`: resources with status, and processes."""

    data: Path
    resources: list[Resource]
    daemons: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"data": str(self.data), "resources": self.resources, "processes": self.daemons}


class LocalRuntime:
    """One data folder. Its methods block, `up` for as long as its loads run."""

    def __init__(self, data: Path = DEFAULT_DATA, reporter: Reporter | None = None) -> None:
        self.data = data.absolute()
        self.store = Store(self.data)
        self.reporter = reporter or Reporter()

    def up(self, folder: Path, *, loads: bool = True) -> Outcome:
        """Apply the manifests of a folder; ``loads=False`` leaves BatchLoads for later."""
        before = self.store.load()
        known = before.resources
        # First, so that a mistake does not even leave a data folder.
        found = manifests.read(folder, known, self._never_run(before))
        with self._without_schedule() as state:
            self._say_copy(state)
            self.store.save(state)
            if state.resources != known:
                found = manifests.read(folder, state.resources, self._never_run(state))
            return self._up(state, found, loads=loads)

    def _never_run(self, state: State) -> set[str]:
        """The keys of Clusters none of whose brokers has ever started by their spec: they may change in every field."""
        folder = DataFolder(self.data, state)
        return {
            key
            for key, resource in state.resources.items()
            if resource["kind"] == Cluster.KIND
            and not LocalCluster(folder, decode_as(Cluster, resource)).has_run()
        }

    def _up(self, state: State, found: manifests.Manifests, *, loads: bool) -> Outcome:
        say = self.reporter.say
        wanted = [state.apply(resource) for resource in found.resources]
        keys = [key_of(resource) for resource in wanted]
        for key, resource in sorted(state.resources.items()):
            if key not in keys:
                say(
                    f"{resource['kind']} {resource['metadata']['name']}: is not in these manifests: left unchanged"
                )
        if news := [entry for entry in found.without_effect if entry not in state.told]:
            say(f"without effect here: {'; '.join(news)}")
            state.told += news
        admins = AdminPool()
        reporter = self.reporter

        def save() -> None:
            self.store.save(state)

        reconciler = LocalReconciler(
            state, self.data, admins, reporter.say, reporter.progress, save, found.secrets
        )
        try:
            for kind in manifests.KINDS:
                if kind == BatchLoad.KIND and not loads:
                    continue
                try:
                    reconciler.ensure(kind, keys)
                finally:
                    save()
        finally:
            save()
            admins.close()
            reconciler.services.outside.close()
        resources = [state.resources[key] for key in keys]
        return Outcome(resources, reconciler.failures, reconciler.waiting)

    def status(self) -> Snapshot:
        """Observe, and change nothing."""
        state = self.store.load()
        self._say_copy(state)
        LocalReconciler.observe(state, self.data, list(state.resources))
        daemons = [
            {
                "name": name,
                "pid": daemon.pid,
                "running": daemon.alive,
                "log": daemon.log,
                "address": address(daemon.ready),
            }
            for name, daemon in sorted(state.daemons.items())
        ]
        order = sorted(state.resources.values(), key=lambda r: (manifests.KINDS.index(r["kind"]), key_of(r)))
        return Snapshot(self.data, order, daemons)

    def doomed(self, folder: Path) -> deleting.Doomed:
        """The effect of `delete` on the resources in a folder's manifests; changes nothing."""
        return deleting.doomed(self.store.load(), self.data, manifests.named(folder))

    def delete(self, folder: Path, confirmed: deleting.Doomed) -> Outcome:
        """Delete the resources in a folder's manifests; data is deleted if a resource's policy says Delete.

        StateError, with nothing deleted, if that is no longer what was ``confirmed``.
        """
        names = manifests.named(folder)
        with self._without_schedule() as state:
            self._say_copy(state)
            if deleting.doomed(state, self.data, names) != confirmed:
                raise StateError("the data to delete changed meanwhile: nothing was deleted; run it again")
            admins = AdminPool()
            reconciler = LocalReconciler(
                state,
                self.data,
                admins,
                self.reporter.say,
                self.reporter.progress,
                lambda: self.store.save(state),
            )
            try:
                for key in names:
                    if key in state.resources:
                        deleting.delete(reconciler, key)
                        self.store.save(state)
                    else:
                        kind, _, name = key.split("/")
                        self.reporter.say(f"{kind} {name}: does not exist")
            finally:
                self.store.save(state)
                admins.close()
            return Outcome(
                [state.resources[key] for key in names if key in state.resources], reconciler.failures
            )

    def down(self, *, delete_data: bool = False) -> list[str]:
        """Stop every process; return their names. With ``delete_data``, also delete everything that `up` created.

        StateError for a folder that `up` never created; then nothing is deleted.
        """
        if delete_data:
            self.check_owned()
        elif not self.store.exists:
            return []
        stopped = []
        self._stop_scheduler()
        with self.store.locked():
            state = self.store.load()
            self._say_copy(state)
            for name in sorted(state.daemons, key=lambda name: (STOPPED.index(name.split("/")[0]), name)):
                stop = stop_all if name.startswith("consumers/") else processes.stop
                if stop(state.daemons.pop(name)):
                    stopped.append(name)
                    self.reporter.say(f"{title(name)}: stopped")
            self.store.save(state)
            if delete_data:
                self._delete(state)
        return stopped

    def check_owned(self) -> None:
        """StateError unless `up` created the data folder."""
        if not self.store.exists:
            raise StateError(
                f"--data: {self.data} is not a data folder of `millstream local`: it has no state.json. Nothing was"
                " deleted; name the folder that you gave to `millstream local up`"
            )
        self.store.load()

    def _say_copy(self, state: State) -> None:
        if others := self.store.others:
            named = ", ".join(
                f"{title(key)} (process {daemon.pid})" for key, daemon in sorted(others.items())
            )
            self.reporter.say(
                f"{self.data} is a copy of {state.path}, whose processes are left alone: {named}"
            )

    @contextlib.contextmanager
    def _without_schedule(self) -> Iterator[State]:
        """Holds the folder; the schedule runs again afterwards, also if the block is interrupted."""
        self._stop_scheduler()
        with self.store.locked():
            state = self.store.load()
            try:
                yield state
            except BaseException:
                with contextlib.suppress(StartFailed, OSError):  # the cause of the end matters more
                    self._start_scheduler(state)
                raise
            self._start_scheduler(state)

    def _stop_scheduler(self) -> None:
        """Stop the scheduler, which may hold the folder's lock for as long as a load runs."""
        daemon = self.store.load().daemons.get(SCHEDULE)
        # One that another command is just starting belongs to that command, which has the folder.
        if daemon is not None and (daemon.ready or self.store.holder == str(daemon.pid)):
            processes.stop(daemon, timeout=SCHEDULER_STOP_S)

    def _start_scheduler(self, state: State) -> None:
        """Run a scheduler if a load has a schedule."""
        folder = DataFolder(self.data, state, lambda: self.store.save(state))
        folder.stop(SCHEDULE)
        state.daemons.pop(SCHEDULE, None)
        if scheduler.has_schedules(state):
            log = folder.make("loads") / ".schedule.log"  # no load has this name
            program = [sys.executable, "-m", scheduler.__name__, str(self.data)]
            folder.start(SCHEDULE, program, log)

    def _delete(self, state: State) -> None:
        try:
            left = self.store.delete(state)
        except OSError as error:
            raise StateError(
                f"--data: {error.filename or self.data} cannot be deleted: {error.strerror or error}"
            ) from error
        if left:
            what = ", ".join(left)
            self.reporter.say(f"left in {self.data}, as `millstream local` did not make it: {what}")


def address(ready: dict[str, str]) -> str:
    """The address of a process with this ready line: a broker's first listener, else its HTTP address."""
    return ready.get("listeners", "").split(",")[0].split("://")[-1] or ready.get("http", "")


def title(daemon: str) -> str:
    """A process's name for users: "mirror/default/west-to-east/0" -> "mirror west-to-east (0)"."""
    what, _, name, number = daemon.split("/")
    return f"{what} {name}" + (f" ({number})" if number != "0" else "")
