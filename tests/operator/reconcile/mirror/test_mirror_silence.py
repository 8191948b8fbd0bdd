"""A MirrorMaker's status while workers do not answer, or there are none: what they told before is not forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream_harness.in_memory import InMemory, in_memory, stored
from millstream_harness.manifests import cluster, resource
from millstream_harness.mirror_maker import a_mirror
from millstream_operator.local import mirrors as local
from millstream_operator.models import MirrorMaker, MirrorMakerStatus, decode_as
from millstream_operator.models.conditions import Condition
from millstream_operator.models.mirror import SetAside
from millstream_operator.models.mirror_reports import (
    GapReport,
    ProblemReport,
    SourceReport,
    WorkerReport,
    Workers,
)
from millstream_operator.reconcile.mirror import apply
from millstream_operator.reconcile.mirror import deployment as mirror_deployment
from millstream_operator.reconcile.mirror import plan as plan
from millstream_operator.resources.mirror import CONFIG_HASH, selector

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 21, 8, 5, tzinfo=UTC)
SILENT = "1 of 2 workers did not answer"
WELL = SourceReport("west", True, 1, ("orders",), partitions=2, wanted=4)
STOPPED = msgspec.structs.replace(WELL, gaps=(GapReport("orders-0", 0, 5, True),))
DIVERGED = msgspec.structs.replace(WELL, problems=(ProblemReport("Diverged", "orders-0: two histories"),))
NORTH = msgspec.structs.replace(WELL, name="north")
REJOINING = msgspec.structs.replace(WELL, problems=(ProblemReport("Rejoining", "orders: is no replica yet"),))


def two(*sources: SourceReport) -> Workers:
    """Two ready workers, of which these report."""
    reports = tuple(WorkerReport(sources=(one,)) for one in sources)
    return Workers(2, 2, reports, silent=2 - len(reports))


def after(mirror: MirrorMaker, *looks: Workers) -> MirrorMakerStatus:
    """The status after looks one after the other, the last one later."""
    for number, seen in enumerate(looks):
        now = LATER if number == len(looks) - 1 else NOW
        mirror = msgspec.structs.replace(mirror, status=plan.status_of(mirror, seen, now))
    return mirror.status


def conditions(status: MirrorMakerStatus) -> dict[str, Condition]:
    return {one.type: one for one in status.conditions or ()}


@pytest.mark.parametrize(("problem", "reason"), [(STOPPED, "StoppedAtGap"), (DIVERGED, "Diverged")])
@pytest.mark.parametrize("answering", [(WELL,), ()])
def test_a_problem_stays_while_its_worker_is_silent(
    problem: SourceReport, reason: str, answering: tuple[SourceReport, ...]
) -> None:
    """It keeps its time, too, so that no alert starts over."""
    mirror = a_mirror(replicas=2)
    before = conditions(after(mirror, two(WELL, problem)))
    found = conditions(after(mirror, two(WELL, problem), two(*answering), two(*answering)))
    for kind in ("Degraded", "Ready"):
        assert before[kind].reason == reason
        assert msgspec.structs.replace(found[kind], last_transition_time="") == msgspec.structs.replace(
            before[kind], last_transition_time=""
        )
        assert found[kind].last_transition_time == "2026-11-21T08:00:00Z"
    healed = conditions(after(mirror, two(WELL, problem), two(*answering), two(WELL, WELL)))
    assert (healed["Degraded"].status, healed["Ready"].status) == ("False", "True")


def test_a_mirror_that_was_well_stays_so_but_its_lag_is_unknown() -> None:
    status = after(a_mirror(replicas=2), two(WELL, WELL), two(WELL))
    found = conditions(status)
    assert (found["Degraded"].status, found["Degraded"].reason) == ("False", "NothingMissing")
    assert (found["Ready"].status, found["Ready"].reason) == ("True", "Mirroring")
    caught_up = found["CaughtUp"]
    assert (caught_up.status, caught_up.reason, caught_up.message) == ("Unknown", "WorkersStarting", SILENT)
    assert status.lag is None
    assert [one.lag for one in status.sources or ()] == [None]


def test_another_workers_problem_is_said() -> None:
    found = conditions(after(a_mirror(replicas=2), two(WELL, STOPPED), two(DIVERGED)))
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", "Diverged")


@pytest.mark.parametrize("reason", ["WorkersStarting", "of another release"])
def test_without_anything_known_nothing_is_claimed(reason: str) -> None:
    mirror = a_mirror(replicas=2)
    status = "Unknown" if reason == "WorkersStarting" else "False"
    known = Condition(
        type="Degraded",
        status=status,
        reason=reason,
        message="old",
        last_transition_time="2026-11-21T07:00:00Z",
    )
    for before in (mirror.status, MirrorMakerStatus(conditions=(known,))):
        found = conditions(after(msgspec.structs.replace(mirror, status=before), two(WELL)))["Degraded"]
        assert (found.status, found.reason, found.message) == ("Unknown", "WorkersStarting", SILENT)


def test_nobody_answers() -> None:
    found = conditions(after(a_mirror(), Workers(1, 1, (), silent=1)))
    words = "1 of 1 worker did not answer"
    assert {one.message for one in found.values()} == {words}
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "WorkersStarting")


def test_a_topic_of_a_silent_worker_has_not_rejoined() -> None:
    """Ready tells when a mirror may be promoted to fail back."""
    mirror = a_mirror(replicas=2, mode="Identity", rejoin={"requestId": "back"})
    found = conditions(after(mirror, two(WELL, REJOINING), two(WELL)))["Ready"]
    assert (found.status, found.reason, found.message) == (
        "False",
        "Rejoining",
        "orders: is no replica yet",
    )
    found = conditions(after(mirror, two(WELL)))["Ready"]
    assert (found.status, found.reason, found.message) == ("False", "WorkersStarting", SILENT)
    assert conditions(after(mirror, two(WELL, WELL), two(WELL)))["Ready"].status == "True"


def aside(topic: str, partition: int = 0, records: int = 3) -> SetAside:
    return SetAside(topic=topic, partition=partition, records=records, copied_to=f"{topic}.set-aside")


LISTED = (aside("orders"), aside("orders", 1), aside("payments"))


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        (Workers(), LISTED),
        (two(WELL), LISTED),
        (two(NORTH, NORTH), LISTED),
        (two(WELL, WELL), None),
        (two(WELL, msgspec.structs.replace(WELL, promoted=("payments",))), LISTED[2:]),
        (two(WELL, msgspec.structs.replace(WELL, set_aside=LISTED[:1], promoted=("payments",))), LISTED[::2]),
        (two(msgspec.structs.replace(WELL, set_aside=(aside("orders", 1, 9),))), (
            LISTED[0], aside("orders", 1, 9), LISTED[2],
        )),
    ],
    ids=["no workers", "silent", "of another source", "none any more", "promoted", "both", "newer"],
)  # fmt: skip
def test_what_was_set_aside_stays_while_no_worker_can_report_it(
    seen: Workers, left: tuple[SetAside, ...] | None
) -> None:
    mirror = a_mirror(replicas=0 if not seen.replicas else 2)
    told = two(WELL, msgspec.structs.replace(WELL, set_aside=LISTED))
    (source,) = after(mirror, told, seen).sources or ()
    assert source.set_aside == left


def test_the_list_of_what_was_set_aside_is_bounded() -> None:
    told = two(WELL, msgspec.structs.replace(WELL, set_aside=tuple(aside("orders", n) for n in range(100))))
    more = two(msgspec.structs.replace(WELL, set_aside=(aside("invoices"),)))
    (source,) = after(a_mirror(replicas=2), told, more).sources or ()
    assert source.set_aside == (aside("invoices"), *(aside("orders", n) for n in range(99)))


def test_a_mirror_that_is_scaled_to_zero_waits_for_no_workers() -> None:
    found = conditions(after(a_mirror(replicas=0), Workers()))
    words = "spec.replicas is 0: the mirror is scaled to zero"
    for kind in ("Ready", "CaughtUp", "SourceReachable", "Degraded"):
        status = "False" if kind == "Ready" else "Unknown"
        assert (found[kind].status, found[kind].reason, found[kind].message) == (status, "NoWorkers", words)


def test_workers_of_a_paused_mirror_are_shown_although_it_is_to_have_none() -> None:
    found = conditions(after(a_mirror(replicas=0), two(WELL, DIVERGED)))
    assert (found["Ready"].reason, found["Degraded"].reason) == ("NoWorkers", "Diverged")


def pod(number: int, *, ready: bool = True, config: str = "", gone: bool = False) -> dict[str, Any]:
    mirror = decode_as(MirrorMaker, KUBERNETES)
    metadata: dict[str, Any] = {"namespace": "ns", "name": f"pod-{number}", "labels": selector(mirror)}
    if gone:
        metadata["deletionTimestamp"] = "2026-11-22T08:00:00Z"
    if config:
        metadata["annotations"] = {CONFIG_HASH: config}
    state = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"podIP": f"10.0.0.{number}", "conditions": state}
    return {"kind": "Pod", "metadata": metadata, "status": status}


CLUSTERS = [stored(cluster(name)) for name in ("west", "east")]
KUBERNETES = stored(
    resource(
        "MirrorMaker",
        "copy",
        sources=[{"name": "west", "clusterRef": {"name": "west"}}],
        target={"clusterRef": {"name": "east"}},
        topics={"include": ["orders.*"]},
        replicas=2,
    )
)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({}, SILENT),
        ({"ready": False}, ""),
        ({"gone": True}, ""),
        ({"config": "of the spec before"}, ""),
    ],
    ids=["ready", "not ready", "ending", "another configuration"],
)
def test_only_ready_workers_with_the_present_configuration_are_expected_to_answer(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], words: str
) -> None:
    """The second pod does not answer."""
    answers = {"10.0.0.1:9404": WorkerReport(sources=(msgspec.structs.replace(WELL, partitions=4),))}

    def ask_all(addresses: Iterable[str]) -> tuple[WorkerReport, ...]:
        return tuple(answers[one] for one in addresses if one in answers)

    def look() -> None:
        apply.reconcile_mirror(
            found.services, decode_as(MirrorMaker, found.kube.objects["MirrorMaker", "copy"])
        )

    monkeypatch.setattr(mirror_deployment, "ask_all", ask_all)
    found: InMemory = in_memory(*CLUSTERS, KUBERNETES, pod(1), pod(2, **other))
    look()
    deployment = found.kube.objects["Deployment", "copy-mirror"]
    deployment["status"] = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}
    for number in (1, 2):
        found.kube.objects["Pod", f"pod-{number}"]["metadata"].setdefault(
            "annotations", dict(deployment["spec"]["template"]["metadata"]["annotations"])
        )
    look()
    status, _, message = found.condition("MirrorMaker", "copy", "CaughtUp") or ("", "", "")
    assert (status, message) == (("Unknown", words) if words else ("True", "at most 10 seconds behind"))
    # A worker that is not ready yet may answer for itself, not for a silent one.
    if other == {"ready": False}:
        answers["10.0.0.2:9404"] = answers.pop("10.0.0.1:9404")
        look()
        assert (found.condition("MirrorMaker", "copy", "CaughtUp") or ("", "", ""))[2] == SILENT


def test_a_local_worker_that_does_not_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = [
        SimpleNamespace(serves=True, alive=True, ready=ready)
        for ready in ({"http": "a:1"}, {"http": "b:1"}, {})
    ]
    state = SimpleNamespace(daemons={f"mirror/prod/copy/{number}": one for number, one in enumerate(daemons)})
    monkeypatch.setattr(local, "ask_all", lambda addresses: (WorkerReport(),) * (len(list(addresses)) - 1))
    mirror: Any = SimpleNamespace(state=state, prefix="mirror/prod/copy/")
    assert local.LocalMirror.workers(mirror).silence == SILENT
