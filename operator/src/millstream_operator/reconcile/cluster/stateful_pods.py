"""What all pods of a StatefulSet have, also those that Kubernetes may still create."""

from __future__ import annotations

from collections.abc import Mapping

from ...kubernetes.client import Kube
from ...models import Cluster
from ...resources.owned import selector
from .plan import StatefulSet, is_seen


def template_annotations(live: StatefulSet | None) -> Mapping[str, str]:
    if live is None:
        return {}
    return live["spec"]["template"].get("metadata", {}).get("annotations") or {}


def all_have(
    kube: Kube, cluster: Cluster, live: StatefulSet | None, name: str, component: str, annotation: str
) -> bool:
    """Whether all pods that exist, and all that Kubernetes may create, have an annotation.

    Without a StatefulSet there may be pods that an earlier one has left.
    """
    if live is not None and (annotation not in template_annotations(live) or not _is_known(live)):
        return False
    pods = kube.list("v1", "Pod", cluster.namespace, selector(cluster, component))
    return all(
        annotation in (pod["metadata"].get("annotations") or {})
        for pod in pods
        if pod["metadata"]["name"].rpartition("-")[0] == name  # others may have our labels
    )


def _is_known(live: StatefulSet) -> bool:
    """Whether Kubernetes creates pods of this template only."""
    return live["metadata"].get("generation") == 1 or is_seen(live)
