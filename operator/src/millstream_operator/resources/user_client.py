"""A User's client: the listener that it connects to, and the Secret NAME-user-client, from which pods read how; pure.

    client.properties       for Kafka's Java clients, the command and library of Millstream
    librdkafka.properties   for librdkafka, such as kcat -F
    client_config.py        for Python: config, a dictionary
    ca.crt                  with TLS: the authorities to trust
    user.crt, user.pem      with a certificate: it, and the key followed by it

A pod mounts the Secret at FOLDER, as the files name each other. The Secret belongs to the User and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models import Cluster, ListenerStatus, User
from . import client_files
from .certificates import CA
from .client_files import ClientLogin, ClientTls
from .owned import opaque_secret, secret_of
from .pod_access import FOLDER
from .user import CERTIFICATE, KEY_AND_CERTIFICATE, reference

Manifest = dict[str, Any]


def addresses_of(cluster: Cluster) -> dict[str, ListenerStatus]:
    """The listeners of a Cluster that have an address, by name: external ones first."""
    found = {one.name: one for one in cluster.status.listeners or () if one.bootstrap}
    if not found and cluster.status.bootstrap:
        inside = cluster.spec.internal.name
        found = {inside: ListenerStatus(name=inside, bootstrap=cluster.status.bootstrap)}
    return found


def listeners_for(cluster: Cluster, user: User) -> list[ListenerStatus]:
    """Those of them that take the User's kind of credential."""
    takes = {
        one.name
        for one in cluster.completed.spec.listeners
        if (one.needs_certificate if user.has_certificate else one.has_sasl)
    }
    return [each for name, each in addresses_of(cluster).items() if name in takes]


def listener_inside(cluster: Cluster, user: User) -> ListenerStatus | None:
    """Where pods connect: the Internal listener, if it takes the User's credential, or the first that does."""
    suitable = listeners_for(cluster, user)
    inside = (one for one in suitable if one.name == cluster.spec.internal.name)
    return next(inside, suitable[0] if suitable else None)


def client_name(user: User) -> str:
    return f"{user.name}-user-client"


def client_secret(
    user: User,
    listener: ListenerStatus,
    password: str | None,
    authorities: bytes | None,
    certificate: Mapping[str, bytes],
) -> Manifest:
    """``password``: None for a certificate; ``authorities``: of a listener with TLS; ``certificate``: values of the
    User's Secret, of which the Secret gets certificate and key."""
    own = {key: certificate[key] for key in (CERTIFICATE, KEY_AND_CERTIFICATE) if key in certificate}
    tls = None
    if authorities is not None:
        files = {key: f"{FOLDER}/{key}" for key in own}
        tls = ClientTls(
            f"{FOLDER}/{CA}",
            files.get(CERTIFICATE, ""),
            files.get(KEY_AND_CERTIFICATE, ""),
            are_files=True,
        )
    login = ClientLogin(listener.bootstrap or "", user.user_name, password, tls)
    values = {
        client_files.PROPERTIES: client_files.java(login).encode(),
        client_files.LIBRDKAFKA: client_files.librdkafka(login).encode(),
        client_files.PYTHON: client_files.python(login).encode(),
        **({} if authorities is None else {CA: authorities, **own}),
    }
    return opaque_secret(secret_of(reference(user)["metadata"], client_name(user)), values, {})
