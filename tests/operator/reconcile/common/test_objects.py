"""When an object counts as converged; then nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.in_memory import MemoryKube
from millstream_operator.reconcile.common.objects import (
    APPLIED,
    NotOurs,
    contains,
    create,
    delete,
    ensure,
    find,
    with_hash,
)

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": {}}, True),
        ({"cpu": "500m"}, {"cpu": "0.5"}, True),
        ({"x": True}, {"x": 1}, True),
        ({"x": "1"}, {"x": "2"}, False),
        ({"l": [{"name": "a", "x": 1, "y": 1}, {"name": "b"}]}, {"l": [{"name": "a", "x": 1}]}, True),
        ({"l": [{"name": "a"}]}, {"l": [{"name": "b"}]}, False),
        ({"l": ["a", "b"]}, {"l": ["a"]}, False),
        ({"l": []}, {"l": ["a"]}, False),
        ({"l": ["a"]}, {"l": ["b"]}, False),
        ({"l": [{"port": 1}]}, {"l": [{"port": 1}]}, True),
        ({"l": [{"port": 1}]}, {"l": [{"port": 2}]}, False),
        ({"a": "x"}, {"a": {}}, False),
        ({"a": "x"}, {"a": {"b": None}}, False),
        ({}, {"a": {"b": 1}}, False),
        ({}, {"l": []}, True),
        ({"l": "x"}, {"l": []}, False),
        ({}, {"l": ["a"]}, False),
        ({"x": True}, {"x": "1"}, False),
        ({"x": None}, {"x": 1}, False),
        (
            {"l": [{"name": "a", "x": 1}, {"name": "a", "x": 2}]},
            {"l": [{"name": "a", "x": 1}, {"name": "a", "x": 2}]},
            True,
        ),
        (
            {"l": [{"name": "a", "x": 1}, {"name": "a", "x": 2}]},
            {"l": [{"name": "a", "x": 1}, {"name": "a", "x": 3}]},
            False,
        ),
        ({}, {"value": ""}, True),
        ({"value": "x"}, {"value": ""}, False),
        ({}, {"hostNetwork": False}, True),
        ({"hostNetwork": True}, {"hostNetwork": False}, False),
        ({}, {"allowPrivilegeEscalation": False}, False),
    ],
)
def test_contains(live: object, wanted: object, same: bool) -> None:
    assert contains(live, wanted) is same


def test_a_field_that_we_no_longer_set_changes_the_hash() -> None:
    base = {"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}}
    live = with_hash(base)
    assert contains(live, with_hash(base))
    assert not contains(live, with_hash({"metadata": {"name": "x"}, "spec": {"a": 1}}))
    assert APPLIED in live["metadata"]["annotations"]


def test_an_update_of_the_operator_recognizes_what_an_earlier_one_applied() -> None:
    service = {
        "kind": "Service",
        "metadata": {"name": "x", "annotations": {"a": "b"}},
        "spec": {"b": 1, "a": [2]},
    }
    assert with_hash(service)["metadata"]["annotations"] == {"a": "b", APPLIED: "52209b25cdd73821"}
    turned = {key: service[key] for key in ("spec", "metadata", "kind")}
    assert with_hash(turned) == with_hash(service)


OWNER = {"kind": "Cluster", "name": "east", "uid": "u-east"}


def service(*owners: dict[str, str], **metadata: Any) -> dict[str, Any]:
    known = {"namespace": "ns", "name": "x", **({"ownerReferences": list(owners)} if owners else {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {**known, **metadata}, "spec": {"a": 1}}


SERVICE = service(OWNER, uid="s")


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (
            service(labels={"app.kubernetes.io/managed-by": "millstream-operator"}),
            "exists and does not belong to this Cluster: delete it, or give the Cluster another name; "
            "it was not changed",
        ),
        (service({**OWNER, "uid": "other", "name": "west"}), "exists and does not belong to this Cluster"),
        (
            service({**OWNER, "uid": "earlier"}),
            "still belongs to an earlier Cluster east, which was deleted: waiting for Kubernetes to delete it too",
        ),
    ],
    ids=["nobody's", "another's", "a namesake's"],
)
def test_what_belongs_to_somebody_else_is_left_alone(live: dict[str, Any], words: str) -> None:
    kube = MemoryKube(live)
    for touch in (find, ensure, create):
        with pytest.raises(NotOurs, match=f"^Service x {words}"):
            touch(kube, SERVICE)
    delete(kube, SERVICE)
    assert (kube.applied, kube.deleted) == ([], [])


def test_what_several_own_is_ours_too() -> None:
    kube = MemoryKube(service({**OWNER, "uid": "other"}, OWNER))
    assert find(kube, SERVICE) is not None
    delete(kube, SERVICE)
    assert kube.deleted == [("Service", "x")]


def test_what_resources_share_is_known_by_its_label() -> None:
    ours = {"app.kubernetes.io/managed-by": "millstream-operator"}
    with pytest.raises(NotOurs, match=r"^Service x exists and was not made by this operator: "):
        ensure(MemoryKube(service(labels={"app": "theirs"})), service(labels=ours))
    assert find(MemoryKube(service(labels=ours)), service(labels=ours)) is not None


def test_what_is_created_once_is_never_changed() -> None:
    kube = MemoryKube()
    create(kube, SERVICE)
    create(kube, {**SERVICE, "spec": {"a": 2}})
    assert [one["spec"] for one in kube.applied] == [{"a": 1}]


def test_what_is_so_already_is_not_written() -> None:
    kube = MemoryKube()
    first = ensure(kube, SERVICE)
    assert kube.applied_names("Service") == ["x"]
    assert ensure(kube, SERVICE) == first
    assert kube.applied_names("Service") == ["x"]


def test_what_differs_is_written() -> None:
    kube = MemoryKube(SERVICE)
    changed = ensure(kube, {**SERVICE, "spec": {"a": 2}})
    assert (changed["spec"], changed["metadata"]["uid"]) == ({"a": 2}, "s")
    assert kube.applied_names("Service") == ["x"]
