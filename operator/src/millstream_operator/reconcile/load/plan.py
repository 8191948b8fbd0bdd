"""BatchLoad: a state machine over runs, pure; times are given.

    request ──begin──> Pending ──> Running ──> Succeeded: committed moves on
       │                  └───────────┴──────> Failed: the next run repeats it
       ├ too few records: wait
       └ a position that cannot be: refused

A `LoadRequest` says what a load asks for at a time, and a `Cause` why a run begins: the spec, once, again when an edit
changes what is loaded, and after a failure when anything in it is edited; a scheduled time; or a rerun, once for each
requestId. `begin` pins the offsets of a run. They go into the status before anything is started: if the operator dies
in between, the next one finds them there and starts the same run. What its runner (a Job, a SparkApplication, a local
process) shows is an `ObservedRun`; a runner that has vanished is created again, from the same offsets. The job itself
writes the rows of a run once, however often it is started.

A failed run may have published its rows, and died before it could report this. So the next run of the same
positions repeats it, with its offsets and the name of its rows (`Run.id`), and either finds the rows or writes them. A
run that does not repeat it fences it: the job makes sure that its driver, wherever it is, can no longer commit.

The status may be older than the table, or the table another one. So each run names the last one that the table must
have (`written`); the job compares.

Invariants: the offsets of a run never change; a run that ended stays ended; one run at a time; only a success advances
the committed offsets, to the end of its range, where the next range begins. Run names count up and end with a nonce
(NAME-0001-1a2b3c4d), as do the names of a run's Job and ConfigMap: a load that is deleted and created again under its
name, or whose status is restored from an older copy, shares nothing with the runs before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec.structs import replace

from ...models import (
    Asked,
    BatchLoad,
    BatchLoadStatus,
    Committed,
    OffsetRange,
    Run,
    ScheduleStatus,
    Unsettled,
    Written,
    cron,
)
from ...models.conditions import ConditionType, Reason, rfc3339
from ...models.load_run import ObservedRun, RunState, in_flight
from ...models.problem import Problem
from ...resources.load_run_file import follows_unsettled, run_id
from .ranges import (
    Partitions,
    check_size,
    committed_by,
    digest_of_from,
    digest_of_positions,
    digest_of_spec,
    empty,
    records,
    resolve,
    resolve_rerun,
    table_name,
)

MAX_ERROR = 4096
MOST_SINCE = 15
"""Number of earlier runs that are kept in `status.written.since`."""
MOST_RANGES = 32
"""Number of partitions whose range is kept for a run that is no longer the last."""


class Trigger(StrEnum):
    SPEC = "Spec"
    SCHEDULE = "Schedule"
    RERUN = "Rerun"


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a run; ``scheduled`` is the scheduled time, if that is the cause."""

    trigger: Trigger
    scheduled: datetime | None = None


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a load asks for at a time: the load with its status as observed then, and the cause if a run is due."""

    load: BatchLoad
    cause: Cause | None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due and nothing runs."""
        return self.cause is None and not in_flight(self.load.status)


def with_status(load: BatchLoad, status: BatchLoadStatus) -> BatchLoad:
    return replace(load, status=status)


def next_run_name(load: BatchLoad, nonce: str) -> str:
    run = load.status.last_run
    number = _number(load, run.name) if run and run.name else 0
    return f"{load.name}-{number + 1:04d}-{nonce}"


def _number(load: BatchLoad, run: str) -> int:
    """The number in a run's name; older releases' names end with it, or with the load's uid."""
    return int(run.removeprefix(f"{load.name}-").partition("-")[0])


# Changes by time alone


def observe(load: BatchLoad, now: datetime) -> BatchLoadStatus:
    """The status at a time, before any action: updates the scheduled times and the old runs it keeps."""
    status = _adopt(load)
    status = replace(
        status,
        observed_generation=load.metadata.generation,
        schedule=_schedule(load, now),
        runs=_kept(load, status.runs or ()),
    )
    due = _due(with_status(load, status), now)
    deadline = load.spec.schedule.starting_deadline_seconds if load.spec.schedule is not None else None
    if due is not None and deadline is not None and now - due > timedelta(seconds=deadline):
        status = replace(status, schedule=_acted(status, due, skipped=True))
    return status


