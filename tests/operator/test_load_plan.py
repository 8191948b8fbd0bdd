"""BatchLoad: the state machine over runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millstream_operator.conditions import Reason
from millstream_operator.models import BatchLoad, BatchLoadStatus, Run, decode_as
from millstream_operator.reconcile import load as runs
from millstream_operator.reconcile.load import Ends, RunState, Seen
from millstream_operator.reconcile.report import Problem

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
FLIGHTS = {("flights", 0): Ends(0, 100), ("flights", 1): Ends(20, 50)}


def a_load(generation: int = 1, **spec: Any) -> BatchLoad:
    return decode_as(
        BatchLoad,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "BatchLoad",
            "metadata": {"name": "daily", "namespace": "flights", "uid": "u-1", "generation": generation},
            "spec": {
                "clusterRef": {"name": "default"},
                "topics": ["flights"],
                "value": {"format": "JSON", "schema": "carrier STRING"},
                "output": {"path": "/lake/flights", "volumeClaimName": "lake"},
                **spec,
            },
        },
    )


def with_status(load: BatchLoad, status: BatchLoadStatus, generation: int | None = None) -> BatchLoad:
    metadata = msgspec.structs.replace(load.metadata, generation=generation or load.metadata.generation)
    return msgspec.structs.replace(load, status=status, metadata=metadata)


def begun(load: BatchLoad) -> BatchLoad:
    offsets = runs.resolve(load, FLIGHTS)
    assert not isinstance(offsets, Problem)
    return with_status(load, runs.begin(load, offsets, NOW))


def condition(status: BatchLoadStatus, kind: str) -> tuple[str, str, str]:
    found = next(entry for entry in status.conditions or () if entry.type == kind)
    return found.status, found.reason, found.message


def offsets_of(load: BatchLoad) -> list[tuple[int, int]]:
    found = runs.resolve(load, FLIGHTS)
    assert not isinstance(found, Problem), found
    return [(part.from_, part.until) for part in found]


def listed(*offsets: tuple[int, int]) -> dict[str, Any]:
    """The position at these offsets by partition."""
    entries = [{"topic": "flights", "partition": partition, "offset": at} for partition, at in offsets]
    return {"position": "Offsets", "offsets": entries}


def test_a_run_begins_with_its_offsets_pinned() -> None:
    load = begun(a_load())
    run = load.status.last_run
    assert run is not None
    assert (run.name, run.state, run.start_time) == ("daily-0001", "Pending", "2026-11-21T08:00:00Z")
    assert [(p.partition, p.from_, p.until) for p in load.status.offsets or ()] == [(0, 0, 100), (1, 20, 50)]
    assert condition(load.status, "Ready")[:2] == ("True", "RunPending")
    assert condition(load.status, "Succeeded")[0] == "False"
    assert not runs.needs_run(load)


def test_it_waits_for_records() -> None:
    load = a_load(minRecords=336776)
    offsets = runs.resolve(load, FLIGHTS)
    assert not isinstance(offsets, Problem)
    status = runs.begin(load, offsets, NOW)
    assert status.last_run is None
    assert status.offsets is None
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Succeeded") == ("False", "WaitingForRecords", "130 of 336,776 records")


def test_an_empty_range_runs_when_no_record_is_asked_for() -> None:
    load = a_load(minRecords=0)
    offsets = runs.resolve(load, {("flights", 0): Ends(7, 7)})
    assert not isinstance(offsets, Problem)
    assert runs.begin(load, offsets, NOW).last_run is not None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, [(0, 100), (20, 50)]),
        ({"from": {"position": "Committed"}}, [(0, 100), (20, 50)]),
        ({"from": listed((0, 10), (1, 50))}, [(10, 100), (50, 50)]),
        ({"until": listed((0, 100), (1, 20))}, [(0, 100), (20, 20)]),
    ],
)
def test_positions(spec: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    assert offsets_of(a_load(**spec)) == expected


def test_positions_by_time_end_behind_the_last_record_where_nothing_is_that_late() -> None:
    moment = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    partitions = {("flights", 0): Ends(0, 100, from_time=40), ("flights", 1): Ends(20, 50)}
    found = runs.resolve(a_load(**{"from": moment}), partitions)
    assert not isinstance(found, Problem)
    assert [(part.from_, part.until) for part in found] == [(40, 100), (50, 50)]


@pytest.mark.parametrize(
    ("field", "offsets", "message"),
    [
        ("from", [(0, 10)], "spec.from.offsets: one for every partition is required; missing: flights-1"),
        (
            "from",
            [(0, 10), (1, 20), (2, 0)],
            "spec.from.offsets: flights-2 is not allowed: there is no such partition",
        ),
        (
            "until",
            [(0, 101), (1, 20)],
            "spec.until.offsets: 101 of flights-0 is not allowed; allowed: 0 to 100",
        ),
        ("from", [(0, 0), (1, 19)], "spec.from.offsets: 19 of flights-1 is not allowed; allowed: 20 to 50"),
    ],
)
def test_offsets_that_cannot_be_are_refused(field: str, offsets: list[tuple[int, int]], message: str) -> None:
    found = runs.resolve(a_load(**{field: listed(*offsets)}), FLIGHTS)
    assert isinstance(found, Problem)
    assert found.reason is Reason.INVALID_SPEC
    assert found.message.startswith(message)


def test_an_end_before_the_start_is_refused() -> None:
    spec = {"from": listed((0, 20), (1, 30)), "until": listed((0, 10), (1, 30))}
    found = runs.resolve(a_load(**spec), FLIGHTS)
    assert isinstance(found, Problem)
    assert found.message == "spec.until: 10 of flights-0 is not allowed: it is before its spec.from, 20"


@pytest.mark.parametrize(
    ("path", "claim", "part"),
    [
        ("/lake/flights", None, "would be lost with its pod"),
        ("/tmp/flights", "lake", "allowed: a folder of its own"),
        ("/lake/../etc", "lake", "allowed: a folder of its own"),
        ("//x", "lake", "allowed: a folder of its own"),
    ],
)
def test_outputs_that_kubernetes_cannot_have(path: str, claim: str | None, part: str) -> None:
    output = {"path": path, **({"volumeClaimName": claim} if claim else {})}
    problem = runs.check_output(a_load(output=output))
    assert problem is not None
    assert part in problem.message
    assert path in problem.message


@pytest.mark.parametrize(
    "output", [{"path": "/lake/flights", "volumeClaimName": "lake"}, {"path": "s3a://bucket/flights"}]
)
def test_outputs_that_kubernetes_can_have(output: dict[str, Any]) -> None:
    assert runs.check_output(a_load(output=output)) is None


def test_a_run_to_success() -> None:
    load = begun(a_load())
    pending = runs.follow(load, Seen(RunState.PENDING, message="ImagePullBackOff: no such image"), NOW)
    assert condition(pending, "Ready")[2] == (
        "daily-0001 with 130 records waits for its pods: ImagePullBackOff: no such image"
    )
    load = with_status(load, runs.follow(load, Seen(RunState.RUNNING), NOW))
    assert load.status.last_run is not None
    assert load.status.last_run.state == "Running"
    # A driver that failed and is started again: the run goes on.
    status = runs.follow(load, Seen(RunState.PENDING), NOW)
    assert status.last_run is not None
    assert status.last_run.state == "Running"
    status = runs.follow(load, Seen(RunState.SUCCEEDED, rows=130, end_time="2026-11-21T08:05:00Z"), NOW)
    run = status.last_run
    assert run is not None
    assert (run.state, run.rows, run.end_time, run.error) == ("Succeeded", 130, "2026-11-21T08:05:00Z", "")
    assert condition(status, "Succeeded") == (
        "True",
        "Succeeded",
        "daily-0001 wrote 130 rows to /lake/flights",
    )
    # What has ended stays so, and nothing is written again.
    ended = with_status(load, status)
    assert runs.follow(ended, Seen(RunState.PENDING), NOW) is ended.status
    assert not runs.needs_run(with_status(load, status, generation=2), retry=True)


def test_a_run_that_fails_says_why_and_a_changed_spec_runs_again() -> None:
    load = begun(a_load())
    error = "output.path: /lake/flights cannot be written to: Permission denied"
    failed = with_status(load, runs.follow(load, Seen(RunState.FAILED, error=error), NOW))
    assert condition(failed.status, "Ready") == ("False", "OutputNotWritable", f"daily-0001: {error}")
    assert condition(failed.status, "Succeeded")[1] == "OutputNotWritable"
    assert not runs.needs_run(failed)
    assert runs.needs_run(failed, retry=True)
    changed = with_status(failed, failed.status, generation=2)
    assert runs.needs_run(changed)
    assert runs.next_run_name(changed) == "daily-0002"


def test_a_spec_that_changes_during_a_run_counts_when_the_run_has_failed() -> None:
    load = begun(a_load())
    changed = with_status(load, load.status, generation=2)
    assert not runs.needs_run(changed)
    failed = with_status(changed, runs.follow(changed, Seen(RunState.FAILED, error="boom"), NOW))
    assert condition(failed.status, "Succeeded") == ("False", "RunFailed", "daily-0001: boom")
    assert runs.needs_run(failed)


def test_what_cannot_run_keeps_what_the_last_run_was() -> None:
    load = begun(a_load())
    status = runs.refuse(load, Problem(Reason.RUNNER_NOT_AVAILABLE, "no such kind"), NOW)
    assert status.last_run == load.status.last_run
    assert condition(status, "Ready") == ("False", "RunnerNotAvailable", "no such kind")


def test_the_first_run_begins_by_itself() -> None:
    load = a_load()
    assert runs.needs_run(load)
    assert runs.needs_run(with_status(load, BatchLoadStatus(last_run=Run())))
    assert runs.next_run_name(load) == "daily-0001"


def test_a_load_whose_conditions_are_lost_does_not_run_again() -> None:
    failed = BatchLoadStatus(last_run=Run(name="daily-0001", state="Failed"))
    assert not runs.needs_run(with_status(a_load(), failed))


def test_a_runs_end_counts_for_the_spec_it_began_with() -> None:
    def generation(load: BatchLoad) -> int | None:
        status = runs.follow(load, Seen(RunState.FAILED), NOW)
        return {one.type: one.observed_generation for one in status.conditions or ()}["Succeeded"]

    changed = with_status(begun(a_load()), begun(a_load()).status, generation=2)
    assert generation(changed) == 1
    lost = msgspec.structs.replace(changed.status, conditions=None)
    assert generation(with_status(changed, lost)) == 2


def test_from_and_until_have_a_time_each() -> None:
    moment = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    found = runs.resolve(
        a_load(**{"from": moment, "until": moment}),
        {("flights", 0): Ends(0, 100, from_time=40, until_time=60)},
    )
    assert not isinstance(found, Problem)
    assert [(part.from_, part.until) for part in found] == [(40, 60)]


@pytest.mark.parametrize(("missing", "more"), [(10, ""), (11, " and 1 more"), (12, " and 2 more")])
def test_ten_partitions_without_an_offset_are_named(missing: int, more: str) -> None:
    partitions = {("flights", partition): Ends(0, 1) for partition in range(missing + 1)}
    found = runs.resolve(a_load(**{"from": listed((missing, 0))}), partitions)
    assert isinstance(found, Problem)
    named = ", ".join(f"flights-{partition}" for partition in range(10))
    assert found.message.endswith(f"missing: {named}{more}")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(RunState.PENDING), "daily-0001 with 130 records waits for its pods"),
        (Seen(RunState.RUNNING), "daily-0001 loads 130 records"),
        (Seen(RunState.RUNNING, message="attempt 2"), "daily-0001 loads 130 records: attempt 2"),
        (Seen(RunState.SUCCEEDED), "daily-0001 wrote its rows to /lake/flights"),
    ],
)
def test_how_far_a_run_is(seen: Seen, words: str) -> None:
    assert condition(runs.follow(begun(a_load()), seen, NOW), "Ready")[2] == words
