"""Reports of a reconcile: problems and conditions in a status."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.in_memory import NOW, in_memory, stored
from millstream_harness.manifests import topic
from millstream_operator.models import Topic, decode_as
from millstream_operator.models.conditions import ConditionType, Reason
from millstream_operator.models.problem import Problem, conditions_with, is_paused, replace_ready
from millstream_operator.reconcile.common.report import report_problem

BEFORE = "2026-01-01T00:00:00Z"


def a_condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "Old", "message": "old", "lastTransitionTime": BEFORE}


@pytest.mark.parametrize(("value", "paused"), [("true", True), ("false", False), ("", False)])
def test_only_true_pauses(value: str, paused: bool) -> None:
    annotated = stored(topic("flights"), annotations={"millstream.dev/paused": value})
    assert is_paused(decode_as(Topic, annotated)) is paused
    assert not is_paused(decode_as(Topic, stored(topic("flights"))))


def test_conditions_are_set_and_dropped_and_the_rest_stays() -> None:
    status = {"conditions": [a_condition(kind) for kind in ("Ready", "Lagging", "Warning")]}
    resource = decode_as(Topic, stored(topic("flights"), status))
    said = (ConditionType.REBALANCING, True, Reason.REASSIGNING, "1 of 2")
    found = conditions_with(resource, said, now=NOW, without=(ConditionType.LAGGING,))
    assert [(one.type, one.message, one.observed_generation) for one in found] == [
        ("Ready", "old", None),
        ("Rebalancing", "1 of 2", 2),
        ("Warning", "old", None),
    ]


@pytest.mark.parametrize("before", [(), ("Paused",)])
def test_every_look_says_whether_the_resource_is_paused(before: tuple[str, ...]) -> None:
    status = {"conditions": [a_condition(kind) for kind in before]}
    for has, shown in (({"millstream.dev/paused": "true"}, ["Ready", "Paused"]), ({}, ["Ready"])):
        resource = decode_as(Topic, stored(topic("flights"), status, annotations=has))
        said = (ConditionType.READY, True, Reason.TOPIC_READY, "fine")
        assert [one.type for one in conditions_with(resource, said, now=NOW)] == shown


def test_a_problem_leaves_the_rest_of_the_status_as_it_was() -> None:
    status = {"partitions": 3, "observedGeneration": 1, "conditions": [a_condition("Warning")]}
    manifest = stored(topic("flights"), status)
    found = in_memory(manifest)
    problem = Problem(Reason.CLUSTER_NOT_READY, "nobody listens")
    assert report_problem(found.services, decode_as(Topic, manifest), problem, 7.0) == 7.0
    shown = found.status("Topic", "flights")
    assert (shown["partitions"], shown["observedGeneration"]) == (3, 2)
    assert [one["type"] for one in shown["conditions"]] == ["Ready", "Warning"]
    assert found.condition("Topic", "flights") == ("False", "ClusterNotReady", "nobody listens")


def test_a_resource_that_cannot_be_decoded_keeps_what_can_be_read_of_its_status() -> None:
    status = {
        "partitions": 3,
        "conditions": [{"type": "Broken"}, a_condition("Ready"), a_condition("Paused")],
    }
    after = replace_ready(status, Reason.INVALID_SPEC, "spec: no", 4, NOW)
    assert (after["partitions"], after["observedGeneration"]) == (3, 4)
    ready, paused = after["conditions"]
    assert (ready["type"], ready["status"], ready["message"]) == ("Ready", "False", "spec: no")
    assert paused == a_condition("Paused")


@pytest.mark.parametrize("status", [{}, {"conditions": None}])
def test_a_status_without_conditions_gets_one(status: dict[str, Any]) -> None:
    (ready,) = replace_ready(status, Reason.INVALID_SPEC, "spec: no", 1, NOW)["conditions"]
    assert ready["reason"] == "InvalidSpec"
