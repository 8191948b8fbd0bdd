"""Applies the user's pod settings to the operator's pods: the one way for all pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models.pods import PodTemplate, Resources
from .merge import merge

Manifest = dict[str, Any]

SMALL_STEP: Manifest = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
"""The resources of an init container that runs one small command."""


def with_template(
    pod: Manifest, template: PodTemplate[Any], *, container: str, selector: Mapping[str, str]
) -> Manifest:
    """A pod's ``metadata`` and ``spec`` with the user's template over them.

    ``container``: the name of the template's container in the pod. ``selector`` finds these pods; a spread counts them
    unless it names others.
    """
    wanted = template.manifest()
    spec = wanted.get("spec", {})
    for one in spec.get("containers", ()):
        one["name"] = container
    for constraint in spec.get("topologySpreadConstraints", ()):
        constraint.setdefault("labelSelector", {"matchLabels": dict(selector)})
    return merge(pod, wanted)


def resources_of(resources: Resources) -> Manifest:
    """A container's resources."""
    return {"requests": dict(resources.requests), "limits": dict(resources.limits)}


def spread_over(topology_key: str, selector: Mapping[str, str]) -> list[Manifest]:
    """Topology spread constraints for an even distribution.

    A pod also starts if they cannot be kept, because the remaining zones must do when one is lost.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": topology_key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(selector)},
        }
    ]
