"""BatchLoad: each record is in the table once, whatever happens to operator, driver, clock and spec.

Hypothesis plays a load with a schedule: records arrive; time passes and jumps, even over changes of summer time; the
operator reconciles, and dies before or after writing a status; the driver publishes, ends, or dies before or after
publishing, or finds rows that should not be there (mode New); and the spec is edited. After every step the rows
themselves are checked.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream_harness.loads import a_load, edited, run_of
from millstream_operator.models import BatchLoadStatus
from millstream_operator.reconcile import load as runs
from millstream_operator.reconcile.load import RunState, Seen
from millstream_operator.reconcile.load_ranges import Ends, digest_of_positions
from millstream_operator.reconcile.load_story import tell
from millstream_operator.resources import load as resources

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

PARTITIONS = 2
LATER = {"position": "Timestamp", "timestamp": "2036-01-01T00:00:00Z"}
Ranges = tuple[tuple[int, int], ...]
BEGINNINGS = (datetime(2026, 3, 29, 0, 10), datetime(2026, 10, 24, 23, 50), datetime(2026, 11, 21, 8, 0))


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
        self.drivers: dict[str, tuple[str, Ranges, bool]] = {}  # the running ones, by their run's name
        self.reported: dict[str, RunState] = {}

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
        published = ends != "dies" and self.published(*self.drivers.pop(name))
        self.drivers.pop(name, None)
        self.reported[name] = RunState.SUCCEEDED if ends == "well" and published else RunState.FAILED

    def published(self, rows: str, ranges: Ranges, is_new: bool) -> bool:
        """Publish the rows; False if others of these records are there, for which the run looks (mode New)."""
        others = [there for name, there in self.table.items() if name != rows]
        if is_new and rows not in self.table:
            for there in others:
                if any(max(a, c) < min(b, d) for (a, b), (c, d) in zip(there, ranges, strict=True)):
                    return False
        assert self.table.setdefault(rows, ranges) == ranges, "the rows of a name are always the same"
        return True

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def a_runner_vanishes(self, data: st.DataObject) -> None:
        self.drivers.pop(data.draw(st.sampled_from(sorted(self.drivers))))

    # The operator

    @rule(dies=st.sampled_from(["", "", "", "before it writes", "after it has written"]))
    def the_operator_makes_a_pass(self, dies: str) -> None:
        load = runs.with_status(self.load, runs.observe(self.load, self.now))
        asks = runs.request(load, self.now)
        if asks is not None:
            ends = {("flights", at): Ends(0, end, topic_id="T1") for at, end in enumerate(self.ends)}
            begun = runs.begin(load, asks, ends, self.now)
            assert isinstance(begun, BatchLoadStatus), begun
            self.write(tell(load, begun, self.now), dies)
        elif runs.in_flight(load.status):
            self.follow(load, dies)
        else:
            self.write(tell(load, load.status, self.now), dies)

    def follow(self, load: Any, dies: str) -> None:
        run = run_of(load)
        name, rows = str(run.name), str(run.id)
        seen = Seen(RunState.RUNNING)
        if name in self.reported:
            seen = Seen(self.reported[name], rows=run.records, error="boom")
        elif name not in self.drivers:
            edited_meanwhile = runs.superseded(load)
            if edited_meanwhile is None:
                ranges = tuple((part.from_, part.until) for part in load.status.offsets)
                output = resources.run_file(load, "b:1", result="")["output"]
                self.drivers[name] = (rows, ranges, output.get("mode") == "New")
            seen = edited_meanwhile or Seen(RunState.PENDING)
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
        if runs.in_flight(status):
            conditions = {one.type: one.status for one in status.conditions or ()}
            assert conditions["Succeeded"] == "Unknown"

    def teardown(self) -> None:
        """Without further faults, everything is loaded in the end."""
        if not hasattr(self, "load"):
            return
        self.spec["schedule"] = {"cron": "*/5 * * * *"}
        status = self.load.status
        waits = status.unsettled or (status.asked if runs.in_flight(status) else None)
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
                published = self.published(*self.drivers.pop(name))
                self.reported[name] = RunState.SUCCEEDED if published else RunState.FAILED
            self.now += timedelta(minutes=5)
            self.no_record_is_there_twice()
            self.what_is_committed_is_there()
        committed = self.load.status.committed
        if any(self.ends):
            assert committed is not None
            assert [one.offset for one in committed.offsets] == self.ends


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
