"""BatchLoad: the offsets that a run loads."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from millstream_harness.loads import FLIGHTS, a_load, ended, listed, started
from millstream_operator.models import BatchLoadStatus, Run, Unsettled
from millstream_operator.models.conditions import Reason
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.load.plan import with_status
from millstream_operator.reconcile.load.ranges import (
    Ends,
    Key,
    _without_repeats,
    check_size,
    committed_by,
    goes_on,
    resolve,
    resolve_rerun,
)
from millstream_operator.resources.load_run_file import run_file
from millstream_operator.resources.pod_access import PodAccess


def offsets_of(*arguments: Any) -> list[tuple[int, int]]:
    found = resolve(*arguments)
    assert not isinstance(found, Problem), found
    return [(part.from_, part.until) for part in found]


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
    assert offsets_of(a_load(**spec), FLIGHTS) == expected


def test_positions_by_time_end_behind_the_last_record_where_nothing_is_that_late() -> None:
    moment = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    partitions = {("flights", 0): Ends(0, 100, from_time=40), ("flights", 1): Ends(20, 50)}
    found = resolve(a_load(**{"from": moment}), partitions)
    assert not isinstance(found, Problem)
    assert [(part.from_, part.until) for part in found] == [(40, 100), (50, 50)]


@pytest.mark.parametrize(
    ("field", "offsets", "message"),
    [
        (
            "from",
            [(0, 10)],
            "spec.from.offsets: an offset for every partition is required; missing: flights-1",
        ),
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
    found = resolve(a_load(**{field: listed(*offsets)}), FLIGHTS)
    assert isinstance(found, Problem)
    assert found.reason is Reason.INVALID_SPEC
    assert found.message.startswith(message)


def test_an_end_before_the_start_is_refused() -> None:
    spec = {"from": listed((0, 20), (1, 30)), "until": listed((0, 10), (1, 30))}
    found = resolve(a_load(**spec), FLIGHTS)
    assert isinstance(found, Problem)
    assert found.reason is Reason.INVALID_SPEC
    assert found.message == (
        "spec.until: 10 of flights-0 is not allowed: it is before its spec.from; allowed: 20 or above"
    )


@pytest.mark.parametrize("field", ["spec", "spec.rerun"])
def test_an_end_in_time_before_the_start_is_refused(field: str) -> None:
    begin = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    end = {"position": "Timestamp", "timestamp": "2026-11-19T23:00:00Z"}
    span = {"from": begin, "until": end}
    load = a_load(**(span if field == "spec" else {"rerun": {"requestId": "1", **span}}))
    rerun = load.spec.rerun
    found = resolve(load, FLIGHTS) if rerun is None else resolve_rerun(load, rerun, FLIGHTS)
    assert isinstance(found, Problem)
    assert found.reason is Reason.INVALID_SPEC
    assert found.message == (
        f"{field}.until: 2026-11-19T23:00:00Z is not allowed: it is before {field}.from; "
        "allowed: 2026-11-20T00:00:00Z or later"
    )


def test_from_and_until_have_a_time_each() -> None:
    moment = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    found = resolve(
        a_load(**{"from": moment, "until": moment}),
        {("flights", 0): Ends(0, 100, from_time=40, until_time=60)},
    )
    assert not isinstance(found, Problem)
    assert [(part.from_, part.until) for part in found] == [(40, 60)]


def test_a_load_of_the_most_partitions_fits_into_a_resource() -> None:
    """Its largest possible status stays below etcd's 1.5 MiB."""
    for name, most in (("f", 4_000), ("f" * 249, 1_100)):
        partitions = {(name, number): Ends(0, 10**12, topic_id="T" * 22) for number in range(most)}
        load = a_load(topics=[name])
        offsets = resolve(load, partitions)
        assert not isinstance(offsets, Problem)
        assert check_size(offsets) is None
        committed = committed_by(load, "/lake", offsets, "f" * 16)
        unsettled = Unsettled("run", "/lake", "f" * 16, offsets)
        last = Run(error="x" * 4096, log=("x" * 400,) * 20)
        kept = replace(last, offsets=offsets[:32])
        status = BatchLoadStatus(
            offsets=offsets, committed=committed, unsettled=unsettled, last_run=last, runs=(kept,) * 6
        )
        assert len(msgspec.json.encode(status)) < 1_500_000
        began = with_status(load, replace(status, last_run=replace(last, name="r")))
        run = run_file(began, PodAccess("b:1"), result="")
        assert len(json.dumps(run, indent=1)) < 1_000_000
        many = {(name, number): Ends(0, 10**12, topic_id="T" * 22) for number in range(5 * most)}
        found = resolve(load, many)
        assert not isinstance(found, Problem)
        problem = check_size(found)
        assert problem is not None
        assert problem.message.startswith(f"spec.topics: {5 * most:,} partitions are not allowed")


