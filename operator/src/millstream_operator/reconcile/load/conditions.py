"""The conditions of a BatchLoad, derived from its runs; pure.

Ready        whether runs begin as they should: False when the last one failed, or the next cannot begin
Succeeded    of the last run; Unknown while one is pending, runs, or waits for records
Late         with a schedule: whether rows are overdue
DataQuality  whether every record could be read
Warning      while some readers cannot read the table, by the last run that succeeded
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from ...models import BatchLoad, BatchLoadStatus, Run, cron
from ...models.conditions import Condition, ConditionType, Reason, rfc3339, set_condition
from ...models.load_run import RunState, in_flight
from ...models.problem import Problem, with_pause
from ...models.words import count_of
from .plan import Trigger, Waiting, parsed, with_status

GRACE = timedelta(seconds=60)
"""A scheduled run that has not begun after this time is late."""
INCOMPLETE = (Reason.OFFSETS_GONE, Reason.TOPIC_REPLACED)
ConditionState = tuple[bool | None, Reason, str]
"""A condition to write, without its type: status (None: Unknown), reason, message."""


@dataclass(frozen=True, slots=True)
class PendingPods:
    """The cause for which all executors of a run wait."""

    words: str


def tell(
    load: BatchLoad,
    status: BatchLoadStatus,
    now: datetime,
    what: Waiting | Problem | PendingPods | str = "",
    *,
    path: str = "",
) -> BatchLoadStatus:
    """The status with its conditions.

    ``what`` is why no run begins, or what the run's pods wait for. ``path`` is the folder of the rows, if it is not the
    one in the spec.
    """
    load = with_status(load, status)
    run = status.last_run if status.last_run is not None and status.last_run.name else None
    found: dict[ConditionType, ConditionState | None] = {
        ConditionType.LATE: _late(load, now),
        ConditionType.DATA_QUALITY: _quality(load, what),
        ConditionType.WARNING: _warning(load),
    }
    match what:
        case Problem():
            found[ConditionType.READY] = False, what.reason, what.message
            if run is None:
                found[ConditionType.SUCCEEDED] = None, what.reason, what.message
        case Waiting():
            words = Reason.WAITING_FOR_RECORDS, f"{what.found:,} of {what.wanted:,} records"
            found[ConditionType.READY] = True, *words
            found[ConditionType.SUCCEEDED] = None, *words
        case PendingPods() | str():
            ready, succeeded, reason, message = (
                _idle(load)
                if run is None
                else _of_run(load, run, what, path or run.path or load.spec.output.path)
            )
            found[ConditionType.READY] = ready, reason, message
            found[ConditionType.SUCCEEDED] = succeeded, reason, message
    return replace(status, conditions=_conditions(load, found, now))


def _conditions(
    load: BatchLoad, found: dict[ConditionType, ConditionState | None], now: datetime
) -> tuple[Condition, ...] | None:
    gone = {kind.value for kind, said in found.items() if said is None}
    conditions = tuple(condition for condition in load.status.conditions or () if condition.type not in gone)
    for kind, said in found.items():
        if said is not None:
            conditions = set_condition(conditions, kind, *said, generation=_generation(load, kind), now=now)
    return with_pause(load, conditions, now) or None


def _generation(load: BatchLoad, kind: ConditionType) -> int:
    """The generation a condition refers to: for the end of a run, that of the spec it began with."""
    run, asked = load.status.last_run, load.status.asked
    if (
        kind is ConditionType.SUCCEEDED
        and run is not None
        and run.trigger != Trigger.RERUN
        and asked is not None
    ):
        return asked.generation
    return load.metadata.generation


def _idle(load: BatchLoad) -> tuple[bool, bool | None, Reason, str]:
    schedule = load.spec.schedule
    if schedule is not None and schedule.suspend:
        return True, None, Reason.SUSPENDED, "no run begins by the schedule: spec.schedule.suspend is set"
    following = load.status.schedule.next if load.status.schedule is not None else None
    return True, None, Reason.SCHEDULED, f"the first run begins at {following}"


def failure(run: Run) -> Problem:
    """Why a run failed, with the reason that its job gave."""
    reason = Reason(run.reason) if run.reason in set(Reason) else Reason.RUN_FAILED
    return Problem(reason, f"{run.name}: {run.error}")


def _of_run(
    load: BatchLoad, run: Run, what: PendingPods | str, path: str
) -> tuple[bool, bool | None, Reason, str]:
    is_pending = isinstance(what, PendingPods)
    waits = what.words if isinstance(what, PendingPods) else what
    count = run.records if run.records is not None else 0
    match RunState(run.state or RunState.PENDING):
        case RunState.SUCCEEDED:
            rows = "its rows" if run.rows is None else count_of(run.rows, "row")
            return True, True, Reason.SUCCEEDED, f"{run.name} wrote {rows} to {path}"
        case RunState.FAILED:
            problem = failure(run)
            return False, False, problem.reason, problem.message
        case RunState.RUNNING:
            message = f"{run.name} loads {count_of(count, 'record')}" + (f": {waits}" if waits else "")
            return not is_pending, None, Reason.PODS_PENDING if is_pending else Reason.RUNNING, message
    message = f"{run.name} with {count_of(count, 'record')} waits for its pods"
    if waits:
        return False, None, Reason.PODS_PENDING, f"{message}: {waits}"
    return True, None, Reason.RUN_PENDING, message


def _late(load: BatchLoad, now: datetime) -> ConditionState | None:
    spec, status, run = load.spec.schedule, load.status.schedule, load.status.last_run
    if spec is None or status is None:
        return None
    if spec.suspend:
        return False, Reason.SUSPENDED, "spec.schedule.suspend is set"
    due = cron.last_time(spec.cron, spec.time_zone, now)
    if due > parsed(status.since) and in_flight(load.status) and run is not None:
        return True, Reason.RUN_LATE, f"the run of {rfc3339(due)} waits for {run.name}, which has not ended"
    if due > parsed(status.since) and now - due > GRACE:
        return True, Reason.RUN_LATE, f"the run of {rfc3339(due)} has not begun"
    if status.skipped:
        limit = spec.starting_deadline_seconds
        return (
            True,
            Reason.RUN_SKIPPED,
            f"no run began at {status.skipped}, nor within spec.schedule.startingDeadlineSeconds, {limit}; "
            f"the next one, at {status.next}, loads its records too",
        )
    if run is not None and run.trigger == Trigger.SCHEDULE and run.state == RunState.FAILED:
        return True, Reason.RUN_FAILED, f"{run.name} failed; the next run, at {status.next}, repeats it"
    return False, Reason.ON_SCHEDULE, f"the next run begins at {status.next}"


def _warning(load: BatchLoad) -> ConditionState | None:
    run = load.status.last_run
    if run is not None and run.state == RunState.SUCCEEDED and run.records:
        return (True, Reason.TABLE_NOT_PORTABLE, run.warning) if run.warning else None
    before = _condition(load, ConditionType.WARNING)
    return (True, Reason(before.reason), before.message) if before is not None else None


def _condition(load: BatchLoad, kind: ConditionType) -> Condition | None:
    """The condition that the status has already."""
    return next((condition for condition in load.status.conditions or () if condition.type == kind), None)


def _quality(load: BatchLoad, what: Waiting | Problem | PendingPods | str) -> ConditionState | None:
    if isinstance(what, Problem) and what.reason in INCOMPLETE:
        return False, what.reason, what.message
    run = load.status.last_run
    if run is not None and run.state == RunState.FAILED and run.reason in INCOMPLETE:
        return False, Reason(run.reason), f"{run.name}: {run.error}"
    succeeded = run is not None and run.state == RunState.SUCCEEDED and run.corrupt_records is not None
    if not succeeded or run is None:
        before = _condition(load, ConditionType.DATA_QUALITY)
        if before is None:
            return None
        return before.status == "True", Reason(before.reason), before.message
    if run.corrupt_records:
        words = f"{run.corrupt_records:,} of {run.rows or 0:,} rows of {run.name} are corrupt: see _corrupt_record"
        return False, Reason.CORRUPT_RECORDS, words
    return True, Reason.ALL_RECORDS_PARSED, f"every record of {run.name} was parsed completely"
