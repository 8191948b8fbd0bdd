"""Whether a volume's owner must be changed before use, from its storage class in Kubernetes."""

from __future__ import annotations

from ...kubernetes.client import KubeError
from ...resources.volumes import UserIds, VolumeOwnership, class_named, needs_init_container
from ...state.context import Installation


def class_needs_owner(services: Installation, class_name: str | None) -> bool:
    """Whether volumes of this storage class need it; None is the default class."""
    if services.images.user_ids is UserIds.ASSIGNED:
        return False  # a platform that assigns users allows no root, and makes volumes writable
    if services.volume_ownership is not VolumeOwnership.AUTO:
        return needs_init_container(services.volume_ownership, None)
    try:
        classes = services.kube.list("storage.k8s.io/v1", "StorageClass", None, {})
    except KubeError as error:
        if error.status == 403:  # the operator lacks that right: assume fsGroup, as is usual
            return False
        raise
    return needs_init_container(services.volume_ownership, class_named(classes, class_name))


def claim_needs_owner(services: Installation, namespace: str, claim_name: str) -> bool:
    """Whether the volume of an existing claim needs it; a claim that does not exist yet is checked again later."""
    claim = services.kube.get("v1", "PersistentVolumeClaim", namespace, claim_name)
    return claim is not None and class_needs_owner(services, claim["spec"].get("storageClassName"))