def _adopt(load: BatchLoad) -> BatchLoadStatus:
    """Convert the status of an older release's run to this release's form."""
    status = load.status
    if status.asked is not None or status.last_run is None or not status.last_run.name:
        return status
    begun = next(
        (condition for condition in status.conditions or () if condition.type == ConditionType.SUCCEEDED),
        None,
    )
    generation = begun.observed_generation if begun is not None else None
    state = status.last_run.state
    asked = replace(_asked(load), generation=generation or load.metadata.generation)
    status = replace(status, asked=replace(asked, succeeded=state == RunState.SUCCEEDED))
    if state == RunState.SUCCEEDED and status.offsets:
        committed = committed_by(load, asked.path, status.offsets, asked.from_)
        status = replace(status, committed=committed)
    return status


def _schedule(load: BatchLoad, now: datetime) -> ScheduleStatus | None:
    spec, known = load.spec.schedule, load.status.schedule
    if spec is None:
        return None
    of, following = f"{spec.cron} {spec.time_zone}", cron.next_time(spec.cron, spec.time_zone, now)
    since = parsed(known.since) if known is not None and known.of == of else now
    if since > following:  # the clock was far ahead and was set back
        since = now
    skipped = known.skipped if known is not None and known.of == of else None
    return ScheduleStatus(of=of, since=rfc3339(since), next=rfc3339(following), skipped=skipped)


def _acted(status: BatchLoadStatus, until: datetime, *, skipped: bool = False) -> ScheduleStatus | None:
    schedule = status.schedule
    if schedule is None:
        return None
    return replace(schedule, since=rfc3339(until), skipped=rfc3339(until) if skipped else None)


def _due(load: BatchLoad, now: datetime) -> datetime | None:
    """The last scheduled time that has passed, unless it is done."""
    spec, known = load.spec.schedule, load.status.schedule
    if spec is None or known is None or spec.suspend:
        return None
    last = cron.last_time(spec.cron, spec.time_zone, now)
    return last if last > parsed(known.since) else None


def _kept(load: BatchLoad, ended: tuple[Run, ...]) -> tuple[Run, ...] | None:
    """The runs before the last one that the status keeps, newest first."""
    left = {
        RunState.SUCCEEDED.value: load.spec.successful_runs_history_limit,
        RunState.FAILED.value: load.spec.failed_runs_history_limit,
    }
    kept = []
    for run in ended:
        state = run.state or ""
        if left.get(state, 0) > 0:
            left[state] -= 1
            kept.append(run)
    return tuple(kept) or None


def parsed(moment: str) -> datetime:
    return datetime.fromisoformat(moment).astimezone(UTC)


# Requests


def request(load: BatchLoad, now: datetime, *, retry: bool = False) -> LoadRequest:
    """What the load asks for now; ``retry``: repeat a failed run although nothing was edited."""
    observed = with_status(load, observe(load, now))
    return LoadRequest(observed, _cause(observed, now, retry=retry))


def _cause(load: BatchLoad, now: datetime, *, retry: bool) -> Cause | None:
    due = _due(load, now)
    if in_flight(load.status):
        schedule, run = load.spec.schedule, load.status.last_run
        replaces = schedule is not None and schedule.concurrency_policy == "Replace"
        scheduled = run is not None and run.trigger == Trigger.SCHEDULE
        return Cause(Trigger.SCHEDULE, due) if due is not None and replaces and scheduled else None
    if load.spec.rerun is not None and load.spec.rerun.request_id != load.status.rerun_id:
        return Cause(Trigger.RERUN)
    if load.spec.schedule is not None:
        failed = load.status.asked is not None and not load.status.asked.succeeded
        if due is None and retry and failed and not load.spec.schedule.suspend:
            return (
                Cause(Trigger.SCHEDULE, parsed(load.status.schedule.since)) if load.status.schedule else None
            )
        return Cause(Trigger.SCHEDULE, due) if due is not None else None
    asked = load.status.asked
    if asked is None:
        return Cause(Trigger.SPEC)
    if asked.succeeded:
        return Cause(Trigger.SPEC) if asked.spec != digest_of_spec(load) else None
    return Cause(Trigger.SPEC) if retry or asked.generation != load.metadata.generation else None


