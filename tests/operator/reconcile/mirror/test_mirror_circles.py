"""MirrorMakers that would loop or duplicate records, or share an older one's progress, are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millstream_harness.mirror_maker import BOOTSTRAPS, a_mirror
from millstream_operator.models import MirrorMaker
from millstream_operator.models.conditions import Reason
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.mirror import plan as plan
from millstream_operator.reconcile.mirror import rules as mirror_rules
from millstream_operator.resources.mirror import Endpoint

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def check(mirror: MirrorMaker) -> str:
    problem = mirror_rules.check(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS))
    assert problem is None or problem.reason is Reason.SAME_CLUSTER
    return problem.message if problem else ""


def test_two_clusters_may_be_mirrored() -> None:
    assert check(a_mirror()) == ""


@pytest.mark.parametrize(
    "target",
    [
        {"clusterRef": {"name": "west"}},
        {"clusterRef": {"name": "west", "namespace": "prod"}},
        {"bootstrap": "west-bootstrap.prod.svc:9092"},
        {"bootstrap": "other:9092,WEST-bootstrap.prod.svc.cluster.local.:9092"},
    ],
)
def test_a_source_that_is_the_target_is_refused(target: dict[str, Any]) -> None:
    assert check(a_mirror(target=target)).startswith("spec.target: is the source west (")


def test_addresses_of_one_machine_are_told_apart_by_port() -> None:
    here, same, other = (Endpoint("x", b) for b in ("localhost:9092", "127.0.0.1:9092", "127.0.0.1:9093"))
    assert mirror_rules.same_cluster(here, same)
    assert not mirror_rules.same_cluster(here, other)


def test_sources_that_are_one_cluster_are_refused() -> None:
    sources = [
        {"name": "west", "clusterRef": {"name": "west"}},
        {"name": "again", "bootstrap": BOOTSTRAPS["prod/west"]},
    ]
    assert check(a_mirror(sources=sources)).startswith("spec.sources: west and again are one cluster")


def test_prefixed_copies_in_the_same_cluster_must_not_be_mirrored_again() -> None:
    west = {"clusterRef": {"name": "west"}}
    assert check(a_mirror(target=west, naming="Prefixed")) == ""
    everything = a_mirror(target=west, naming="Prefixed", topics={"include": [".*"]})
    assert "add west[.].* to spec.topics.exclude" in check(everything)
    excluded = a_mirror(target=west, naming="Prefixed", topics={"include": [".*"], "exclude": ["west[.].*"]})
    assert check(excluded) == ""


@pytest.mark.parametrize(
    ("include", "naming", "refused"),
    [
        ("orders.*", "Same", True),
        ("orders", "Same", True),
        (r"orders\.eu", "Same", True),
        ("orders[.]eu", "Same", True),
        ("invoices.*", "Same", False),
        ("orders-test", "Same", False),
        ("orders.*", "Prefixed", False),
    ],
)
def test_the_younger_of_two_mirrors_in_a_circle_is_refused(include: str, naming: str, refused: bool) -> None:
    older = a_mirror()
    younger = a_mirror(
        "east-to-west",
        created="2026-02-01T00:00:00Z",
        sources=[{"name": "east", "clusterRef": {"name": "east"}}],
        target={"clusterRef": {"name": "west"}},
        topics={"include": [include]},
        naming=naming,
    )

    def found(mirror: MirrorMaker, other: MirrorMaker) -> bool:
        others = [(other, *mirror_rules.endpoints_of(other, BOOTSTRAPS))]
        problem = mirror_rules.check_loop(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS), others)
        assert problem is None or problem.reason is Reason.MIRROR_LOOP
        return problem is not None

    assert found(younger, older) is refused
    assert not found(older, younger)
    assert not found(older, older)


def elsewhere(mirror: MirrorMaker, namespace: str = "other") -> MirrorMaker:
    metadata = msgspec.structs.replace(mirror.metadata, namespace=namespace, uid=f"u-{namespace}")
    return msgspec.structs.replace(mirror, metadata=metadata)


@pytest.mark.parametrize(
    ("name", "spec", "refused"),
    [
        ("west-to-east", {}, True),
        ("west-to-east", {"target": {"clusterRef": {"name": "north", "namespace": "prod"}}}, False),
        ("west-to-east", {"target": {"bootstrap": "east-bootstrap.prod.svc:9092"}}, True),
        ("west-to-east", {"target": {"bootstrap": "east-bootstrap:9092"}}, False),
        ("west-to-east", {"topics": {"include": ["others"]}}, True),
        ("west-to-east", {"sources": [{"name": "north", "bootstrap": "north:9092"}]}, False),
        ("other", {}, False),
        ("west-to-east.a", {}, False),
    ],
)
def test_the_younger_of_two_mirrors_with_one_group_is_refused(
    name: str, spec: dict[str, Any], refused: bool
) -> None:
    older = a_mirror()
    same_target = {"target": {"clusterRef": {"name": "east", "namespace": "prod"}}}
    sources = [{"name": "west", "bootstrap": "elsewhere:9092"}]
    younger = elsewhere(a_mirror(name, "2026-02-01T00:00:00Z", **{"sources": sources, **same_target, **spec}))
    known = [(one, *mirror_rules.endpoints_of(one, BOOTSTRAPS)) for one in (older, younger)]
    problem = mirror_rules.check_name(younger, known[1][2], known)
    assert (problem is not None) is refused
    if problem is not None:
        assert problem.reason is Reason.NAME_TAKEN
        assert problem.message == (
            "metadata.name: MirrorMaker west-to-east in namespace prod mirrors into the same target, and keeps its"
            " progress in the same group, millstream-mirror.west-to-east.west: create this one under another name"
        )
    assert mirror_rules.check_name(older, known[0][2], known) is None
    refused_one = msgspec.structs.replace(
        older, status=plan.refused_status(older, Problem(Reason.MIRROR_LOOP, "round"), NOW)
    )
    known[0] = (refused_one, *known[0][1:])
    assert mirror_rules.check_name(younger, known[1][2], known) is None, "nobody has the group"


@pytest.mark.parametrize(
    ("address", "other_address", "namespace", "refused"),
    [
        ("kafka.example:9093", "KAFKA.example.:9093,b.example:1", "other", True),
        ("10.0.0.7:9092", "10.0.0.7:9092", "other", True),
        ("kafka.data.svc.cluster.local:9092", "kafka.data:9092", "other", True),
        ("kafka.example:9093", "kafka.example:9092", "other", False),
        ("kafka:9092", "kafka:9092", "other", False),
        ("kafka:9092", "kafka:9092", "prod", True),
    ],
)
def test_an_address_means_one_target_unless_its_host_belongs_to_the_namespace(
    address: str, other_address: str, namespace: str, refused: bool
) -> None:
    older = a_mirror(
        "a", sources=[{"name": "b.c", "bootstrap": "west.example:9092"}], target={"bootstrap": address}
    )
    younger = a_mirror(
        "a.b",
        "2026-02-01T00:00:00Z",
        sources=[{"name": "c", "bootstrap": "west.example:9092"}],
        target={"bootstrap": other_address},
    )
    younger = elsewhere(younger, namespace)
    known = [(one, *mirror_rules.endpoints_of(one, {})) for one in (older, younger)]
    problem = mirror_rules.check_name(younger, known[1][2], known)
    assert (problem is not None and problem.reason is Reason.NAME_TAKEN) is refused
    assert mirror_rules.check_name(older, known[0][2], known) is None


def loop(mirror: MirrorMaker, *others: MirrorMaker) -> str:
    known = [(other, *mirror_rules.endpoints_of(other, BOOTSTRAPS)) for other in others]
    problem = mirror_rules.check_loop(mirror, *mirror_rules.endpoints_of(mirror, BOOTSTRAPS), known)
    return problem.message if problem else ""


def back(name: str = "back", **more: Any) -> MirrorMaker:
    """A mirror in the opposite direction."""
    sources = [{"name": "east", "clusterRef": {"name": "east"}}]
    return a_mirror(name, sources=sources, target={"clusterRef": {"name": "west"}}, **more)


def test_of_two_mirrors_made_at_once_one_goes_on() -> None:
    assert bool(loop(a_mirror(), back())) is not bool(loop(back(), a_mirror()))


def test_a_mirror_is_not_its_own_rival() -> None:
    itself = a_mirror(target={"clusterRef": {"name": "west"}})
    assert loop(itself, itself) == ""


def test_an_older_mirror_is_found_behind_others_that_are_none() -> None:
    prefixed = back("a", created="2025-01-01T00:00:00Z", naming="Prefixed")
    younger = back("b", created="2027-01-01T00:00:00Z")
    older = back("c", created="2025-01-01T00:00:00Z")
    assert "MirrorMaker c in namespace prod" in loop(a_mirror(), prefixed, younger, older)


def way(name: str, source: str, target: str, created: str, **more: Any) -> MirrorMaker:
    sources = [{"name": source, "clusterRef": {"name": source}}]
    return a_mirror(name, sources=sources, target={"clusterRef": {"name": target}}, created=created, **more)


def test_a_circle_of_three_is_closed_by_nobody() -> None:
    first = way("first", "west", "east", "2025-01-01T00:00:00Z")
    second = way("second", "east", "north", "2025-02-01T00:00:00Z")
    third = way("third", "north", "west", "2025-03-01T00:00:00Z")
    assert loop(third, second, first) == (
        "spec.topics: MirrorMakers first in namespace prod and second in namespace prod mirror the same topics from "
        "the target to north (such as orders): records would loop; allowed: other topics, or naming Prefixed"
    )
    assert loop(second, first, third) == loop(first, second, third) == ""
    other = way("second", "east", "north", "2025-02-01T00:00:00Z", topics={"include": ["others"]})
    assert loop(third, other, first) == ""
    prefixed = way("second", "east", "north", "2025-02-01T00:00:00Z", naming="Prefixed")
    assert loop(third, prefixed, first) == ""


@pytest.mark.parametrize(
    "pattern", ["[a-z]+-events", "orders-(eu|us)", "orders-[0-9]{3}", "(?i)orders", "orders$", "[[:alpha:]]+"]
)
def test_equal_patterns_share_a_topic(pattern: str) -> None:
    topics = {"include": [pattern]}
    assert "mirrors" in loop(
        a_mirror(topics=topics), back("older", created="2025-01-01T00:00:00Z", topics=topics)
    )


def test_patterns_share_a_topic_that_is_made_of_neither() -> None:
    older = back("older", created="2025-01-01T00:00:00Z", topics={"include": [".*-eu"]})
    assert "(such as orders-eu)" in loop(a_mirror(topics={"include": ["orders.*"]}), older)
    assert loop(a_mirror(topics={"include": ["orders.*"], "exclude": [".*-(eu|us)"]}), older) == ""


def test_what_cannot_be_compared_is_refused_and_says_how_to_be_explicit() -> None:
    topics = {"include": [r"\pL+"]}
    found = loop(a_mirror(topics=topics), back("older", created="2025-01-01T00:00:00Z", topics=topics))
    assert r"\pL+ cannot be compared with other patterns; list the names in include" in found
    assert loop(a_mirror(topics=topics), way("other", "east", "north", "2025-01-01T00:00:00Z")) == ""


def test_three_prefixed_mirrors_make_no_new_names_round_after_round() -> None:
    """The workers themselves detect two mirrors back and forth."""
    everything = {"topics": {"include": [".*"]}, "naming": "Prefixed"}
    first = way("first", "west", "east", "2025-01-01T00:00:00Z", **everything)
    second = way("second", "east", "north", "2025-02-01T00:00:00Z", **everything)
    third = way("third", "north", "west", "2025-03-01T00:00:00Z", **everything)
    assert "add east[.]west[.]north[.].* to spec.topics.exclude" in loop(third, second, first)
    there = way("there", "east", "west", "2025-01-01T00:00:00Z", **everything)
    assert loop(second, there, way("again", "north", "east", "2025-01-01T00:00:00Z", **everything)) == ""
    originals = {"topics": {"include": ["[a-z]+"]}, "naming": "Prefixed"}
    assert loop(way("third", "north", "west", "2025-03-01T00:00:00Z", **originals), second, first) == ""


def test_a_circle_needs_a_topic_that_goes_all_the_way() -> None:
    """Each two of them share a topic, but not all three."""
    first = way("first", "west", "east", "2025-01-01T00:00:00Z", topics={"include": ["a", "b"]})
    second = way("second", "east", "north", "2025-02-01T00:00:00Z", topics={"include": ["b", "c"]})
    third = way("third", "north", "west", "2025-03-01T00:00:00Z", topics={"include": ["c", "a"]})
    assert loop(third, second, first) == ""