@pytest.mark.parametrize(("missing", "more"), [(10, ""), (11, " and 1 more"), (12, " and 2 more")])
def test_ten_partitions_without_an_offset_are_named(missing: int, more: str) -> None:
    partitions = {("flights", partition): Ends(0, 1) for partition in range(missing + 1)}
    found = resolve(a_load(**{"from": listed((missing, 0))}), partitions)
    assert isinstance(found, Problem)
    named = ", ".join(f"flights-{partition}" for partition in range(10))
    assert found.message.endswith(f"missing: {named}{more}")


def test_what_is_loaded_is_continued_from_where_the_last_success_ended() -> None:
    load = ended(started(a_load()))
    more = {("flights", 0): Ends(40, 120, topic_id="T1"), ("flights", 1): Ends(20, 50, topic_id="T1")}
    assert offsets_of(load, more) == [(100, 120), (50, 50)]
    # A new partition is loaded from its start.
    added = {**more, ("flights", 2): Ends(3, 9, topic_id="T1")}
    assert offsets_of(load, added) == [(100, 120), (50, 50), (3, 9)]


@pytest.mark.parametrize(
    ("edit", "again"),
    [
        ({}, False),
        ({"spark": {"driver": {"memory": "2g"}}}, False),
        ({"value": {"format": "Binary"}}, False),
        ({"from": {"position": "Committed"}}, False),
        ({"from": {"position": "Earliest"}}, True),
        ({"from": {"position": "Earliest", "requestId": "2"}}, True),
        ({"output": {"path": "/lake/other", "volumeClaimName": "lake"}}, True),
    ],
)
def test_only_another_start_or_table_begins_anew(edit: dict[str, Any], again: bool) -> None:
    load = ended(started(a_load()), **edit)
    assert (goes_on(load) is None) is again
    assert offsets_of(load, FLIGHTS) == ([(0, 100), (20, 50)] if again else [(100, 100), (50, 50)])


def test_a_start_that_was_applied_is_not_applied_again() -> None:
    load = ended(started(a_load(**{"from": {"position": "Earliest", "requestId": "2"}})))
    assert offsets_of(load, FLIGHTS) == [(100, 100), (50, 50)]


def test_a_topic_that_was_created_again_is_recognised() -> None:
    load = ended(started(a_load()))
    again = {key: Ends(0, 500, topic_id="T2") for key in FLIGHTS}
    found = resolve(load, again)
    assert isinstance(found, Problem)
    assert found.reason is Reason.TOPIC_REPLACED
    assert found.message.startswith(
        "topic flights was deleted and created again: its id is T2, and was T1 when the last successful run ended; "
    )
    anew = ended(started(a_load()), **{"from": {"position": "Earliest", "requestId": "new-topic"}})
    assert offsets_of(anew, again) == [(0, 500), (0, 500)]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (
            Ends(105, 200, topic_id="T1"),
            "offsets 100 to 104 of flights-0 were deleted by retention",
        ),
        (
            Ends(0, 7, topic_id="T1"),
            "flights-0 ends at 7, before 100, where the last successful run ended: records were lost",
        ),
    ],
)
def test_records_that_are_gone_are_named(ends: Ends, words: str) -> None:
    found = resolve(ended(started(a_load())), {**FLIGHTS, ("flights", 0): ends})
    assert isinstance(found, Problem)
    assert found.reason is Reason.OFFSETS_GONE
    assert found.message.startswith(words)


