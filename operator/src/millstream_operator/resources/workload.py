"""The Kubernetes object of a ConsumerGroup's workload: a Deployment NAME-consumers of the user's own containers.

Each container gets the variables of ``environment`` before its own, so that its own may refer to them as $(NAME).
"""

from __future__ import annotations

from typing import Any

from ..models import API_VERSION, ConsumerGroup, Workload
from .images import Images
from .volumes import pod_security

Manifest = dict[str, Any]

USER = 1000
NAME = "millstream-consumers"
RESTRICTED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def environment(group: ConsumerGroup, bootstrap: str) -> dict[str, str]:
    """Variables that tell a consumer what to consume."""
    return {
        "MILLSTREAM_BOOTSTRAP_SERVERS": bootstrap,
        "MILLSTREAM_GROUP_ID": group.group_id,
        "MILLSTREAM_TOPICS": ",".join(group.spec.topics),
    }


def selector(group: ConsumerGroup) -> dict[str, str]:
    return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": group.name}


def labels(group: ConsumerGroup) -> dict[str, str]:
    return {
        **selector(group),
        "app.kubernetes.io/component": "consumer",
        "app.kubernetes.io/managed-by": "millstream-operator",
    }


def reference(group: ConsumerGroup) -> Manifest:
    """The Deployment, identified only by its names."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{group.name}-consumers",
            "namespace": group.namespace,
            "labels": labels(group),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": group.kind,
                    "name": group.name,
                    "uid": group.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }


def deployment(
    group: ConsumerGroup, workload: Workload, bootstrap: str, replicas: int, images: Images
) -> Manifest:
    template = workload.template.manifest()
    wanted = template["spec"]
    for constraint in wanted.get("topologySpreadConstraints", ()):
        constraint.setdefault("labelSelector", {"matchLabels": selector(group)})
    variables = [{"name": name, "value": value} for name, value in environment(group, bootstrap).items()]
    containers = [
        {**one, "env": [*variables, *one.get("env", ())], "securityContext": RESTRICTED}
        for one in wanted["containers"]
    ]
    metadata = template.get("metadata", {})
    return {
        **reference(group),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(group)},
            "template": {
                "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels(group)}},
                "spec": {
                    **wanted,
                    "containers": containers,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": pod_security(USER, images.user_ids),
                },
            },
        },
    }
