"""BatchLoad: begins a run when one is due, has it started, and follows it to its end, on Kubernetes and on a laptop.

A run's offsets are in the status before anything is started. So a reconcile does one of three things: it begins a run
(and only writes the status), it continues the run that the status names, or, if there is none, it measures how far the
load is behind the log. A `RunLauncher` starts the run and observes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from ...models import API_VERSION, BatchLoad, BatchLoadStatus, decode_as
from ...models.conditions import Reason
from ...models.load_run import ObservedRun, RunState
from ...models.problem import Problem
from ...state.context import LoadParts
from ...state.status import write_status
from . import plan as runs
from .admission import admit, begin, scheduled_problem
from .conditions import PendingPods, tell
from .lag import with_lag
from .plan import Cause, LoadRequest, Waiting

AT_ONCE_S = 0.0
SOON_S = 5.0
IDLE_S = 60.0  # with a schedule: how often the lag is measured
ENDED_S = 300.0
MAX_LINE = 400


def reconcile_load(services: LoadParts, load: BatchLoad, *, retry: bool = False) -> float:
    """One step; seconds until the next. ``retry``: repeat a failed run although nothing was edited."""
    if load.metadata.deletion_timestamp is not None:
        return ENDED_S  # Kubernetes removes what the load owns
    request = runs.request(load, services.now(), retry=retry)
    if request.cause is not None:
        # The watch may lag behind the last write, and a run must not begin twice.
        live = services.kube.get(API_VERSION, load.KIND, load.namespace, load.name)
        if live is None:
            return ENDED_S
        services.store.put_written(live)
        load = decode_as(BatchLoad, live)
        request = runs.request(load, services.now(), retry=retry)
    return _Step(services, load, request).take()


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a load: what it is was decided once, by its request."""

    services: LoadParts
    stored: BatchLoad
    request: LoadRequest

    def take(self) -> float:
        if self.request.cause is not None:
            return self._begin(self.request.cause)
        return self._idle() if self.request.is_idle else self._follow()

    @property
    def load(self) -> BatchLoad:
        return self.request.load

    def _begin(self, cause: Cause) -> float:
        begun = begin(self.services, self.load, cause)
        if isinstance(begun, Problem | Waiting):
            self._report(self.load.status, begun)
            return SOON_S
        self._report(begun)
        self.services.launcher.clean(self.services, self.load, begun)
        return AT_ONCE_S

    def _idle(self) -> float:
        """Without a current run, and with none due."""
        spec, status = self.load.spec, with_lag(self.services, self.load)
        self._report(status, scheduled_problem(self.services, self.load) or "")
        if spec.schedule is None or spec.ttl_seconds_after_finished is not None:
            # With a schedule: as each run begins and ends.
            self.services.launcher.clean(self.services, self.load, status)
        now, again = self.services.now(), ENDED_S
        if status.schedule is not None and status.schedule.next is not None:
            again = min(IDLE_S, _seconds_to(status.schedule.next, now))
        ended, ttl = status.last_run.end_time if status.last_run else None, spec.ttl_seconds_after_finished
        if ended and ttl is not None and (left := ttl + _seconds_to(ended, now)) > 0:
            again = min(again, left + 1)
        return again

    def _follow(self) -> float:
        launcher = self.services.launcher
        seen = launcher.observe(self.services, self.load) or self._start()
        if isinstance(seen, Problem):
            self._report(self.load.status, seen)
            return SOON_S
        now = self.services.now()
        if not seen.state.ended:
            seen = runs.overdue(self.load, now) or seen
        if seen.state is RunState.FAILED:
            lines = launcher.log(self.services, self.load)
            seen = replace(seen, log=tuple(line[:MAX_LINE] for line in lines))
        status = runs.follow(self.load, seen, now)
        what = PendingPods(seen.message) if seen.reason is Reason.PODS_PENDING else seen.message
        self._report(status, "" if seen.state.ended else what)
        if not seen.state.ended:
            return SOON_S
        launcher.clean(self.services, self.load, status)
        return AT_ONCE_S if self.load.spec.schedule or self.load.spec.rerun else ENDED_S

    def _start(self) -> ObservedRun | Problem:
        """Start the run of the status. Its spec may have changed since it began."""
        if edited := runs.superseded(self.load):
            return edited
        cluster = admit(self.services, self.load)
        if isinstance(cluster, Problem):
            return cluster
        return self.services.launcher.start(self.services, self.load, cluster)

    def _report(self, status: BatchLoadStatus, what: Waiting | Problem | PendingPods | str = "") -> None:
        path = self.services.launcher.path_of_rows(self.load)
        reported = tell(self.load, status, self.services.now(), what, path=path)
        write_status(self.services, self.stored, reported)


def _seconds_to(moment: str, now: datetime) -> float:
    return (runs.parsed(moment) - now).total_seconds()
