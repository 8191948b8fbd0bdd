"""The login by which brokers are known to the ZooKeeper servers that the operator runs.

    NAME-zookeeper-login      Secret for the servers: password, and the file with their configuration of SASL
    NAME-brokers-zookeeper    Secret for the brokers: password, and the file with their login module

Both belong to the Cluster and go with it. Each holds the password, so that a lost or damaged one is written again from
the other: running servers know no other password. ZooKeeper grants nodes to the user's name, so another password keeps
the right to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..models import Cluster
from ..models.cluster import SecuredZooKeeper
from .broker_config import ZOOKEEPER_CA, ZOOKEEPER_FILE, ZOOKEEPER_KEY, broker_set_name, properties
from .owned import Manifest, digest, opaque_secret, secret_reference, values_of
from .volumes import secret_volume
from .zookeeper import LOGIN, LOGIN_FILE, login_secret, secured

USER: Final = "broker"
"""Never changes: the nodes are this user's."""
ACCESS: Final = "millstream.dev/zookeeper-access"
"""Annotation of brokers that log in; its value says whether they keep others from their nodes."""
VERSION: Final = "millstream.dev/zookeeper-login-version"
"""Annotation of a Secret: a random text for each login, since a hash would help to guess a password of a user's."""
OPEN, RESTRICTED = "Open", "Restricted"
PASSWORD: Final = "password"
_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule required"
_PASSWORD: Final = re.compile(r"[\w-]{16,128}", re.ASCII)


def servers_jaas(password: str) -> str:
    """The servers' configuration of SASL."""
    return f'Server {{ {_MODULE} user_{USER}="{password}"; }};\n'


def brokers_login(password: str) -> str:
    """The brokers' login module, as a file of properties."""
    return outside_login(USER, password)


def outside_login(user: str, password: str) -> str:
    """The brokers' login module for a user and password of any printable characters."""
    return properties({ZOOKEEPER_KEY: f"{_MODULE} username={_quoted(user)} password={_quoted(password)};"})


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def brokers_secret(cluster: Cluster) -> str:
    return f"{broker_set_name(cluster)}-zookeeper"


def fingerprint(password: str) -> str:
    """Identifies a password, and does not help to guess it: passwords are random."""
    return digest(["zookeeper", password])


def secrets(cluster: Cluster, password: str) -> list[Manifest]:
    """Both Secrets, that of the servers first."""
    values = {
        login_secret(cluster): {LOGIN_FILE: servers_jaas(password)},
        brokers_secret(cluster): {ZOOKEEPER_FILE: brokers_login(password)},
    }
    return [
        opaque_secret(
            secret_reference(cluster, name),
            {PASSWORD: password.encode(), **{key: text.encode() for key, text in files.items()}},
            {},
        )
        for name, files in values.items()
    ]


def password_of(live: Mapping[str, Any] | None) -> str | None:
    """The password in a Secret; None without one that fits into the files."""
    try:
        found = values_of(live).get(PASSWORD, b"").decode()
    except ValueError:
        return None
    return found if _PASSWORD.fullmatch(found) else None


def pod_annotations(cluster: Cluster) -> dict[str, str]:
    """Those of the brokers' pods; none while they do not log in."""
    ensemble = secured(cluster)
    if ensemble is None or not ensemble.logs_in:
        return {}
    return {LOGIN: ensemble.login, ACCESS: RESTRICTED if ensemble.sets_acls else OPEN}


def volumes(cluster: Cluster) -> list[Manifest]:
    """The volume of brokers with a login or trusted certificates; "work" is a name that no volume of a user's has."""
    ensemble = secured(cluster)
    if ensemble is None or not (files := _files(ensemble)):
        return []
    items = [{"key": file, "path": file} for file in files]
    return [secret_volume("work", brokers_secret(cluster), items=items, defaultMode=0o440)]


def _files(ensemble: SecuredZooKeeper) -> list[str]:
    return [
        *([ZOOKEEPER_FILE] if ensemble.logs_in else ()),
        *([ZOOKEEPER_CA] if ensemble.tls is not None else ()),
    ]


def outside_secret(cluster: Cluster, files: Mapping[str, str], version: str) -> Manifest:
    """The brokers' Secret for an ensemble that others run. ``version``: identifies the login."""
    values = {name: text.encode() for name, text in files.items()}
    return opaque_secret(
        secret_reference(cluster, brokers_secret(cluster)), values, {VERSION: version} if version else {}
    )


def version_of(live: Mapping[str, Any] | None, login: str) -> str | None:
    """The version of the login in a Secret, if it is this one."""
    if live is None or values_of(live).get(ZOOKEEPER_FILE) != login.encode():
        return None
    return (live["metadata"].get("annotations") or {}).get(VERSION)