def begin(
    load: BatchLoad, cause: Cause, partitions: Partitions, now: datetime, nonce: str
) -> BatchLoadStatus | Problem | Waiting:
    """The status of a load whose run begins now, or why none begins; ``nonce`` is random, for the run's name."""
    if in_flight(load.status):
        when = rfc3339(cause.scheduled or now)
        stopped = ObservedRun(
            RunState.FAILED, error=f"stopped by spec.schedule.concurrencyPolicy Replace at {when}"
        )
        load = with_status(load, end(load, stopped, now))
    status, name = load.status, next_run_name(load, nonce)
    again = None if cause.trigger is Trigger.RERUN else _repeats(load, partitions)
    if again is not None:
        offsets: tuple[OffsetRange, ...] | Problem = again.offsets
    elif cause.trigger is Trigger.RERUN and load.spec.rerun is not None:
        offsets = resolve_rerun(load, load.spec.rerun, partitions)
    else:
        offsets = resolve(load, partitions)
    if not isinstance(offsets, Problem) and (problem := check_size(offsets)) is not None:
        offsets = problem
    if isinstance(offsets, Problem):
        if cause.trigger is not Trigger.RERUN:
            return offsets
        return _refused_rerun(load, name, offsets, now)
    found, wanted = records(offsets), load.spec.min_records
    if again is None and found < wanted and cause.trigger is Trigger.SPEC:
        return Waiting(found, wanted)
    if again is None and found < wanted and cause.trigger is Trigger.SCHEDULE:
        offsets = empty(offsets)  # too few: the next run will load them
    run = _run(load, cause, name, again.id if again is not None else name, offsets, now)
    status = _pinned(load, cause, run, offsets)
    if records(offsets) == 0:  # nothing for Spark to do
        nothing = ObservedRun(RunState.SUCCEEDED, rows=0, corrupt_records=0, bytes=0)
        return end(with_status(load, status), nothing, now)
    return status


@dataclass(frozen=True, slots=True)
class Waiting:
    """No run begins until there are as many records as the load's spec requires."""

    found: int
    wanted: int


def _run(
    load: BatchLoad,
    cause: Cause,
    name: str,
    run_id: str,
    offsets: tuple[OffsetRange, ...],
    now: datetime,
) -> Run:
    rerun = load.spec.rerun if cause.trigger is Trigger.RERUN else None
    return Run(
        name=name,
        id=run_id,
        trigger=cause.trigger.value,
        request_id=rerun.request_id if rerun is not None else None,
        scheduled_time=rfc3339(cause.scheduled) if cause.scheduled is not None else None,
        spec=digest_of_spec(load),
        path=load.spec.output.path,
        state=RunState.PENDING.value,
        records=records(offsets),
        start_time=rfc3339(now),
        error="",
    )


def _pinned(load: BatchLoad, cause: Cause, run: Run, offsets: tuple[OffsetRange, ...]) -> BatchLoadStatus:
    status = load.status
    before, ranges = status.last_run, status.offsets or ()
    earlier = status.runs or ()
    if before is not None and before.name:
        kept = ranges if len(ranges) <= MOST_RANGES else None
        earlier = (replace(before, offsets=kept), *earlier)
    status = replace(status, last_run=run, offsets=offsets, runs=_kept(load, earlier))
    if records(offsets):
        status = replace(status, written=_with_begun(load, run))
    if cause.trigger is Trigger.RERUN:
        return replace(status, rerun_id=run.request_id)
    if cause.scheduled is not None:
        status = replace(status, schedule=_acted(status, cause.scheduled))
    asked = _asked(load)
    if status.asked is not None and status.asked.from_ != asked.from_:
        status = replace(status, unsettled=None)  # who edits `from` may load records twice
    return replace(status, asked=asked)


def _asked(load: BatchLoad) -> Asked:
    return Asked(
        generation=load.metadata.generation,
        spec=digest_of_spec(load),
        from_=digest_of_from(load),
        positions=digest_of_positions(load),
        path=table_name(load),
    )


def _repeats(load: BatchLoad, partitions: Partitions) -> Unsettled | None:
    """The failed run that the next one must repeat."""
    last = load.status.unsettled
    if last is None or (last.path, last.positions) != (table_name(load), digest_of_positions(load)):
        return None
    for part in last.offsets:
        ends = partitions.get((part.topic, part.partition))
        if ends is None or (part.topic_id and ends.topic_id and part.topic_id != ends.topic_id):
            return None
    return last


def _with_begun(load: BatchLoad, run: Run) -> Written:
    """`status.written` with a run that may publish from now on."""
    known, path = load.status.written, table_name(load)
    if known is None or known.path != path:
        known = Written(path=path)
    others = [one for one in known.since if one != run.id]
    return replace(known, since=(*others[-MOST_SINCE:], run.id or ""))


def _with_end(written: Written | None, run: str, seen: ObservedRun, count: int) -> Written | None:
    """`status.written` with the end of a run."""
    if written is None or run not in written.since:
        return written
    if seen.state is RunState.SUCCEEDED and count:
        return replace(written, run=run, since=())
    if seen.reason is Reason.FENCED:
        return replace(written, since=tuple(one for one in written.since if one != run))
    return written


