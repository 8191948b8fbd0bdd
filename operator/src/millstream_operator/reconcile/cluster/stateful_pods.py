"""What all pods of a StatefulSet have, also those that Kubernetes may still create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...kubernetes.client import Kube
from ...models import Cluster
from ...resources.owned import selector
from .plan import StatefulSet, is_seen


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """Those of a pod, or of a template for pods."""
    return pod.get("metadata", {}).get("annotations") or {}


def template_annotations(live: StatefulSet | None) -> Mapping[str, str]:
    return {} if live is None else annotations_of(live["spec"]["template"])


def is_of(pod: Mapping[str, Any], name: str) -> bool:
    """Whether a pod has a name that Kubernetes gives to those of this StatefulSet: others may have our labels."""
    found: str = pod["metadata"]["name"]
    return found.rpartition("-")[0] == name


def all_have(
    kube: Kube, cluster: Cluster, live: StatefulSet | None, name: str, component: str, annotation: str
) -> bool:
    """Whether all pods that exist, and all that Kubernetes may create, have an annotation.

    Without a StatefulSet there may be pods that an earlier one has left.
    """
    if live is not None and (annotation not in template_annotations(live) or not _is_known(live)):
        return False
    pods = kube.list("v1", "Pod", cluster.namespace, selector(cluster, component))
    return all(annotation in annotations_of(pod) for pod in pods if is_of(pod, name))


def _is_known(live: StatefulSet) -> bool:
    """Whether Kubernetes creates pods of this template only."""
    return live["metadata"].get("generation") == 1 or is_seen(live)
