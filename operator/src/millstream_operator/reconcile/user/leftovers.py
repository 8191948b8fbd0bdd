"""User: Secrets of a credential that the User no longer has are emptied, once its credential is.

The operator may not delete Secrets. An empty one belongs to the User and goes with it, or is filled again.
"""

from __future__ import annotations

from ...kubernetes.client import KubeError
from ...models import User
from ...models.problem import Problem
from ...resources.owned import is_owned_by
from ...resources.user import reference
from ...resources.user_client import client_name
from ...state.context import Parts
from ..common.secrets import empty, not_readable
from .plan import Password


def empty_leftovers(services: Parts, user: User, password: Password | None) -> Problem | None:
    """``password``: the one that the User has now. Secrets of other owners stay."""
    try:
        for name in _leftovers(user, password):
            live = services.kube.get("v1", "Secret", user.namespace, name)
            if live is not None and live.get("data") and is_owned_by(live, user.metadata.uid):
                empty(services.kube, live, reference(user))
    except KubeError as error:
        return not_readable(error)
    return None


def _leftovers(user: User, password: Password | None) -> list[str]:
    """Names of Secrets, by what the status says of the credential before."""
    if password is None:
        return [user.name, client_name(user)] if "Credential" in (user.status.managed or ()) else []
    return [user.name] if user.status.secret == user.name != password.secret else []
