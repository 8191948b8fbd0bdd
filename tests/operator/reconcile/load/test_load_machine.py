"""BatchLoad: each record is in the table once, whatever happens to operator, driver, clock and spec.

Hypothesis plays a load with a schedule: records arrive; time passes and jumps, even over changes of summer time; the
operator reconciles, and dies before or after writing a status; the driver claims the table, publishes, ends, or dies
before or after publishing, or finds rows that should not be there (mode New), or that a newer run has fenced it; and
the spec is edited, the status restored from an older copy, the load deleted and created again. After every step the
rows themselves are checked.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream_harness.loads import a_load, edited, run_of
from millstream_operator.models import BatchLoadStatus
from millstream_operator.models.conditions import Reason
from millstream_operator.models.load_run import ObservedRun, RunState, in_flight
from millstream_operator.reconcile.load import plan as runs
from millstream_operator.reconcile.load.conditions import tell
from millstream_operator.reconcile.load.ranges import Ends, digest_of_positions
from millstream_operator.resources.load_run_file import run_file
from millstream_operator.resources.pod_access import PodAccess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

PARTITIONS = 2
LATER = {"position": "Timestamp", "timestamp": "2036-01-01T00:00:00Z"}
Ranges = tuple[tuple[int, int], ...]
BEGINNINGS = (datetime(2026, 3, 29, 0, 10), datetime(2026, 10, 24, 23, 50), datetime(2026, 11, 21, 8, 0))


@dataclass(frozen=True, slots=True)
class Driver:
    rows: str
    ranges: Ranges
    is_new: bool
    fence: dict[str, Any]


class Story(RuleBasedStateMachine):
    @initialize(
        beginning=st.sampled_from(BEGINNINGS),
        cron=st.sampled_from(["*/10 * * * *", "30 2 * * *", "15 */2 * * *"]),
        policy=st.sampled_from(["Forbid", "Replace"]),
        deadline=st.sampled_from([None, 600]),
    )
    def begin(self, beginning: datetime, cron: str, policy: str, deadline: int | None) -> None:
        self.now = beginning.replace(tzinfo=UTC)
        schedule = {"cron": cron, "timeZone": "Europe/Berlin", "concurrencyPolicy": policy}
        if deadline is not None:
            schedule["startingDeadlineSeconds"] = deadline  # type: ignore[assignment]
        self.spec: dict[str, Any] = {"schedule": schedule, "timeoutSeconds": 7200}
        self.load = a_load(**self.spec)
        self.ends = [0] * PARTITIONS
        self.table: dict[str, Ranges] = {}
        self.drivers: dict[str, Driver] = {}  # the running ones, by their run's name
        self.reported: dict[str, ObservedRun] = {}
        self.claims: list[str] = []
        self.fenced: set[str] = set()
        self.nonces = itertools.count()
        self.copies: list[BatchLoadStatus] = []
        self.needs_its_user = False

    # The world

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 50))
    def records_come(self, partition: int, count: int) -> None:
        self.ends[partition] += count

    @rule(minutes=st.sampled_from([0, 1, 5, 10, 30, 60, 150, 1500]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes, seconds=7)

    @rule(hours=st.sampled_from([-1000, -25, -1, 25, 1000]))
    def the_clock_jumps(self, hours: int) -> None:
        self.now += timedelta(hours=hours)

    @rule(edit=st.sampled_from(["memory", "value", "suspend", "cron", "until"]))
    def somebody_edits(self, edit: str) -> None:
        self.spec = dict(self.spec)
        if edit == "memory":
            self.spec["spark"] = {} if "spark" in self.spec else {"driver": {"memory": "2g"}}
        elif edit == "value":
            binary = self.spec.get("value") == {"format": "Binary"}
            self.spec["value"] = {"format": "JSON", "schema": "a INT"} if binary else {"format": "Binary"}
        elif edit == "suspend":
            suspended = self.spec["schedule"].get("suspend", False)
            self.spec["schedule"] = {**self.spec["schedule"], "suspend": not suspended}
        elif edit == "until":  # the same end in other words, so the failed run is not repeated
            self.spec["until"] = {} if self.spec.get("until") else LATER
        else:
            self.spec["schedule"] = {**self.spec["schedule"], "cron": "*/5 * * * *"}
        self.load = edited(self.load, **self.spec)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), ends=st.sampled_from(["well", "dies", "dies after it has published"]))
    def a_driver_ends(self, data: st.DataObject, ends: str) -> None:
        """The run may have been stopped, or have ended long ago in the operator's view."""
        name = data.draw(st.sampled_from(sorted(self.drivers)))
        driver = self.drivers.pop(name)
        why = self.published(driver) if ends != "dies" else Reason.RUN_FAILED
        if ends == "well" and why is None:
            self.reported[name] = ObservedRun(RunState.SUCCEEDED)
        else:
            self.reported[name] = ObservedRun(RunState.FAILED, error="boom", reason=why)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def a_driver_claims_the_table(self, data: st.DataObject) -> None:
        self.claimed(self.drivers[data.draw(st.sampled_from(sorted(self.drivers)))])

    def claimed(self, driver: Driver) -> Reason | None:
        """As `millstream_jobs.claims` does, which has its own tests."""
        if driver.rows in self.fenced:
            return Reason.FENCED
        if driver.rows in self.table:
            return None
        if driver.rows in self.claims and self.claims[-1] != driver.rows:
            self.fenced.add(driver.rows)
            return Reason.FENCED
        last = next((run for run in reversed(self.claims) if run in self.table), None)
        after, failed = driver.fence.get("after"), driver.fence.get("failed", ())
        if after is not None and last not in (after, *failed):
            return Reason.TABLE_REPLACED
        self.fenced |= {run for run in (*self.claims, *failed) if run not in self.table} - {driver.rows}
        if driver.rows not in self.claims:
            self.claims.append(driver.rows)
        return None

    def published(self, driver: Driver) -> Reason | None:
        """Publish the rows; or why not, such as others of these records, for which the run looks (mode New)."""
        if why := self.claimed(driver):
            return why
        others = [there for name, there in self.table.items() if name != driver.rows]
        if driver.is_new and driver.rows not in self.table:
            for there in others:
                if any(max(a, c) < min(b, d) for (a, b), (c, d) in zip(there, driver.ranges, strict=True)):
                    return Reason.ALREADY_LOADED
        assert self.table.setdefault(driver.rows, driver.ranges) == driver.ranges, (
            "the rows of a name are always the same"
        )
        return None

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def a_runner_vanishes(self, data: st.DataObject) -> None:
        self.drivers.pop(data.draw(st.sampled_from(sorted(self.drivers))))

    @rule()
    def somebody_copies_the_status(self) -> None:
        self.copies.append(self.load.status)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def somebody_restores_the_status(self, data: st.DataObject) -> None:
        self.load = runs.with_status(self.load, data.draw(st.sampled_from(self.copies)))
        self.needs_its_user = True

    @rule()
    def somebody_deletes_and_creates_it_again(self) -> None:
        self.load = a_load(**self.spec)
        metadata = msgspec.structs.replace(self.load.metadata, uid=f"{next(self.nonces):08}")
        self.load = msgspec.structs.replace(self.load, metadata=metadata)
        self.copies = []
        self.needs_its_user = True

    # The operator

    @rule(dies=st.sampled_from(["", "", "", "before it writes", "after it has written"]))
    def the_operator_makes_a_pass(self, dies: str) -> None:
        request = runs.request(self.load, self.now)
        load, cause = request.load, request.cause
        if cause is not None:
            ends = {("flights", at): Ends(0, end, topic_id="T1") for at, end in enumerate(self.ends)}
            begun = runs.begin(load, cause, ends, self.now, f"{next(self.nonces):08}")
            assert isinstance(begun, BatchLoadStatus), begun
            self.write(tell(load, begun, self.now), dies)
        elif request.is_idle:
            self.write(tell(load, load.status, self.now), dies)
        else:
            self.follow(load, dies)

    def follow(self, load: Any, dies: str) -> None:
        run = run_of(load)
        name, rows = str(run.name), str(run.id)
        seen = ObservedRun(RunState.RUNNING)
        if name in self.reported:
            seen = dataclasses.replace(self.reported[name], rows=run.records)
        elif name not in self.drivers:
            edited_meanwhile = runs.superseded(load)
            if edited_meanwhile is None:
                ranges = tuple((part.from_, part.until) for part in load.status.offsets)
                told = run_file(load, PodAccess("b:1"), result="")
                self.drivers[name] = Driver(rows, ranges, told["output"].get("mode") == "New", told["fence"])
            seen = edited_meanwhile or ObservedRun(RunState.PENDING)
        if not seen.state.ended:
            seen = runs.overdue(load, self.now) or seen
        self.write(tell(load, runs.follow(load, seen, self.now), self.now), dies)

    def write(self, status: BatchLoadStatus, dies: str) -> None:
        if dies != "before it writes":
            stored = msgspec.json.decode(msgspec.json.encode(status), type=BatchLoadStatus)
            assert stored == status
            self.load = runs.with_status(self.load, stored)

    # Invariants

    @invariant()
    def no_record_is_there_twice(self) -> None:
        for partition in range(PARTITIONS):
            ranges = sorted(
                rows[partition] for rows in self.table.values() if rows[partition][0] < rows[partition][1]
            )
            for (_, until), (first, _) in itertools.pairwise(ranges):
                assert until <= first, f"partition {partition}: {ranges}"

    @invariant()
    def what_is_committed_is_there(self) -> None:
        committed = self.load.status.committed
        for one in committed.offsets if committed is not None else ():
            at = 0
            for first, until in sorted(rows[one.partition] for rows in self.table.values()):
                assert first <= at or first >= one.offset, f"nothing has {at} to {first}"
                at = max(at, until)
            assert at >= one.offset

    @invariant()
    def one_run_at_a_time(self) -> None:
        status = self.load.status
        assert all(RunState(run.state or "").ended for run in status.runs or ())
        names = [run.name for run in (*((status.last_run,) if status.last_run else ()), *(status.runs or ()))]
        assert len(names) == len(set(names))
        if in_flight(status):
            conditions = {one.type: one.status for one in status.conditions or ()}
            assert conditions["Succeeded"] == "Unknown"

    def teardown(self) -> None:
        """Without further faults, everything is loaded in the end; after a restore, its user decides first."""
        if not hasattr(self, "load"):
            return
        self.spec["schedule"] = {"cron": "*/5 * * * *"}
        status = self.load.status
        waits = status.unsettled or (status.asked if in_flight(status) else None)
        for until in (
            {},
            LATER,
        ):  # the edit is undone, if a failed run waits for that, or one that may fail yet
            self.spec["until"] = until
            self.load = edited(self.load, **self.spec)
            if waits is not None and waits.positions == digest_of_positions(self.load):
                break
        for _ in range(40):
            self.the_operator_makes_a_pass("")
            for name in sorted(self.drivers):
                why = self.published(self.drivers.pop(name))
                self.reported[name] = ObservedRun(
                    RunState.FAILED if why else RunState.SUCCEEDED, error="boom", reason=why
                )
            self.now += timedelta(minutes=5)
            self.no_record_is_there_twice()
            self.what_is_committed_is_there()
        committed = self.load.status.committed
        if any(self.ends) and not self.needs_its_user:
            assert committed is not None
            assert [one.offset for one in committed.offsets] == self.ends


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
