"""MirrorMaker: what is refused, what the status says, what the workers are."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from millstream_operator.conditions import Reason
from millstream_operator.models import Lag, MirrorMaker, MirrorMakerStatus, decode_as
from millstream_operator.reconcile import mirror as plan
from millstream_operator.reconcile.mirror import GapReport, SourceReport, WorkerLag, WorkerReport, Workers
from millstream_operator.reconcile.mirror_workers import ask, ask_all
from millstream_operator.reconcile.problem import Problem
from millstream_operator.resources import mirror as resources
from millstream_operator.resources.images import Images
from millstream_operator.resources.mirror import Endpoint
from millstream_operator.resources.volumes import UserIds

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
BOOTSTRAPS = {f"prod/{name}": f"{name}-bootstrap.prod.svc:9092" for name in ("west", "east", "north")}


def a_mirror(name: str = "west-to-east", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> MirrorMaker:
    return decode_as(
        MirrorMaker,
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "MirrorMaker",
            "metadata": {"name": name, "namespace": "prod", "uid": f"u-{name}", "creationTimestamp": created},
            "spec": {
                "sources": [{"name": "west", "clusterRef": {"name": "west"}}],
                "target": {"clusterRef": {"name": "east"}},
                "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
                **spec,
            },
        },
    )


def check(mirror: MirrorMaker) -> str:
    problem = plan.check(mirror, *plan.endpoints_of(mirror, BOOTSTRAPS))
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
    assert plan.same_cluster(here, same)
    assert not plan.same_cluster(here, other)


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
        others = [(other, *plan.endpoints_of(other, BOOTSTRAPS))]
        problem = plan.check_loop(mirror, *plan.endpoints_of(mirror, BOOTSTRAPS), others)
        assert problem is None or problem.reason is Reason.MIRROR_LOOP
        return problem is not None

    assert found(younger, older) is refused
    assert not found(older, younger)
    assert not found(older, older)


def loop(mirror: MirrorMaker, *others: MirrorMaker) -> str:
    known = [(other, *plan.endpoints_of(other, BOOTSTRAPS)) for other in others]
    problem = plan.check_loop(mirror, *plan.endpoints_of(mirror, BOOTSTRAPS), known)
    return problem.message if problem else ""


def back(name: str = "back", **more: Any) -> MirrorMaker:
    """The other way round."""
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
    """Two that mirror back and forth are seen by the workers."""
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
    """Each two of them share a topic, all three do not."""
    first = way("first", "west", "east", "2025-01-01T00:00:00Z", topics={"include": ["a", "b"]})
    second = way("second", "east", "north", "2025-02-01T00:00:00Z", topics={"include": ["b", "c"]})
    third = way("third", "north", "west", "2025-03-01T00:00:00Z", topics={"include": ["c", "a"]})
    assert loop(third, second, first) == ""


def test_the_workers_file() -> None:
    mirror = a_mirror(naming="Prefixed")
    assert resources.mirror_file(mirror, *plan.endpoints_of(mirror, BOOTSTRAPS)) == {
        "name": "west-to-east",
        "namespace": "prod",
        "sources": [{"name": "west", "bootstrap": "west-bootstrap.prod.svc:9092"}],
        "target": {"bootstrap": "east-bootstrap.prod.svc:9092"},
        "topics": {"include": ["orders.*"], "exclude": ["orders-test"]},
        "mode": "Aggregate",
        "naming": "Prefixed",
        "onGap": "SkipToEarliest",
        "http": "0.0.0.0:9404",
    }
    following = a_mirror(groups={"include": [".*"], "exclude": ["test"]}, onGap="Stop")
    file = resources.mirror_file(following, *plan.endpoints_of(following, BOOTSTRAPS))
    assert (file["groups"], file["onGap"]) == ({"include": [".*"], "exclude": ["test"]}, "Stop")
    assert resources.specified(file)["groups"] == file["groups"]


def test_the_workers_are_a_deployment_of_restricted_pods_that_rolls_with_the_file() -> None:
    mirror = a_mirror(replicas=3)
    file = resources.mirror_file(mirror, *plan.endpoints_of(mirror, BOOTSTRAPS))
    images = Images(broker="registry.example/broker:1", pull_policy="Always")
    deployment = resources.deployment(mirror, file, images)
    assert deployment["metadata"]["name"] == "west-to-east-mirror"
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == "u-west-to-east"
    assert deployment["spec"]["replicas"] == 3
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assigned = dataclasses.replace(images, user_ids=UserIds.ASSIGNED)
    context = resources.deployment(mirror, file, assigned)["spec"]["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/broker:1"
    assert container["command"] == ["millstream-mirror", "/etc/millstream/mirror.json"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert json.loads(resources.config_map(mirror, file)["data"]["mirror.json"]) == file
    other = resources.deployment(mirror, {**file, "naming": "Prefixed"}, images)["spec"]["template"]
    assert other["metadata"]["annotations"] != template["metadata"]["annotations"]


TOPICS = ("orders", "orders-eu", "orders-us")


def a_report(
    records: int = 0,
    seconds: float = 0,
    reachable: bool = True,
    error: str = "",
    topics: tuple[str, ...] | None = TOPICS,
) -> WorkerReport:
    lag = WorkerLag(records, seconds)
    return WorkerReport(3, lag, (SourceReport("west", reachable, 3, topics, lag, error),))


def status_of(mirror: MirrorMaker, *reports: WorkerReport, ready: int | None = None) -> MirrorMakerStatus:
    workers = Workers(len(reports), len(reports) if ready is None else ready, reports)
    return plan.status_of(mirror, workers, NOW)


def conditions(status: MirrorMakerStatus) -> dict[str, tuple[str, str]]:
    return {entry.type: (entry.status, entry.reason) for entry in status.conditions or ()}


def test_workers_shares_add_up() -> None:
    status = status_of(
        a_mirror(replicas=2), a_report(5, 2), a_report(7, 89.3, topics=(*TOPICS, "orders-more"))
    )
    assert status.topics == 4  # a topic has partitions with many workers
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
        source = SourceReport("west", True, 1, ("orders",), gaps=gaps)
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
        " spec.onGap: SkipToEarliest to go on with what there is"
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
    assert (status.conditions or ())[0].message == "1 worker mirrors 3 topics"
    assert conditions(status)["SourceReachable"] == ("Unknown", "WorkersStarting")


def test_workers_of_an_older_version_count_topics_without_naming_them() -> None:
    assert status_of(a_mirror(replicas=2), a_report(), a_report(topics=None)).topics == 3


@pytest.mark.parametrize(("ready", "reports"), [(1, 2), (2, 0)])
def test_workers_start_until_all_are_ready_and_one_has_reported(ready: int, reports: int) -> None:
    workers = Workers(2, ready, tuple(a_report() for _ in range(reports)))
    status = plan.status_of(a_mirror(replicas=2), workers, NOW)
    ready_condition = (status.conditions or ())[0]
    assert ready_condition.message == f"{ready} of 2 workers are ready"
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


@contextmanager
def a_worker(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/status"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_workers_are_asked_and_those_that_do_not_answer_are_left_out() -> None:
    said = {
        "topics": 2,
        "lag": {"records": 4, "seconds": 0.013},
        "member": "m",
        "sources": [{"name": "west"}],
    }
    with (
        a_worker(json.dumps(said).encode()) as good,
        a_worker(b"nonsense") as bad,
        a_worker(b"{}", 503) as starting,
    ):
        (report,) = ask_all([good, bad, starting])
        closed = good
    assert (report.topics, report.lag.records) == (2, 4)
    assert report.sources[0].reachable is False
    assert ask(closed) is None


@contextmanager
def a_flood(head: bytes, part: bytes, pause_s: float) -> Iterator[str]:
    """A pod with the labels of a worker whose answer has no end."""

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            connection.sendall(head)
            while not ended.wait(pause_s):
                connection.sendall(part)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("head", "part", "pause_s"),
    [(HEAD, b"a", 0.1), (HEAD + b"\r\n", b" ", 0.1), (HEAD + b"\r\n", b" " * (1 << 20), 0.0)],
    ids=["slow head", "slow", "long"],
)
@pytest.mark.timeout(60)
def test_an_answer_without_end_holds_nobody(head: bytes, part: bytes, pause_s: float) -> None:
    with a_flood(head, part, pause_s) as address:
        assert ask(address) is None
