"""BatchLoad: the own user of its pods in a Cluster that asks for a login. It may read the load's topics, no more."""

from __future__ import annotations

from ...kafka.records import AclOperation, ResourceType
from ...models import BatchLoad, Cluster
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources import load as resources
from ...resources.pod_user import pod_user, rule
from ...state.context import LoadParts
from ...state.platform import pods_connect
from ..common.pod_users import Rights, ensure_user


def ensure_login(
    services: LoadParts, load: BatchLoad, cluster: Cluster, *, must_be_stored: bool
) -> bool | Problem:
    """Whether the load's pods log in. ``must_be_stored``: it is a problem if brokers do not respond."""
    access = pods_connect(cluster)
    if not access.has_login:
        return False
    if access.ca_secret is not None:
        return Problem(
            Reason.LOGIN_REQUIRED,
            f"Cluster {cluster.name} in namespace {cluster.namespace} has TLS inside Kubernetes, which BatchLoads do"
            " not have yet: name another Cluster",
        )
    user = pod_user(load, resources.login_secret(load), resources.metadata(load, load.name, "user"))
    rules = frozenset(rule(user, ResourceType.TOPIC, topic, AclOperation.READ) for topic in load.spec.topics)
    name = f"{cluster.namespace}/{cluster.name}"
    password = ensure_user(
        services, user, {name: (cluster, Rights(rules))}, "", must_be_stored=must_be_stored
    )
    return password if isinstance(password, Problem) else True
