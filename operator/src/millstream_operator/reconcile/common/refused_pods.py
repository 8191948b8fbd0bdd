"""Why Kubernetes refuses a StatefulSet's pods: Pod Security, quotas, webhooks.

A StatefulSet has no condition for this. Its controller reports it in an Event at each attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...kubernetes.client import KubeError
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources.volumes import OWNER_CONTAINER
from ...state.context import Kubernetes

FAILED = "FailedCreate"
# as the controller words it: create Pod NAME in StatefulSet NAME failed error: WHY
_SAYS = re.compile(r"create Pod (?P<pod>\S+) in StatefulSet \S+ failed error: (?P<why>.*)", re.DOTALL)


def why_no_pods(services: Kubernetes, stateful_set: Mapping[str, Any] | None) -> Problem | None:
    """Why the API server refuses its pods, and what to do; None if no pod is missing or there is no such Event."""
    if stateful_set is None or not lacks_pods(stateful_set):
        return None
    metadata = stateful_set["metadata"]
    try:
        events = services.kube.events_about(metadata["namespace"], metadata["uid"], FAILED)
    except KubeError as error:
        if error.status == 403:  # an operator without that right
            return None
        raise
    if not events:
        return None
    latest = max(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return Problem(Reason.PODS_REFUSED, explain_refusal(stateful_set, latest.get("message") or ""))


def lacks_pods(stateful_set: Mapping[str, Any]) -> bool:
    """Whether there are fewer pods than there should be."""
    there = (stateful_set.get("status") or {}).get("replicas") or 0
    return int(there) < int(stateful_set["spec"].get("replicas") or 0)


def explain_refusal(stateful_set: Mapping[str, Any], message: str) -> str:
    """One line: the pod, the reason of the refusal, the next step."""
    found = _SAYS.match(message)
    pod, why = found.group("pod", "why") if found else (stateful_set["metadata"]["name"], message)
    why = " ".join(why.split())
    return f"Kubernetes refuses pod {pod}: {why}; {_next_step(stateful_set, why)}"


def _next_step(stateful_set: Mapping[str, Any], why: str) -> str:
    pod_spec = stateful_set["spec"]["template"]["spec"]
    roots = [
        container
        for container in pod_spec.get("initContainers") or ()
        if container["name"] == OWNER_CONTAINER
    ]
    if "PodSecurity" in why and roots:
        return (
            f"init container {OWNER_CONTAINER} is root: choose a storage class whose volumes follow fsGroup, or set "
            "operator.volumeOwnership=FsGroup in the chart, or label the namespace "
            "pod-security.kubernetes.io/enforce=baseline"
        )
    if "security context constraint" in why:
        return "on OpenShift set operator.userIds=Assigned in the chart"
    if "exceeded quota" in why:
        return "raise the namespace's ResourceQuota or lower spec.brokers.resources"
    return "change what refuses it, or the Cluster"
