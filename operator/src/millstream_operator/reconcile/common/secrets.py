"""Secrets that the operator reads and replaces for a resource."""

from __future__ import annotations

from ...kubernetes.client import Kube, KubeError, Manifest
from ...models.conditions import Reason
from ...models.problem import Problem


def not_readable(error: KubeError, who: str = "the operator has") -> Problem:
    """The problem of an operator without a right to Secrets; any other error is raised again."""
    if error.status != 403:
        raise error
    return Problem(
        Reason.SECRET_NOT_READABLE,
        f"{who} no right to Secrets here: set operator.users: true in the chart's values ({error})",
    )


def replace(kube: Kube, live: Manifest, wanted: Manifest) -> Manifest:
    """Replace this very Secret, and no later version of it; returns it as it is now."""
    identity = {key: live["metadata"][key] for key in ("uid", "resourceVersion") if key in live["metadata"]}
    return kube.apply({**wanted, "metadata": {**wanted["metadata"], **identity}})
