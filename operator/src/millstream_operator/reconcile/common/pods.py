"""Whether pods run and are ready, and if not, why; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A container that waits for one of these is only starting.
BEGINNING = frozenset(("ContainerCreating", "PodInitializing"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """``ended``: a container ran and failed; otherwise one cannot start, for example because its image is wrong."""

    words: str
    ended: bool


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready."""
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in (pod.get("status") or {}).get("conditions") or ()
    )


def may_run(pod: Mapping[str, Any]) -> bool:
    """Whether one of its containers may have a process; False only if it is known that none has."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return not containers or any("running" in (container.get("state") or {}) for container in containers)


def unscheduled(pod: Mapping[str, Any]) -> str:
    """Why no node takes a pod, with its name; "" if one has, or may soon."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        is_waiting = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        # a SchedulerError passes by itself: the scheduler has not seen a new claim yet
        if is_waiting and condition.get("reason") != "SchedulerError":
            return f"{pod['metadata']['name']}: {condition.get('message', 'not scheduled')}"
    return ""


def refused(deployment: Mapping[str, Any]) -> str:
    """Why Kubernetes creates no pods for a Deployment, for example because of a quota; "" if it does."""
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("ReplicaFailure", "True"):
            return str(condition.get("message", ""))
    return ""


def trouble_of(pod: Mapping[str, Any]) -> Trouble | None:
    """What holds a pod's containers up, with its name, init ones first; None if they are well or only starting."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            if container.get("ready"):
                continue
            state = container.get("state") or {}
            ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
            if code := ended.get("exitCode"):
                lines = (ended.get("message") or "").strip().splitlines()
                why = f", {ended['reason']}" if ended.get("reason") else ""
                return Trouble(f"{name}: {lines[-1] if lines else f'exit status {code}{why}'}", True)
            waiting = state.get("waiting") or {}
            if (reason := waiting.get("reason")) and reason not in BEGINNING:
                words = f": {waiting['message']}" if waiting.get("message") else ""
                return Trouble(f"{name}: {reason}{words}", False)
    return None
