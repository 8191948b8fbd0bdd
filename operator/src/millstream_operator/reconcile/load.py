"""BatchLoad: a state machine over runs, pure.

    no run ──begin──> Pending ──runner seen──> Running ──> Succeeded
       │ too few records: wait                    └──────> Failed ──spec changed──> begin the next run
       └ a position that cannot be: refused

A run is pinned when it begins: `begin` takes the partitions' ends as they are and fixes the offsets, which go into the
status before anything is started, so that an operator that dies in between finds them there and starts the same run.
What runs it (a Job, a SparkApplication, a local process) reports as `Seen`; a runner that has vanished is made again,
from the same offsets. The job itself writes the rows of a run once, however often it is started.

Invariants: the offsets of a run never change; a run that ended stays ended; run names count up: NAME-0001, NAME-0002.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from ..conditions import Condition, ConditionType, Reason, rfc3339, set_condition
from ..models import BatchLoad, BatchLoadStatus, From, OffsetRange, Run, Until
from .report import Problem

MAX_ERROR = 4096
# Folders that a volume must not hide in the container.
SYSTEM_FOLDERS = {
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib64",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "srv",
}
SYSTEM_FOLDERS |= {"sys", "tmp", "usr", "var"}


class RunState(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class Ends:
    """A partition's first offset and the one behind its last record; ``from_time``/``until_time`` where asked for."""

    earliest: int
    latest: int
    from_time: int | None = None
    until_time: int | None = None


Partitions = Mapping[tuple[str, int], Ends]


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is of a run's runner: ``message`` says what a pending one waits for."""

    state: RunState
    rows: int | None = None
    error: str = ""
    message: str = ""
    end_time: str | None = None


def needs_run(load: BatchLoad, *, retry: bool = False) -> bool:
    """Shall a run begin? The first; and the next when one failed and the spec changed since it began (or ``retry``)."""
    run = load.status.last_run
    if run is None or not run.name:
        return True
    if run.state != RunState.FAILED:
        return False
    begun = _condition(load.status, ConditionType.SUCCEEDED)
    changed = begun is not None and begun.observed_generation != load.metadata.generation
    return retry or changed


def next_run_name(load: BatchLoad) -> str:
    run = load.status.last_run
    number = int(run.name.rpartition("-")[2]) if run and run.name else 0
    return f"{load.name}-{number + 1:04d}"


def check_output(load: BatchLoad) -> Problem | None:
    """What the schema cannot say of an output on Kubernetes."""
    output = load.spec.output
    if not output.path.startswith("/"):
        return None
    if output.volume_claim_name is None:
        return _invalid(
            f"spec.output.path: {output.path} would be lost with its pod; allowed: a folder on a volume "
            "(name its PersistentVolumeClaim in spec.output.volumeClaimName), or a URI as s3a://bucket/path"
        )
    folders = output.path.split("/")[1:]
    if folders[0] in SYSTEM_FOLDERS or ".." in folders or not folders[0]:
        return _invalid(
            f"spec.output.path: {output.path} is not allowed: the volume is mounted at its first folder; "
            "allowed: a folder of its own, as /lake/flights"
        )
    return None


def resolve(load: BatchLoad, partitions: Partitions) -> tuple[OffsetRange, ...] | Problem:
    """The offsets of a run that begins now."""
    spec = load.spec
    begins = _positions("from", spec.from_, partitions)
    ends = _positions("until", spec.until, partitions)
    if isinstance(begins, Problem):
        return begins
    if isinstance(ends, Problem):
        return ends
    ranges = []
    for (topic, partition), first in sorted(begins.items()):
        until = ends[topic, partition]
        if until < first and "Offsets" in (spec.from_.position, spec.until.position):
            return _invalid(
                f"spec.until: {until} of {topic}-{partition} is not allowed: it is before its spec.from, {first}"
            )
        ranges.append(OffsetRange(topic=topic, partition=partition, from_=first, until=max(first, until)))
    return tuple(ranges)


def _positions(
    field: str, wanted: From | Until, partitions: Partitions
) -> dict[tuple[str, int], int] | Problem:
    match wanted.position:
        case "Earliest" | "Committed":  # before the first run has succeeded nothing is committed
            return {key: ends.earliest for key, ends in partitions.items()}
        case "Latest":
            return {key: ends.latest for key, ends in partitions.items()}
        case "Timestamp":
            return {key: _at_time(field, ends) for key, ends in partitions.items()}
    listed = {(entry.topic, entry.partition): entry.offset for entry in wanted.offsets or ()}
    if missing := sorted(partitions.keys() - listed.keys()):
        return _invalid(
            f"spec.{field}.offsets: one for every partition is required; missing: {_named(missing)}"
        )
    for key, offset in listed.items():
        if key not in partitions:
            return _invalid(
                f"spec.{field}.offsets: {_named([key])} is not allowed: there is no such partition in spec.topics"
            )
        ends = partitions[key]
        if not ends.earliest <= offset <= ends.latest:
            return _invalid(
                f"spec.{field}.offsets: {offset} of {_named([key])} is not allowed; "
                f"allowed: {ends.earliest} to {ends.latest}, which the partition has"
            )
    return listed


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)