def advised(problem: Problem) -> dict[str, Any]:
    """The spec.from that a message proposes."""
    found = re.search(r"set spec\.from to (\{.*\}) with a new requestId", problem.message)
    assert found is not None, problem.message
    start: dict[str, Any] = yaml.safe_load(found[1].replace("...", "again"))
    return start


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param({("flights", 0): Ends(105, 200, topic_id="T1")}, [(105, 200), (50, 50)], id="retention"),
        pytest.param({("flights", 0): Ends(0, 7, topic_id="T1")}, [(7, 7), (50, 50)], id="truncated"),
        pytest.param(
            {("flights", 0): Ends(0, 9, topic_id="T2"), ("flights", 1): Ends(3, 8, topic_id="T2")},
            [(0, 9), (3, 8)],
            id="recreated",
        ),
    ],
)
def test_the_advice_loads_no_record_twice(present: dict[Key, Ends], expected: list[tuple[int, int]]) -> None:
    load, there = ended(started(a_load())), {**FLIGHTS, **present}
    problem = resolve(load, there)
    assert isinstance(problem, Problem)
    assert offsets_of(ended(started(a_load()), **{"from": advised(problem)}), there) == expected


def test_the_advice_names_what_would_be_loaded_twice() -> None:
    problem = resolve(ended(started(a_load())), {**FLIGHTS, ("flights", 0): Ends(105, 200, topic_id="T1")})
    assert isinstance(problem, Problem)
    assert problem.message.endswith("; position Earliest would load up to 30 offsets a second time")


def test_the_advice_for_many_partitions_is_bounded() -> None:
    there = {("t", number): Ends(5, 9) for number in range(4000)}
    words = _without_repeats(dict.fromkeys(there, 7), there)
    assert len(words) < 5000
    assert "{topic: t, partition: 49, offset: 7}, and so on: for each partition" in words


def test_retention_of_what_is_loaded_is_no_loss() -> None:
    assert offsets_of(
        ended(started(a_load())), {**FLIGHTS, ("flights", 0): Ends(100, 100, topic_id="T1")}
    ) == [
        (100, 100),
        (50, 50),
    ]


def rerun_of(**rerun: Any) -> list[tuple[int, int]] | Problem:
    load = ended(started(a_load()), rerun={"requestId": "1", **rerun})
    assert load.spec.rerun is not None
    more = {("flights", 0): Ends(0, 130, 60, 90, "T1"), ("flights", 1): Ends(20, 80, 55, None, "T1")}
    found = resolve_rerun(load, load.spec.rerun, more)
    return found if isinstance(found, Problem) else [(part.from_, part.until) for part in found]


def test_a_rerun_loads_again_what_was_loaded_and_no_more() -> None:
    moment = {"position": "Timestamp", "timestamp": "2026-11-20T00:00:00Z"}
    assert rerun_of(**{"from": {"position": "Earliest"}}) == [(0, 100), (20, 50)]
    assert rerun_of(**{"from": moment}) == [(60, 100), (55, 55)]
    assert rerun_of(**{"from": moment, "until": moment}) == [(60, 90), (55, 55)]
    assert rerun_of(**{"from": listed((0, 10), (1, 20)), "until": listed((0, 20), (1, 30))}) == [
        (10, 20),
        (20, 30),
    ]
    bad = rerun_of(**{"from": listed((0, 20), (1, 20)), "until": listed((0, 10), (1, 30))})
    assert isinstance(bad, Problem)
    assert bad.message.startswith("spec.rerun.until: 10 of flights-0 is not allowed: it is before")
