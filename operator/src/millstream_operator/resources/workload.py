"""The Kubernetes object of a ConsumerGroup's workload: a Deployment NAME-consumers of the user's own containers.

Each container gets the variables of ``environment`` before its own, so that its own may refer to them as $(NAME).

In a Cluster that requires a login, each container also has a folder with the files of these Secrets, and a variable
that names client.properties, which the command `millstream` and its library read:

    NAME-consumers-user      of the consumers' own user (pod_user.py)
    NAME-consumers-client    client.properties (for Kafka's Java clients), librdkafka.properties: everything that a
                             client needs to connect; ca.crt: with TLS, the Cluster's authorities
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..models import API_VERSION, ConsumerGroup, Workload
from . import client_files
from .certificates import CA
from .client_files import ClientLogin, ClientTls
from .images import Images
from .owned import is_status_current, opaque_secret, secret_of, values_of
from .pod_access import FOLDER, PodAccess, with_files
from .pod_user import PodPassword, PodUser
from .volumes import WRITABLE_CONTAINER_SECURITY, pod_security

Manifest = dict[str, Any]

USER = 1000
NAME = "millstream-consumers"
CONFIG: Final = "MILLSTREAM_CONFIG"
"""The variable with its path."""
LOGIN: Final = "millstream.dev/login"
"""Annotation of consumers that log in: changes with what a client reads only when it starts."""


def environment(group: ConsumerGroup, bootstrap: str) -> dict[str, str]:
    """Variables that tell a consumer what to consume."""
    return {
        "MILLSTREAM_BOOTSTRAP_SERVERS": bootstrap,
        "MILLSTREAM_GROUP_ID": group.group_id,
        "MILLSTREAM_TOPICS": ",".join(group.spec.topics),
    }


@dataclass(frozen=True, slots=True)
class ConsumerLogin:
    """``secrets``: their names; ``version``: another one restarts the consumers."""

    secrets: tuple[str, ...]
    version: str


def object_named(group: str) -> str:
    """The name of a group's Deployment."""
    return f"{group}-consumers"


def login_secret(group: ConsumerGroup) -> str:
    """The Secret of the consumers' own user. The chart's admission policies know the name, and that of the other."""
    return f"{object_named(group.name)}-user"


def client_secret(
    group: ConsumerGroup, access: PodAccess, user: PodUser, password: PodPassword, authorities: bytes
) -> Manifest:
    """``authorities``: of the Cluster, with TLS."""
    tls = ClientTls(access.ca_file, are_files=True) if access.has_tls else None
    login = ClientLogin(access.bootstrap, user.name, password.value, tls)
    values = {
        client_files.PROPERTIES: client_files.java(login).encode(),
        client_files.LIBRDKAFKA: client_files.librdkafka(login).encode(),
        **({CA: authorities} if access.has_tls else {}),
    }
    reference_of = secret_of(reference(group)["metadata"], configuration_secret(group))
    return opaque_secret(reference_of, values, {})


def configuration_secret(group: ConsumerGroup) -> str:
    """The Secret with a client's configuration."""
    return configuration_named(group.name)


def configuration_named(group: str) -> str:
    return f"{object_named(group)}-client"


def consumer_login(
    group: ConsumerGroup, access: PodAccess, password: PodPassword, authorities: bytes
) -> ConsumerLogin:
    version = hashlib.sha256(f"{access.bootstrap} {password.iterations} ".encode() + authorities)
    return ConsumerLogin((login_secret(group), configuration_secret(group)), version.hexdigest()[:16])


def logs_in(deployment: Mapping[str, Any], configuration: Mapping[str, Any] | None, *, has_tls: bool) -> bool:
    """Whether all consumers log in, with TLS or without; also if there are none. ``configuration``: their Secret."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    is_seen = is_status_current(deployment)
    count = status.get("replicas", 0)
    if is_seen and not count and not spec.get("replicas", 1):
        return True
    if LOGIN not in (spec["template"].get("metadata") or {}).get("annotations", {}):
        return False
    if has_tls and CA not in values_of(configuration):
        return False
    return is_seen and bool(count == status.get("updatedReplicas", 0))


def selector(group: ConsumerGroup) -> dict[str, str]:
    return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": group.name}


def labels(group: ConsumerGroup) -> dict[str, str]:
    return {
        **selector(group),
        "app.kubernetes.io/component": "consumer",
        "app.kubernetes.io/managed-by": "millstream-operator",
    }


def reference(group: ConsumerGroup) -> Manifest:
    """The Deployment, identified only by its names."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": object_named(group.name),
            "namespace": group.namespace,
            "labels": labels(group),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": group.kind,
                    "name": group.name,
                    "uid": group.metadata.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }


def deployment(
    group: ConsumerGroup,
    workload: Workload,
    bootstrap: str,
    replicas: int,
    images: Images,
    login: ConsumerLogin | None = None,
) -> Manifest:
    template = workload.template.manifest()
    wanted = template["spec"]
    for constraint in wanted.get("topologySpreadConstraints", ()):
        constraint.setdefault("labelSelector", {"matchLabels": selector(group)})
    variables = [{"name": name, "value": value} for name, value in environment(group, bootstrap).items()]
    containers = [
        {
            **container,
            "env": [*variables, *container.get("env", ())],
            "securityContext": WRITABLE_CONTAINER_SECURITY,
        }
        for container in wanted["containers"]
    ]
    metadata = template.get("metadata", {})
    pod = {
        **wanted,
        "containers": containers,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(USER, images.user_ids),
    }
    if login is not None:
        metadata = {**metadata, "annotations": {**metadata.get("annotations", {}), LOGIN: login.version}}
        pod = _with_login(pod, login)
    return {
        **reference(group),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(group)},
            "template": {
                "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels(group)}},
                "spec": pod,
            },
        },
    }


def _with_login(pod: Manifest, login: ConsumerLogin) -> Manifest:
    """A container that sets the variable itself has a configuration of its own."""
    variable = {"name": CONFIG, "value": f"{FOLDER}/{client_files.PROPERTIES}"}
    containers = [
        container
        if any(known["name"] == CONFIG for known in container["env"])
        else {**container, "env": [variable, *container["env"]]}
        for container in pod["containers"]
    ]
    return with_files({**pod, "containers": containers}, login.secrets, everywhere=True)
