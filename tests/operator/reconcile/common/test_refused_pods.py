"""The status of a Cluster whose pods Kubernetes refuses."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.in_memory import in_memory
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models.conditions import Reason
from millstream_operator.reconcile.common.refused_pods import explain_refusal, why_no_pods

WORDS = "create Pod east-brokers-0 in StatefulSet east-brokers failed error: "


def stateful_set(replicas: int = 3, there: int = 0, *init: str) -> dict[str, Any]:
    pod_spec = {"initContainers": [{"name": name} for name in init], "containers": []}
    return {
        "kind": "StatefulSet",
        "metadata": {"name": "east-brokers", "namespace": "ns", "uid": "u-sts"},
        "spec": {"replicas": replicas, "template": {"spec": pod_spec}},
        "status": {"replicas": there},
    }


def event(name: str, message: str, at: str, **more: Any) -> dict[str, Any]:
    about = {"uid": "u-sts"}
    return {
        "kind": "Event",
        "metadata": {"name": name, "namespace": "ns"},
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": at,
        **more,
    }


@pytest.mark.parametrize(
    ("why", "init", "words"),
    [
        ('violates PodSecurity "restricted": runAsUser=0', ("volume-owner",), "volume-owner is root: choose"),
        ('violates PodSecurity "restricted:latest": seccomp', (), "change what refuses it, or the Cluster"),
        (
            "unable to validate against any security context constraint: []",
            (),
            "set operator.userIds=Assigned",
        ),
        ("exceeded quota: small, requested: pods=1", (), "raise the namespace's ResourceQuota"),
        ("admission webhook\n  denied the request", (), "admission webhook denied the request; change what"),
    ],
)
def test_a_refusal_in_one_line_with_the_next_step(why: str, init: tuple[str, ...], words: str) -> None:
    said = explain_refusal(stateful_set(3, 0, *init), WORDS + why)
    assert said.startswith("Kubernetes refuses pod east-brokers-0: ")
    assert words in said
    assert "\n" not in said


def test_the_latest_one_counts() -> None:
    found = in_memory(
        event("b", f"{WORDS}later", "2026-11-22T08:00:00Z"),
        event("a", f"{WORDS}earlier", "2026-11-22T07:00:00Z"),
        event("c", f"{WORDS}another", "2026-11-22T09:00:00Z", involvedObject={"uid": "u-other"}),
    )
    problem = why_no_pods(found.services, stateful_set())
    assert problem is not None
    assert problem.reason is Reason.PODS_REFUSED
    assert "pod east-brokers-0: later;" in problem.message


def test_nothing_is_said_of_pods_that_are_there() -> None:
    found = in_memory(event("a", f"{WORDS}no", "2026-11-22T08:00:00Z"))
    assert why_no_pods(found.services, stateful_set(3, 3)) is None
    assert why_no_pods(found.services, None) is None
    assert why_no_pods(in_memory().services, stateful_set()) is None


def test_an_operator_that_may_not_read_events_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_memory()

    def refuse(*_: str) -> Any:
        raise KubeError(403, "Forbidden", "events is forbidden")

    monkeypatch.setattr(found.kube, "events_about", refuse)
    assert why_no_pods(found.services, stateful_set()) is None
