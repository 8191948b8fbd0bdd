"""User: the password in a Secret, generated or the user's own.

A generated one is written once, and again for each new `spec.rotate.requestId`: the Secret's annotation, written with
the password in one step, says for which. The former one stays in the Secret until its time is over, so that brokers
accept both, whatever happens to the operator meanwhile. A Secret that was deleted or emptied is generated again, with
another password, and ends both. Of one that was edited, the password counts, and the other values follow it.
"""

from __future__ import annotations

from datetime import timedelta

from ...kubernetes.client import KubeError, Manifest
from ...models import User
from ...models.conditions import Reason
from ...models.problem import PAUSED, Problem, is_paused
from ...resources.user import (
    Former,
    end_of_former,
    former_of,
    password_of,
    reference,
    rotated_for,
    secret,
    version_of,
)
from ...state.context import Parts
from ..common.objects import NotOurs, find
from ..common.secrets import is_empty, new_password, not_readable, replace
from .plan import Password


def password_for(services: Parts, user: User) -> Password | Problem:
    """The password of a user with authentication."""
    try:
        return _generated(services, user) if user.generates_password else _own(services, user)
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except ValueError as error:
        advice = "; delete it, and a new one is generated" if user.generates_password else ""
        return Problem(Reason.SECRET_INVALID, f"{error}{advice}")
    except KubeError as error:
        return not_readable(error)


def _own(services: Parts, user: User) -> Password | Problem:
    key = user.password_key
    assert key is not None
    live = services.kube.get("v1", "Secret", user.namespace, key.name)
    if live is None:
        return Problem(
            Reason.SECRET_MISSING,
            f"there is no Secret {key.name} in namespace {user.namespace}: create it with the password in key"
            f" {key.key}",
        )
    return Password(password_of(live, key.key), version_of(live), key.name)


def _generated(services: Parts, user: User) -> Password | Problem:
    request = user.spec.rotate.request_id if user.spec.rotate is not None else ""
    live = find(services.kube, reference(user))
    if is_paused(user):
        if live is None or is_empty(live):
            return Problem(
                Reason.RECONCILE_PAUSED, f"there is no password, and none is generated: {PAUSED[-1]}"
            )
    elif live is None:
        live = services.kube.create(secret(user, new_password(), request))
    elif is_empty(live):
        live = replace(services.kube, live, secret(user, new_password(), request))
    elif request and request not in (rotated_for(live), user.status.rotated_for):
        live = replace(
            services.kube, live, secret(user, new_password(), request, _former(services, user, live))
        )
    else:
        live = _kept(services, user, live)
    return Password(
        password_of(live, "password"),
        version_of(live),
        user.name,
        rotated_for(live) or None,
        former=former_of(live),
    )


def _kept(services: Parts, user: User, live: Manifest) -> Manifest:
    """The Secret with the same password, and what follows from it; written only if it differs."""
    former = former_of(live)
    kept = former.kept(services.now()) if former is not None else None
    wanted = secret(user, password_of(live, "password"), rotated_for(live), kept)
    if wanted["data"].items() <= live["data"].items() and end_of_former(wanted) == end_of_former(live):
        return live
    return replace(services.kube, live, wanted)


def _former(services: Parts, user: User, live: Manifest) -> Former | None:
    """The password that a rotation replaces, for as long as the spec lets it be valid."""
    seconds = user.spec.rotate.previous_valid_seconds if user.spec.rotate is not None else 0
    if not seconds:
        return None
    try:
        return Former(password_of(live, "password"), services.now() + timedelta(seconds=seconds))
    except ValueError:  # of a damaged Secret nothing is left to use
        return None
