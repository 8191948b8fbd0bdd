"""User: the Secret with ready client configurations for pods, written once its credential is in force.

It follows the password, the certificate, the authorities and the address of the listener.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...kubernetes.client import KubeError
from ...models import Cluster, User
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources.certificates import CA
from ...resources.owned import values_of
from ...resources.user_client import client_secret, listener_inside
from ...state.context import Parts
from ..common.objects import NotOurs, ensure
from ..common.secrets import not_readable
from .plan import Password

Trusted = Callable[[str], bytes | None]
"""The authorities in a Secret of the Cluster, by its name; None without."""


def trusted_by(services: Parts, cluster: Cluster) -> Trusted:
    """Reads each Secret once, for all Users of a Cluster."""

    @functools.cache
    def read(secret: str) -> bytes | None:
        return values_of(services.kube.get("v1", "Secret", cluster.namespace, secret)).get(CA)

    return read


def ensure_client(
    services: Parts, user: User, cluster: Cluster, password: Password, trusted: Trusted
) -> Problem | None:
    """Nothing is written while no listener takes the credential, or the listener has no authorities yet; nor outside
    Kubernetes, where `millstream user config` writes files."""
    listener = listener_inside(cluster, user)
    if listener is None or not services.has_pods:
        return None
    try:
        authorities = None
        if listener.ca_secret is not None and (authorities := trusted(listener.ca_secret)) is None:
            return None
        certificate: dict[str, bytes] = {}
        if user.has_certificate:
            certificate = values_of(services.kube.get("v1", "Secret", user.namespace, user.name))
        value = None if user.has_certificate else password.value
        ensure(services.kube, client_secret(user, listener, value, authorities, certificate))
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error)
    return None
