"""What counts as converged, and that nothing is written then."""

from __future__ import annotations

import pytest

from millstream_harness.in_memory import MemoryKube
from millstream_operator.reconcile.objects import APPLIED, contains, ensure, with_hash


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


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"namespace": "ns", "name": "x"},
    "spec": {"a": 1},
}


def test_what_is_so_already_is_not_written() -> None:
    kube = MemoryKube()
    first = ensure(kube, SERVICE)
    assert kube.applied_names("Service") == ["x"]
    assert ensure(kube, SERVICE) == first
    assert kube.applied_names("Service") == ["x"]


def test_what_differs_is_written() -> None:
    kube = MemoryKube(SERVICE)
    assert ensure(kube, {**SERVICE, "spec": {"a": 2}})["spec"] == {"a": 2}
    assert kube.applied_names("Service") == ["x"]
