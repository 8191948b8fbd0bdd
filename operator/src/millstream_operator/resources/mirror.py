"""What a MirrorMaker is on Kubernetes: a ConfigMap with `mirror.json` and a Deployment of workers, both NAME-mirror.

The workers share the partitions among themselves and keep their progress in the target, so a pod holds no state: any
number of them may come and go. A changed mirror.json rolls them (its hash is an annotation of the pods).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import API_VERSION, MirrorMaker
from .images import Images
from .pods import resources_of, with_template
from .volumes import pod_security

Manifest = dict[str, Any]

HTTP_PORT = 9404
FOLDER = "/etc/millstream"
CONFIG_FILE = "mirror.json"
CONFIG_HASH = "millstream.dev/config"
USER = 1000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A cluster as the workers reach it; ``cluster`` is "NAMESPACE/NAME" when it is a Cluster of ours."""

    name: str
    bootstrap: str
    cluster: str | None = None


def object_name(mirror: MirrorMaker) -> str:
    return object_named(mirror.name)


def object_named(mirror: str) -> str:
    return f"{mirror}-mirror"


def selector(mirror: MirrorMaker) -> dict[str, str]:
    return {"app.kubernetes.io/name": "millstream-mirror", "app.kubernetes.io/instance": mirror.name}


def labels(mirror: MirrorMaker) -> dict[str, str]:
    return {
        **selector(mirror),
        "app.kubernetes.io/component": "mirror",
        "app.kubernetes.io/managed-by": "millstream-operator",
    }


def mirror_file(
    mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint, http: str = f"0.0.0.0:{HTTP_PORT}"
) -> Manifest:
    """mirror.json: all that a worker needs to know."""
    spec = mirror.spec
    groups = spec.groups
    return {
        "name": mirror.name,
        "namespace": mirror.namespace,
        "sources": [{"name": source.name, "bootstrap": source.bootstrap} for source in sources],
        "target": {"bootstrap": target.bootstrap},
        "topics": {"include": list(spec.topics.include), "exclude": list(spec.topics.exclude)},
        **({"groups": {"include": list(groups.include), "exclude": list(groups.exclude)}} if groups else {}),
        "mode": spec.mode,
        "naming": spec.naming,
        "onGap": spec.on_gap,
        "http": http,
    }


def specified(file: Mapping[str, Any]) -> Manifest:
    """The spec that a mirror.json comes from, with addresses for Clusters."""
    told = {name: file[name] for name in ("sources", "target", "topics", "mode", "naming")}
    return told | {name: file[name] for name in ("groups", "onGap") if name in file}


def config_map(mirror: MirrorMaker, file: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(mirror),
        "data": {CONFIG_FILE: _text(file)},
    }


def deployment(mirror: MirrorMaker, file: Manifest, images: Images) -> Manifest:
    digest = hashlib.sha256(_text(file).encode()).hexdigest()[:16]
    template = with_template(
        {
            "metadata": {"labels": labels(mirror), "annotations": {CONFIG_HASH: digest}},
            "spec": _pod(mirror, images),
        },
        mirror.spec.template,
        container="mirror",
        selector=selector(mirror),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(mirror),
        "spec": {
            "replicas": mirror.spec.replicas,
            "selector": {"matchLabels": selector(mirror)},
            "template": template,
        },
    }


def _pod(mirror: MirrorMaker, images: Images) -> Manifest:
    def probe(path: str, **timing: int) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, **timing}

    return {
        "automountServiceAccountToken": False,
        "securityContext": pod_security(USER, images.user_ids),
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "mirror",
                "image": images.broker,
                "imagePullPolicy": images.pull_policy,
                "command": ["millstream-mirror", f"{FOLDER}/{CONFIG_FILE}"],
                "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
                "livenessProbe": probe("/healthz", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
                "readinessProbe": probe("/readyz", periodSeconds=5, timeoutSeconds=5),
                "resources": resources_of(mirror.spec.resources),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                # A worker that refuses to run says why in its last line: it shows in the MirrorMaker's condition.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "config", "mountPath": FOLDER, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": object_name(mirror)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def metadata(mirror: MirrorMaker) -> Manifest:
    return {
        "name": object_name(mirror),
        "namespace": mirror.namespace,
        "labels": labels(mirror),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": mirror.kind,
                "name": mirror.name,
                "uid": mirror.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _text(file: Manifest) -> str:
    return json.dumps(file, indent=1)
