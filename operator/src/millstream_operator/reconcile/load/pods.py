"""The driver and executor pods of a run: what they wait for, and why they ended; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...resources.owned import is_owned_by

Object = Mapping[str, Any]

BEGINNING = (None, "ContainerCreating", "PodInitializing")
"""Reasons of containers that only start."""
MOUNTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
"""Events about a pod whose containers cannot be created, which its status does not show."""
# As Spark's Kubernetes client reports a pod that the API server refuses.
_REFUSED = re.compile(r"Failure executing: POST at: \S+/pods\. Message: (.+?)\. Received status")


def phase(pod: Object) -> str:
    found: str = (pod.get("status") or {}).get("phase", "Pending")
    return found


def container(pod: Object | None, name: str) -> Object:
    """The state of a container; empty if unknown."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    state: Object = next((entry.get("state") or {} for entry in statuses if entry["name"] == name), {})
    return state


def why_pending(pod: Object | None) -> str:
    """What a pending pod waits for, by its status: an image, a Secret, room on a node; "" if unknown."""
    status = (pod or {}).get("status") or {}
    for entry in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in BEGINNING:
            return words(waiting["reason"], waiting.get("message"))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return words(condition.get("reason"), condition.get("message"))
    return ""


def why_ended(pod: Object | None, driver: str) -> str:
    """Why Kubernetes ended the driver: OOMKilled, Evicted, an init container that failed; "" if it did not."""
    status = (pod or {}).get("status") or {}
    ended = container(pod, driver).get("terminated") or {}
    if status.get("reason") and ended.get("reason") != "OOMKilled":
        return words(status["reason"], status.get("message"))
    if ended.get("reason") not in (None, "", "Completed", "Error"):
        return f"{ended['reason']} (exit status {ended.get('exitCode')})"
    if ended.get("exitCode"):
        return f"the driver ended with exit status {ended['exitCode']}"
    for entry in status.get("initContainerStatuses") or ():
        failed = (entry.get("state") or {}).get("terminated") or {}
        if failed.get("exitCode"):
            last = (failed.get("message") or "").strip().splitlines()[-1:]
            return words(f"init container {entry['name']} ended with exit status {failed['exitCode']}", *last)
    return ""


def executors_of(driver: Object, pods: Iterable[Object]) -> list[Object]:
    """A driver's executors among pods."""
    uid = driver["metadata"].get("uid", "")
    return [pod for pod in pods if is_owned_by(pod, uid)]


def executors_wait(executors: Iterable[Object]) -> str:
    """What the first waiting executor waits for, if known."""
    for pod in executors:
        if phase(pod) == "Pending" and (waits := why_pending(pod)):
            return f"executor {pod['metadata']['name']} waits: {waits}"
    return ""


def why_refused(log: Sequence[str]) -> str:
    """Why Kubernetes refuses executors, by the end of their driver's log; "" if it does not."""
    for line in reversed(log):
        if found := _REFUSED.search(line):
            return f"Kubernetes refuses its executors: {found[1]}"
    return ""


def words(*parts: str | None) -> str:
    return ": ".join(part for part in parts if part)