def _at_time(field: str, ends: Ends) -> int:
    found = ends.from_time if field == "from" else ends.until_time
    return ends.latest if found is None else found  # nothing that late: behind the last record


def _named(keys: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in keys[:10])
    return shown + (f" and {len(keys) - 10} more" if len(keys) > 10 else "")


def records(offsets: tuple[OffsetRange, ...]) -> int:
    return sum(part.until - part.from_ for part in offsets)


def begin(load: BatchLoad, offsets: tuple[OffsetRange, ...], now: datetime) -> BatchLoadStatus:
    """The status of a load whose run begins now, or waits for records: then `last_run` is as it was."""
    found, wanted = records(offsets), load.spec.min_records
    status = msgspec.structs.replace(load.status, observed_generation=load.metadata.generation)
    if found < wanted:
        message = f"{found:,} of {wanted:,} records"
        return _with(
            status, load, now, ready=True, succeeded=False, reason=Reason.WAITING_FOR_RECORDS, message=message
        )
    run = Run(name=next_run_name(load), state=RunState.PENDING.value, start_time=rfc3339(now), error="")
    status = msgspec.structs.replace(status, last_run=run, offsets=offsets)
    message = f"{run.name} begins with {found:,} records"
    return _with(status, load, now, ready=True, succeeded=False, reason=Reason.RUN_PENDING, message=message)


def follow(load: BatchLoad, seen: Seen, now: datetime, *, path: str | None = None) -> BatchLoadStatus:
    """The status after a look at the runner of the last run. ``path``: where the rows are, if not as the spec says."""
    run = load.status.last_run or Run()
    if run.state in (RunState.SUCCEEDED, RunState.FAILED):
        return load.status
    state = seen.state
    if state is RunState.PENDING and run.state == RunState.RUNNING:
        state = RunState.RUNNING  # an attempt failed and the next one starts: to its user the run goes on
    run = msgspec.structs.replace(run, state=state.value)
    if state.ended:
        run = msgspec.structs.replace(
            run, rows=seen.rows, end_time=seen.end_time or rfc3339(now), error=seen.error[:MAX_ERROR]
        )
    status = msgspec.structs.replace(load.status, last_run=run)
    begun = _condition(load.status, ConditionType.SUCCEEDED)
    reason, message = _story(load, run, state, seen, path or load.spec.output.path)
    good = state is not RunState.FAILED
    return _with(
        status, load, now, ready=good, succeeded=state is RunState.SUCCEEDED, reason=reason, message=message,
        generation=begun.observed_generation if begun is not None else None,
    )  # fmt: skip


def _story(load: BatchLoad, run: Run, state: RunState, seen: Seen, path: str) -> tuple[Reason, str]:
    count = records(load.status.offsets or ())
    match state:
        case RunState.SUCCEEDED:
            rows = "its rows" if seen.rows is None else f"{seen.rows:,} rows"
            return Reason.SUCCEEDED, f"{run.name} wrote {rows} to {path}"
        case RunState.FAILED:
            unwritable = seen.error.startswith("output.")
            return (
                Reason.OUTPUT_NOT_WRITABLE if unwritable else Reason.RUN_FAILED
            ), f"{run.name}: {seen.error}"
        case RunState.RUNNING:
            return Reason.RUNNING, f"{run.name} loads {count:,} records" + (
                f": {seen.message}" if seen.message else ""
            )
    waits = f": {seen.message}" if seen.message else ""
    return Reason.RUN_PENDING, f"{run.name} with {count:,} records waits for its pods{waits}"


def refuse(load: BatchLoad, problem: Problem, now: datetime) -> BatchLoadStatus:
    """The status of a load that cannot run now; what the last run was stays."""
    status = msgspec.structs.replace(load.status, observed_generation=load.metadata.generation)
    return _with(
        status, load, now, ready=False, succeeded=None, reason=problem.reason, message=problem.message
    )


def _with(
    status: BatchLoadStatus,
    load: BatchLoad,
    now: datetime,
    *,
    ready: bool,
    succeeded: bool | None,
    reason: Reason,
    message: str,
    generation: int | None = None,
) -> BatchLoadStatus:
    current = load.metadata.generation
    conditions = set_condition(
        status.conditions or (), ConditionType.READY, ready, reason, message, generation=current, now=now
    )
    if succeeded is not None:
        conditions = set_condition(
            conditions,
            ConditionType.SUCCEEDED,
            succeeded,
            reason,
            message,
            generation=generation or current,
            now=now,
        )
    return msgspec.structs.replace(status, conditions=conditions)


def _condition(status: BatchLoadStatus, kind: ConditionType) -> Condition | None:
    return next((condition for condition in status.conditions or () if condition.type == kind.value), None)
