"""Does a volume need an owner first? Asks Kubernetes about its storage class."""

from __future__ import annotations

from ..kube import KubeError
from ..resources.volumes import UserIds, VolumeOwnership, class_named, needs_init_container
from ..services import Services


def class_needs_owner(services: Services, class_name: str | None) -> bool:
    """For volumes of this storage class; None is the default class."""
    if services.images.user_ids is UserIds.ASSIGNED:
        return False  # who assigns users lets nobody be root, and makes volumes writable
    if services.volume_ownership is not VolumeOwnership.AUTO:
        return needs_init_container(services.volume_ownership, None)
    try:
        classes = services.kube.list("storage.k8s.io/v1", "StorageClass", None, {})
    except KubeError as error:
        if error.status == 403:  # an operator without that right: fsGroup, as is usual
            return False
        raise
    return needs_init_container(services.volume_ownership, class_named(classes, class_name))


def claim_needs_owner(services: Services, namespace: str, claim_name: str) -> bool:
    """For a claim that is there already; one that is not will be asked about again."""
    claim = services.kube.get("v1", "PersistentVolumeClaim", namespace, claim_name)
    return claim is not None and class_needs_owner(services, claim["spec"].get("storageClassName"))
