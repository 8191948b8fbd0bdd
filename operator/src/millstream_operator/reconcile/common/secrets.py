"""Secrets that the operator reads, replaces and empties for a resource, and the passwords that it generates."""

from __future__ import annotations

import secrets
from typing import Final

from ...kubernetes.client import Kube, KubeError, Manifest
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources.owned import opaque_secret

PASSWORD_BYTES: Final = 24
REFUSALS: Final = (400, 413, 422)
"""Status of a change that cannot be made however often it is tried, such as one of an immutable Secret."""
NOT_NOW: Final = ("exceeded quota", "being terminated")
"""In refusals with the status of a missing right."""


def new_password() -> str:
    """A random password of 32 characters: letters, digits, - and _."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def not_readable(error: KubeError, who: str = "the operator has") -> Problem:
    """The problem of an operator without a right to Secrets, or of a Secret that the API server does not take.

    Any other error is raised again. A problem is one resource's, while an error ends the reconcile of the whole batch:
    of Users, those of other namespaces too.
    """
    if error.status in REFUSALS or (error.status == 403 and any(words in str(error) for words in NOT_NOW)):
        return Problem(Reason.RECONCILE_FAILED, f"the API server refuses a change of a Secret: {error}")
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


def is_empty(live: Manifest) -> bool:
    """Whether a Secret has no value."""
    return not any((live.get("data") or {}).values())


def empty(kube: Kube, live: Manifest, reference: Manifest) -> None:
    """Remove all values of a Secret, unless it has changed since ``live`` was read. Raises KubeError.

    ``reference``: a manifest with its owner. An apply removes only what the operator has set, so there is one before it
    that sets all values, those of others too.
    """
    metadata = {**reference["metadata"], "name": live["metadata"]["name"]}
    wanted = opaque_secret({**reference, "metadata": metadata}, dict.fromkeys(live["data"], b""), {})
    replaced = replace(kube, live, wanted)
    replace(kube, replaced, {**wanted, "data": {}})
