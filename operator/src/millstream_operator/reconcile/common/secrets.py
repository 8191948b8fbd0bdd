"""Secrets that the operator reads and replaces for a resource, and the passwords that it generates for them."""

from __future__ import annotations

import secrets
from typing import Final

from ...kubernetes.client import Kube, KubeError, Manifest
from ...models.conditions import Reason
from ...models.problem import Problem

PASSWORD_BYTES: Final = 24


def new_password() -> str:
    """A random password of 32 characters: letters, digits, - and _."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def not_readable(error: KubeError, who: str = "the operator has") -> Problem:
    """The problem of an operator without a right to Secrets; any other error is raised again."""
    if error.status != 403:
        raise error
    return Problem(
        Reason.SECRET_NOT_READABLE,
        f"{who} no right to Secrets here: set operator.users: true in the chart's values ({error})",
    )


def replace(kube: Kube, live: Manifest, wanted: Manifest) -> Manifest:
    """Replace a Secret, unless it has changed since ``live`` was read; returns the new one. Raises KubeError."""
    identity = {key: live["metadata"][key] for key in ("uid", "resourceVersion") if key in live["metadata"]}
    return kube.apply({**wanted, "metadata": {**wanted["metadata"], **identity}})
