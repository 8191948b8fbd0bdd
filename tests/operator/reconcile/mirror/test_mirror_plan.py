"""A MirrorMaker's status, from its workers' reports."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from millstream_harness.mirror_maker import a_mirror
from millstream_operator.models import Lag, MirrorMaker, MirrorMakerStatus
from millstream_operator.models.conditions import Condition, Reason
from millstream_operator.models.mirror import Rate, SetAside
from millstream_operator.models.mirror_reports import (
    GapReport,
    ProblemReport,
    SourceReport,
    TargetReport,
    WorkerLag,
    WorkerRate,
    WorkerReport,
    Workers,
)
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.mirror import plan as plan

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
TOPICS = ("orders", "orders-eu", "orders-us")


def a_report(
    records: int = 0,
    seconds: float = 0,
    reachable: bool = True,
    error: str = "",
    topics: tuple[str, ...] | None = TOPICS,
) -> WorkerReport:
    lag = WorkerLag(records, seconds)
    source = SourceReport("west", reachable, 3, topics, lag, error, partitions=5, wanted=5)
    return WorkerReport(3, lag, (source,))


def status_of(mirror: MirrorMaker, *reports: WorkerReport, ready: int | None = None) -> MirrorMakerStatus:
    workers = Workers(len(reports), len(reports) if ready is None else ready, reports)
    return plan.status_of(mirror, workers, NOW)


def conditions(status: MirrorMakerStatus) -> dict[str, tuple[str, str]]:
    return {entry.type: (entry.status, entry.reason) for entry in status.conditions or ()}


@pytest.mark.parametrize("reason", ["CredentialsMissing", "TlsFailed", "AuthenticationFailed"])
def test_why_a_cluster_cannot_be_reached_is_a_reason(reason: str) -> None:
    source = SourceReport("west", reachable=False, last_error="why", reason=reason)
    seen = Workers(1, 1, (WorkerReport(sources=(source,)),))
    found = {one.type: one for one in plan.status_of(a_mirror(), seen, NOW).conditions or ()}
    for kind in ("Ready", "SourceReachable"):
        assert (found[kind].status, found[kind].reason, found[kind].message) == (
            "False",
            reason,
            "west: why",
        )
    reached = SourceReport("west", reachable=True)
    report = WorkerReport(sources=(reached,), target=TargetReport(False, reason, "why"))
    found = {
        one.type: one for one in plan.status_of(a_mirror(), Workers(1, 0, (report,)), NOW).conditions or ()
    }
    assert (found["Ready"].reason, found["Ready"].message) == (reason, "target: why")
    assert found["SourceReachable"].status == "True"
    starting = WorkerReport(sources=(reached,), target=TargetReport(False))
    found = {
        one.type: one for one in plan.status_of(a_mirror(), Workers(1, 0, (starting,)), NOW).conditions or ()
    }
    assert found["Ready"].reason == "WorkersStarting", "the target was not tried yet"


@pytest.mark.parametrize(
    "reason",
    [
        "NameTaken",
        "Diverged",
        "BatchNotMirrored",
        "RecordTooLarge",
        "TopicRefused",
        "MirroredTwice",
        "MirrorLoop",
        "PartitionWaiting",
    ],
)
def test_what_is_not_mirrored_is_named(reason: str) -> None:
    source = SourceReport("west", reachable=True, problems=(ProblemReport(reason, "what to do"),))
    other = SourceReport("west", reachable=True, problems=(ProblemReport("Unheard", "of"),))
    seen = Workers(1, 1, (WorkerReport(sources=(source,)), WorkerReport(sources=(other,))))
    found = conditions_by_type(seen)
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", reason)
    assert (found["Ready"].status, found["Ready"].reason) == ("False", reason)
    assert found["Ready"].message == "what to do"


def test_of_several_problems_all_are_named_and_the_worst_is_the_reason() -> None:
    problems = [
        ProblemReport(reason, reason.lower()) for reason in ("MirrorLoop", "TopicRefused", "Diverged")
    ]
    source = SourceReport("west", reachable=True, problems=tuple(problems))
    found = conditions_by_type(Workers(1, 1, (WorkerReport(sources=(source,)),)))
    assert (found["Degraded"].reason, found["Degraded"].message) == (
        "Diverged",
        "diverged; also: topicrefused; also: mirrorloop",
    )
    assert (found["CaughtUp"].status, found["CaughtUp"].reason) == ("False", "Diverged")


def test_a_topic_that_rejoins_is_not_caught_up_although_it_has_no_lag() -> None:
    said = "topic orders: rejoins the source, and is not its replica yet"
    source = SourceReport("west", reachable=True, problems=(ProblemReport("Rejoining", said),))
    reports = (WorkerReport(sources=(source,)), WorkerReport(sources=(source,)))
    found = conditions_by_type(Workers(1, 1, reports))
    for kind in ("Ready", "CaughtUp"):
        assert (found[kind].status, found[kind].reason, found[kind].message) == ("False", "Rejoining", said)
    assert found["Degraded"].status == "False"


def conditions_by_type(workers: Workers) -> dict[str, Condition]:
    return {one.type: one for one in plan.status_of(a_mirror(), workers, NOW).conditions or ()}


@pytest.mark.parametrize(
    ("matched", "reason"), [((0, 0), "NoTopics"), ((0, None), "Mirroring"), ((0, 1), "Mirroring")]
)
def test_patterns_that_match_nothing_are_said(matched: tuple[int | None, ...], reason: str) -> None:
    reports = tuple(
        WorkerReport(sources=(SourceReport("west", reachable=True, matched=number, wanted=0),))
        for number in matched
    )
    status = plan.status_of(a_mirror(), Workers(1, 1, reports), NOW)
    ready = (status.conditions or ())[0]
    assert (ready.status, ready.reason) == ("True", reason)
    assert ("no topic of west matches spec.topics" in ready.message) == (reason == "NoTopics")


def looked(name: str, matched: int | None, *unmatched: str) -> SourceReport:
    return SourceReport(name, reachable=True, matched=matched, unmatched=unmatched, wanted=1)


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        pytest.param([looked("west", 3, "ordrs")], '"ordrs" matches no topic of west', id="one of several"),
        pytest.param([looked("west", 3, "b", "a")], '"a", "b" match no topic of west', id="two"),
        pytest.param([looked("west", 3)], "", id="all match"),
        pytest.param([looked("west", 0, "ordrs")], "", id="no topic at all, which Ready says"),
        pytest.param([looked("west", 3, "a"), looked("north", 1)], "", id="another source has it"),
        pytest.param(
            [looked("west", 3, "a", "b"), looked("north", 0, "a")], '"a" matches no', id="in neither"
        ),
        pytest.param([looked("west", 3, "a"), looked("north", None)], "", id="not known of a source"),
    ],
)
def test_a_pattern_that_matches_nothing_beside_others_is_named(
    sources: list[SourceReport], named: str
) -> None:
    mirror = a_mirror(sources=[{"name": one.name, "bootstrap": "x:9092"} for one in sources])
    status = plan.status_of(mirror, Workers(1, 1, (WorkerReport(sources=tuple(sources)),)), NOW)
    warnings = [one for one in status.conditions or () if one.type == "Warning"]
    assert [one.reason for one in warnings] == (["PatternUnmatched"] if named else [])
    assert named in "".join(one.message for one in warnings)
    # a worker that has just started knows nothing yet: the warning stays, until the spec changes
    before = msgspec.structs.replace(mirror, status=status)
    later = plan.status_of(before, Workers(1, 0, ()), NOW)
    assert [one.message for one in later.conditions or () if one.type == "Warning"] == [
        one.message for one in warnings
    ]
    edited = msgspec.structs.replace(before, metadata=msgspec.structs.replace(before.metadata, generation=9))
    later = plan.status_of(edited, Workers(1, 0, ()), NOW)
    assert not [one for one in later.conditions or () if one.type == "Warning"]


@pytest.mark.parametrize(
    ("unmatched", "named"),
    [
        pytest.param(
            [("biling",)], 'spec.groups.include: "biling" matches no group of west;', id="one pattern"
        ),
        pytest.param([("b", "a")], '"a", "b" match no group of west;', id="two patterns"),
        pytest.param([("a",), ("a", "b")], '"a" matches no group of west, north;', id="in no source"),
        pytest.param([("a",), ()], "", id="in another source"),
        pytest.param([()], "", id="all match"),
        pytest.param([None], "", id="not listed yet"),
    ],
)
def test_group_pattern_without_group_warns(unmatched: list[tuple[str, ...] | None], named: str) -> None:
    reports = tuple(
        SourceReport(name, reachable=True, matched=0, wanted=0, unmatched_groups=patterns)
        for name, patterns in zip(("west", "north"), unmatched, strict=False)
    )
    mirror = a_mirror(
        sources=[{"name": report.name, "bootstrap": "x:9092"} for report in reports],
        groups={"include": ["a", "b", "biling"]},
        naming="Prefixed",
    )
    status = plan.status_of(mirror, Workers(1, 1, (WorkerReport(sources=reports),)), NOW)
    warnings = [condition for condition in status.conditions or () if condition.type == "Warning"]
    assert [condition.reason for condition in warnings] == (["PatternUnmatched"] if named else [])
    assert named in "".join(condition.message for condition in warnings)


def test_topic_pattern_warns_before_groups_are_listed() -> None:
    mirror = a_mirror(groups={"include": [".*"]})
    report = looked("west", 3, "ordrs")
    status = plan.status_of(mirror, Workers(1, 1, (WorkerReport(sources=(report,)),)), NOW)
    (warning,) = [condition for condition in status.conditions or () if condition.type == "Warning"]
    assert 'spec.topics.include: "ordrs" matches no topic of west' in warning.message
    assert not plan.knows_topics(mirror, [WorkerReport(sources=(report,))])
    listed = msgspec.structs.replace(report, unmatched_groups=())
    assert plan.knows_topics(mirror, [WorkerReport(sources=(listed,))])


def test_rates_add_up_whatever_a_worker_says() -> None:
    rates = (WorkerRate(10.4, 1000), WorkerRate(5.2, 500), WorkerRate(float("inf"), 1), WorkerRate(-99, 0))
    reports = tuple(
        WorkerReport(sources=(SourceReport("west", reachable=True, rate=rate),)) for rate in rates[:3]
    )
    (source,) = plan.status_of(a_mirror(), Workers(1, 1, reports), NOW).sources or ()
    assert source.rate == Rate(records=16, bytes=1500)
    report = WorkerReport(sources=(SourceReport("west", reachable=True, rate=rates[3]),))
    (source,) = plan.status_of(a_mirror(), Workers(1, 1, (report,)), NOW).sources or ()
    assert source.rate == Rate(records=0, bytes=0)


def test_what_was_set_aside_is_in_the_status_once() -> None:
    aside = [
        SetAside(
            topic="orders", partition=partition, common_offset=7, records=3, copied_to="orders.set-aside"
        )
        for partition in range(120)
    ]
    leading = WorkerReport(sources=(SourceReport("west", reachable=True, set_aside=tuple(aside[::-1])),))
    former = WorkerReport(sources=(SourceReport("west", reachable=True, set_aside=(aside[0],)),))
    other = WorkerReport(sources=(SourceReport("west", reachable=True),))
    (source,) = plan.status_of(a_mirror(), Workers(3, 3, (former, leading, other)), NOW).sources or ()
    assert source.set_aside == tuple(aside[:100])
    (source,) = plan.status_of(a_mirror(), Workers(1, 1, (other,)), NOW).sources or ()
    assert source.set_aside is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SourceReport("west", True, wanted=None), "no worker knows the topics of west yet"),
        (
            SourceReport("west", True, 2, partitions=3, wanted=5),
            "workers have taken 3 of 5 partitions of west",
        ),
        (
            SourceReport("west", True, 2, partitions=3, wanted=5, last_error="a-0: no leader in the source"),
            "workers have taken 3 of 5 partitions of west: a-0: no leader in the source",
        ),
        (
            SourceReport("west", True, 2, partitions=5, wanted=5, starting=1),
            "workers have yet to read from 1 partition of west",
        ),
    ],
)
def test_a_mirror_that_has_not_read_all_partitions_is_not_caught_up(source: SourceReport, words: str) -> None:
    """Its lag is unknown, not 0."""
    status = status_of(a_mirror(), WorkerReport(sources=(source,)))
    found = next(one for one in status.conditions or () if one.type == "CaughtUp")
    assert (found.status, found.reason, found.message) == ("Unknown", "WorkersStarting", words)
    assert status.lag is None
    assert [one.lag for one in status.sources or ()] == [None]
    is_ready = conditions(status)["Ready"][0] == "True"
    assert is_ready is (source.wanted is not None)


def test_a_source_that_no_worker_has_tried_yet_is_not_called_unreachable() -> None:
    status = status_of(a_mirror(), WorkerReport(sources=(SourceReport("west", False, wanted=None),)))
    assert [one.reachable for one in status.sources or ()] == [None]
    assert conditions(status)["SourceReachable"] == ("Unknown", "WorkersStarting")
    failed = SourceReport("west", False, wanted=None, last_error="connection refused")
    status = status_of(a_mirror(), WorkerReport(sources=(failed,)))
    assert conditions(status)["SourceReachable"] == ("False", "SourceUnreachable")
    assert conditions(status)["CaughtUp"] == ("Unknown", "SourceUnreachable")


def test_workers_of_an_older_version_do_not_report_what_they_have_yet_to_read() -> None:
    """They count as before."""
    report = WorkerReport(
        1, WorkerLag(4, 2), (SourceReport("west", True, 1, lag=WorkerLag(4, 2), partitions=3),)
    )
    status = status_of(a_mirror(), report)
    assert conditions(status)["CaughtUp"] == ("True", "CaughtUp")
    assert conditions(status)["Ready"] == ("True", "Mirroring")
    assert status.lag == Lag(records=4, seconds=2)


def test_workers_shares_add_up() -> None:
    status = status_of(
        a_mirror(replicas=2), a_report(5, 2), a_report(7, 89.3, topics=(*TOPICS, "orders-more"))
    )
    assert status.topics == 4  # a topic has partitions on several workers
    assert status.lag == Lag(records=12, seconds=90)
    (source,) = status.sources or ()
    assert (source.reachable, source.topics, source.lag) == (True, 4, Lag(records=12, seconds=90))
    assert (
        status.selector == "app.kubernetes.io/name=millstream-mirror,app.kubernetes.io/instance=west-to-east"
    )
    assert conditions(status) == {
        "Ready": ("True", "Mirroring"),
        "CaughtUp": ("False", "Behind"),
        "SourceReachable": ("True", "SourcesReachable"),
        "Degraded": ("False", "NothingMissing"),
    }


def test_records_that_the_source_deleted_first_are_named() -> None:
    def told(*gaps: GapReport) -> dict[str, tuple[str, str, str]]:
        source = SourceReport("west", True, 1, ("orders",), gaps=gaps, partitions=1, wanted=1)
        status = status_of(a_mirror(), WorkerReport(1, WorkerLag(), (source,)))
        return {one.type: (one.status, one.reason, one.message) for one in status.conditions or ()}

    passed = told(GapReport("orders-0", 100, 150, False))
    assert passed["Degraded"] == (
        "True",
        "RecordsMissing",
        "west deleted offsets 100 to 149 of orders-0 before they were mirrored, in the last 24 hours: raise"
        " retention there",
    )
    assert passed["Ready"][:2] == ("True", "Mirroring")
    stopped = told(GapReport("orders-0", 100, 150, False), GapReport("orders-1", 7, 8, True))
    words = (
        "west deleted offsets 7 to 7 of orders-1 before they were mirrored; mirroring of these partitions stopped: set"
        " spec.onGap: SkipToEarliest to continue with the remaining records; also: west deleted offsets 100 to 149 of"
        " orders-0 before they were mirrored, in the last 24 hours: raise retention there"
    )
    assert stopped["Degraded"] == ("True", "StoppedAtGap", words)
    assert stopped["Ready"] == ("False", "StoppedAtGap", words)
    many = told(*(GapReport(f"orders-{number}", 0, 1, False) for number in range(8)))
    assert "of orders-4 and 3 more before" in many["Degraded"][2]
    assert msgspec.json.decode(
        b'{"partition": "orders-0", "from": 1, "until": 3, "stopped": true}', type=GapReport
    ) == GapReport("orders-0", 1, 3, True)


def test_topics_made_anew_in_the_source_are_named() -> None:
    def told(*topics: str) -> dict[str, tuple[str, str, str]]:
        source = SourceReport("west", True, 1, ("orders",), replaced=topics)
        report = WorkerReport(1, WorkerLag(), (source,))
        status = status_of(a_mirror(), report)
        return {one.type: (one.status, one.reason, one.message) for one in status.conditions or ()}

    words = (
        "deleted and created again in the source: orders of west; nothing is appended to the old topic's copy: delete"
        " the copy in the target to mirror the new topic, or add the topic to spec.topics.exclude"
    )
    assert told("orders")["Degraded"] == ("True", "TopicReplaced", words)
    assert told("orders")["Ready"] == ("False", "TopicReplaced", words)
    assert told()["Degraded"][:2] == ("False", "NothingMissing")
    many = told(*(f"orders-{number}" for number in range(8)))
    assert "orders-4 of west and 3 more;" in many["Degraded"][2]


@pytest.mark.parametrize(
    ("records", "seconds", "caught_up", "words"),
    [
        (0, 0, "True", "at most 10 seconds behind"),
        (0, 60, "True", "at most 10 seconds behind"),
        (9, 10, "True", "at most 10 seconds behind"),
        (1234, 11, "False", "more than 10 seconds behind"),
    ],
)
def test_caught_up(records: int, seconds: int, caught_up: str, words: str) -> None:
    status = status_of(a_mirror(), a_report(records, seconds))
    found = next(one for one in status.conditions or () if one.type == "CaughtUp")
    assert (found.status, found.message) == (caught_up, words)


def test_a_mirror_that_began_with_a_backlog_is_behind_from_the_first_second_on() -> None:
    source = SourceReport("west", True, 1, ("orders",), WorkerLag(9, 0.1), partitions=2, wanted=2, new=2)
    status = status_of(a_mirror(), WorkerReport(1, WorkerLag(9, 0.1), (source,)))
    found = next(one for one in status.conditions or () if one.type == "CaughtUp")
    assert (found.status, found.reason) == ("False", "Behind")
    assert found.message == "2 partitions have not been caught up yet"


@pytest.mark.parametrize(
    ("workers", "topics", "words"),
    [
        (1, ("orders",), "1 worker mirrors 1 topic"),
        (1, TOPICS, "1 worker mirrors 3 topics"),
        (2, TOPICS, "2 workers mirror 3 topics"),
    ],
)
def test_workers_that_mirror(workers: int, topics: tuple[str, ...], words: str) -> None:
    status = status_of(a_mirror(replicas=workers), *(a_report(topics=topics) for _ in range(workers)))
    assert (status.conditions or ())[0].message == words


def test_a_source_that_no_worker_has_seen_adds_no_topics() -> None:
    sources = [{"name": name, "bootstrap": f"{name}:9092"} for name in ("west", "north")]
    status = status_of(a_mirror(sources=sources), a_report())
    assert status.topics == 3
    assert (status.conditions or ())[0].message == "no worker knows the topics of north yet"
    assert conditions(status)["SourceReachable"] == ("Unknown", "WorkersStarting")


def test_workers_of_an_older_version_count_topics_without_naming_them() -> None:
    assert status_of(a_mirror(replicas=2), a_report(), a_report(topics=None)).topics == 3


@pytest.mark.parametrize(
    ("ready", "reports", "words"),
    [(1, 2, "1 of 2 workers are ready"), (2, 0, "no worker with the present spec has reported yet")],
)
def test_workers_start_until_all_are_ready_and_one_has_reported(ready: int, reports: int, words: str) -> None:
    workers = Workers(2, ready, tuple(a_report() for _ in range(reports)))
    status = plan.status_of(a_mirror(replicas=2), workers, NOW)
    ready_condition = (status.conditions or ())[0]
    assert ready_condition.message == words
    assert ready_condition.reason == "WorkersStarting"


def test_a_failure_of_the_past_is_forgotten_when_all_workers_are_ready() -> None:
    status = plan.status_of(a_mirror(), Workers(1, 1, (a_report(),), "pod-0: boom"), NOW)
    assert conditions(status)["Ready"] == ("True", "Mirroring")


def test_an_unreachable_source_is_said_and_heals() -> None:
    mirror = a_mirror()
    status = status_of(mirror, a_report(reachable=False, error="connection refused"), ready=0)
    assert conditions(status)["SourceReachable"] == ("False", "SourceUnreachable")
    assert conditions(status)["Ready"] == ("False", "SourceUnreachable")
    assert "west: connection refused" in {entry.message for entry in status.conditions or ()}
    healed = status_of(msgspec.structs.replace(mirror, status=status), a_report())
    assert conditions(healed)["Ready"] == ("True", "Mirroring")


def test_workers_that_say_nothing_yet() -> None:
    status = plan.status_of(a_mirror(), Workers(1, 0, ()), NOW)
    assert status.topics is None
    assert status.lag is None
    assert conditions(status) == {
        "Ready": ("False", "WorkersStarting"),
        "CaughtUp": ("Unknown", "WorkersStarting"),
        "SourceReachable": ("Unknown", "WorkersStarting"),
        "Degraded": ("Unknown", "WorkersStarting"),
    }


def test_a_worker_that_refuses_says_why() -> None:
    status = plan.status_of(a_mirror(), Workers(1, 0, (), "pod-1: source and target are one cluster"), NOW)
    assert conditions(status)["Ready"] == ("False", "WorkerFailed")
    assert (status.conditions or ())[0].message == "pod-1: source and target are one cluster"


def test_a_refused_mirror_keeps_what_was_last_seen_of_its_workers() -> None:
    mirror = a_mirror()
    mirror = msgspec.structs.replace(mirror, status=status_of(mirror, a_report(5, 2)))
    status = plan.refused_status(mirror, Problem(Reason.MIRROR_LOOP, "round and round"), NOW)
    assert (status.lag, status.topics) == (Lag(records=5, seconds=2), 3)
    assert conditions(status)["Ready"] == ("False", "MirrorLoop")
    assert conditions(status)["SourceReachable"] == ("Unknown", "MirrorLoop")
    assert conditions(status)["CaughtUp"] == ("Unknown", "MirrorLoop")


def test_no_workers_wanted() -> None:
    assert conditions(plan.status_of(a_mirror(replicas=0), Workers(), NOW))["Ready"] == ("False", "NoWorkers")
