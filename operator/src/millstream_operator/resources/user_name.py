"""A name for a pod's user that the platform assigns: Hadoop, and so Spark, does not start as a user without one.

An image's /etc/passwd does not list such a user. An init container of the same image, which runs as the same user,
writes one that does.
"""

from __future__ import annotations

from typing import Any

from .pods import SMALL_STEP

Manifest = dict[str, Any]

VOLUME = "user"
PASSWD = '{ cat /etc/passwd; echo "assigned:x:$(id -u):$(id -g)::/tmp:/bin/false"; } > /user/passwd'


def with_user_name(pod_spec: Manifest, *, image: str, pull_policy: str, security: Manifest) -> Manifest:
    """A pod's spec whose first container knows its user. ``security``: the init container's security context."""
    first, *others = pod_spec["containers"]
    passwd = {"name": VOLUME, "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True}
    container = {
        "name": "user-name",
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["sh", "-c", PASSWD],
        "resources": SMALL_STEP,
        "securityContext": security,
        "volumeMounts": [{"name": VOLUME, "mountPath": "/user"}],
    }
    return {
        **pod_spec,
        "initContainers": [*pod_spec.get("initContainers", ()), container],
        "containers": [{**first, "volumeMounts": [*first.get("volumeMounts", ()), passwd]}, *others],
        "volumes": [*pod_spec.get("volumes", ()), {"name": VOLUME, "emptyDir": {}}],
    }
