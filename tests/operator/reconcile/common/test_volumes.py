"""Which volumes need an owner: by the operator's configuration, or by their storage class."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millstream_harness.in_memory import InMemory, in_memory
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.reconcile.common.volumes import claim_needs_owner, class_needs_owner
from millstream_operator.resources.volumes import UserIds, VolumeOwnership


def storage_class(name: str, provisioner: str) -> dict[str, Any]:
    return {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}


def claim(name: str, class_name: str) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name}
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"storageClassName": class_name}}


def classes() -> InMemory:
    return in_memory(
        storage_class("fast", "ebs.csi.aws.com"),
        storage_class("host", "kubernetes.io/host-path"),
        claim("on-fast", "fast"),
        claim("on-host", "host"),
    )


@pytest.mark.parametrize(
    ("name", "needed"), [("host", True), ("fast", False), ("unknown", False), (None, False)]
)
def test_a_storage_class_decides(name: str | None, needed: bool) -> None:
    assert class_needs_owner(classes().services, name) is needed


@pytest.mark.parametrize(
    ("how", "needed"), [(VolumeOwnership.INIT_CONTAINER, True), (VolumeOwnership.FS_GROUP, False)]
)
def test_the_operators_configuration_comes_first_and_asks_nobody(how: VolumeOwnership, needed: bool) -> None:
    found = classes()
    found.kube.refused["StorageClass"] = KubeError(500, "", "must not be asked")
    services = dataclasses.replace(found.services, volume_ownership=how)
    assert class_needs_owner(services, "host") is needed


def test_where_the_platform_assigns_users_nothing_is_root() -> None:
    found = classes()
    images = dataclasses.replace(found.services.images, user_ids=UserIds.ASSIGNED)
    for how in VolumeOwnership:
        services = dataclasses.replace(found.services, images=images, volume_ownership=how)
        assert not class_needs_owner(services, "host")


def test_an_operator_that_may_not_look_at_storage_classes_leaves_it_to_kubernetes() -> None:
    found = classes()
    found.kube.refused["StorageClass"] = KubeError(403, "Forbidden", "no")
    assert not class_needs_owner(found.services, "host")


def test_another_error_is_no_answer() -> None:
    found = classes()
    found.kube.refused["StorageClass"] = KubeError(500, "", "down")
    with pytest.raises(KubeError, match="down"):
        class_needs_owner(found.services, "host")


@pytest.mark.parametrize(("name", "needed"), [("on-host", True), ("on-fast", False), ("missing", False)])
def test_a_claim_is_as_its_class(name: str, needed: bool) -> None:
    assert claim_needs_owner(classes().services, "ns", name) is needed