def _refused_rerun(load: BatchLoad, name: str, problem: Problem, now: datetime) -> BatchLoadStatus:
    """Record an impossible rerun as a failed run: it must not block others."""
    cause = Cause(Trigger.RERUN)
    run = _run(load, cause, name, name, (), now)
    status = _pinned(load, cause, run, ())
    seen = ObservedRun(RunState.FAILED, error=problem.message, reason=problem.reason)
    return end(with_status(load, status), seen, now)


# Runs


def _why(seen: ObservedRun) -> Reason:
    if seen.reason is not None:
        return seen.reason
    return Reason.OUTPUT_NOT_WRITABLE if seen.error.startswith("output.") else Reason.RUN_FAILED


def _settles(committed: Committed, last: Unsettled | None) -> bool:
    """Whether later runs have loaded, or found missing, all that a failed run may have published."""
    ends = {(offset.topic, offset.partition): offset.offset for offset in committed.offsets}
    return last is None or all(
        ends.get((offset.topic, offset.partition), 0) >= offset.until
        for offset in last.offsets
        if offset.from_ < offset.until
    )


def overdue(load: BatchLoad, now: datetime) -> ObservedRun | None:
    """The end of a run that has taken longer than `spec.timeoutSeconds`."""
    run = load.status.last_run
    if run is None or not run.start_time or not in_flight(load.status):
        return None
    limit = load.spec.timeout_seconds
    if now - parsed(run.start_time) < timedelta(seconds=limit):
        return None
    error = f"it exceeded spec.timeoutSeconds, {limit}, and was stopped"
    return ObservedRun(RunState.FAILED, error=error, reason=Reason.DEADLINE_EXCEEDED)


def superseded(load: BatchLoad) -> ObservedRun | None:
    """The end of a run that was never started and whose spec has been edited since."""
    run = load.status.last_run
    if run is None or run.spec is None or run.spec == digest_of_spec(load):
        return None
    return ObservedRun(
        RunState.FAILED,
        error="the spec changed before the run started: the next run uses the new spec",
    )


def follow(load: BatchLoad, seen: ObservedRun, now: datetime) -> BatchLoadStatus:
    """The status with the state of the last run's runner."""
    if not in_flight(load.status):
        return load.status
    if seen.state.ended:
        return end(load, seen, now)
    run = load.status.last_run or Run()
    state = seen.state
    if state is RunState.PENDING and run.state == RunState.RUNNING:
        state = RunState.RUNNING  # an attempt failed and the next one starts: for the user the run continues
    return replace(load.status, last_run=replace(run, state=state.value))


def end(load: BatchLoad, seen: ObservedRun, now: datetime) -> BatchLoadStatus:
    """The status after the end of the last run."""
    status, run = load.status, load.status.last_run or Run()
    succeeded, end_time = seen.state is RunState.SUCCEEDED, seen.end_time or rfc3339(now)
    took = parsed(end_time) - parsed(run.start_time) if run.start_time else timedelta(0)
    run = replace(
        run,
        state=seen.state.value,
        rows=seen.rows,
        bytes=seen.bytes,
        corrupt_records=seen.corrupt_records,
        warning=seen.warning or None,
        end_time=end_time,
        duration_seconds=max(0, int(took.total_seconds())),
        error=seen.error[:MAX_ERROR],
        reason=None if succeeded else _why(seen).value,
        log=seen.log or None,
    )
    written = _with_end(status.written, run_id(load), seen, run.records or 0)
    status = replace(status, last_run=run, written=written)
    if run.trigger == Trigger.RERUN:
        return status
    asked, offsets = status.asked or _asked(load), status.offsets or ()
    status = replace(status, asked=replace(asked, succeeded=succeeded))
    if succeeded:
        committed = committed_by(load, asked.path, offsets, asked.from_)
        left = (
            status.unsettled
            if follows_unsettled(load) and not _settles(committed, status.unsettled)
            else None
        )
        return replace(status, committed=committed, unsettled=left)
    if (
        seen.reason is Reason.FENCED
    ):  # it has not published, and never will: the next run begins at once, anew
        left = status.unsettled if follows_unsettled(load) else None
        return replace(status, asked=replace(asked, generation=0), unsettled=left)
    if follows_unsettled(load):
        return status  # the next run must look for the rows of that one, too
    last = Unsettled(id=run_id(load), path=asked.path, positions=asked.positions, offsets=offsets)
    return replace(status, unsettled=last)
