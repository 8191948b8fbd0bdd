"""Volumes that belong to root, and the init container that gives them to our user.

`fsGroup` makes a volume writable for a pod that is not root, but not if the volume is a folder of the node
(hostPath): then the provisioner must leave the folder open to all, and Kubernetes' own `kubernetes.io/host-path`
does not. On such storage a first container, as root and with no capability but CHOWN, changes the owner of the
volume's top folder. It touches nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from .pods import SMALL_STEP

Manifest = dict[str, Any]

OWNER_CONTAINER = "volume-owner"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Provisioners whose volumes belong to root and do not follow fsGroup.
OWNED_BY_ROOT = frozenset(("kubernetes.io/host-path",))
# Containers' security contexts by the "restricted" standard.
WRITABLE_CONTAINER_SECURITY: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CONTAINER_SECURITY: Manifest = {**WRITABLE_CONTAINER_SECURITY, "readOnlyRootFilesystem": True}


class UserIds(StrEnum):
    """The users of pods. FIXED: those of our images.

    ASSIGNED: pods name none, and the platform assigns a user and a group for volumes, as OpenShift does.
    """

    FIXED = "Fixed"
    ASSIGNED = "Assigned"


def pod_security(user: int, ids: UserIds = UserIds.FIXED) -> Manifest:
    """A pod's security context by the "restricted" standard: one user, who owns the mounted volumes."""
    standard: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if ids is UserIds.ASSIGNED:
        return standard
    return {
        **standard,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def secret_volume(name: str, secret: str, **options: Any) -> Manifest:
    return {"name": name, "secret": {"secretName": secret, **options}}


def mounts_secret(pod: Mapping[str, Any], secret: str) -> bool:
    """Whether a volume of the pod is this Secret."""
    volumes = pod.get("spec", {}).get("volumes") or ()
    return any((volume.get("secret") or {}).get("secretName") == secret for volume in volumes)


class VolumeOwnership(StrEnum):
    """How volumes become writable for pods that are not root. AUTO looks at the storage class's provisioner."""

    AUTO = "Auto"
    FS_GROUP = "FsGroup"
    INIT_CONTAINER = "InitContainer"


def class_named(classes: list[Manifest], name: str | None) -> Manifest | None:
    """The storage class of a claim: the named one, or the default."""
    for storage_class in classes:
        metadata = storage_class["metadata"]
        is_default = (metadata.get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        if metadata["name"] == name if name is not None else is_default:
            return storage_class
    return None


def needs_init_container(how: VolumeOwnership, storage_class: Mapping[str, Any] | None) -> bool:
    if how is not VolumeOwnership.AUTO:
        return how is VolumeOwnership.INIT_CONTAINER
    return storage_class is not None and storage_class.get("provisioner") in OWNED_BY_ROOT


def with_owner(pod_spec: Manifest, *, volume: str, user: int, image: str, pull_policy: str) -> Manifest:
    """A pod's spec with the init container before all others."""
    container = {
        "name": OWNER_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["chown", f"{user}:{user}", "/volume"],
        "resources": SMALL_STEP,
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            **CONTAINER_SECURITY,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": "/volume"}],
    }
    return {**pod_spec, "initContainers": [container, *pod_spec.get("initContainers", ())]}
