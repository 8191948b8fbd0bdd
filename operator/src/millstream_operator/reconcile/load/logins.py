"""BatchLoad: how its pods connect. In a Cluster that requires a login they have a user of their own, which may read the
load's topics, and find the coordinator of the group that jobs name; in one with TLS, a copy of its authorities."""

from __future__ import annotations

from ...kafka.records import AclOperation, ResourceType
from ...models import BatchLoad, Cluster
from ...models.problem import Problem
from ...resources import load as resources
from ...resources.certificates import CA
from ...resources.owned import secret_of
from ...resources.pod_access import PodAccess
from ...resources.pod_user import pod_user, rule
from ...state.context import LoadParts
from ...state.platform import pods_connect
from ..common.pod_trust import ensure_trust
from ..common.pod_users import Rights, ensure_user


def ensure_access(
    services: LoadParts, load: BatchLoad, cluster: Cluster, *, must_be_stored: bool
) -> PodAccess | Problem:
    """How the load's pods connect now. ``must_be_stored``: it is a problem if brokers do not respond."""
    access = pods_connect(cluster)
    if not access.has_login:
        return access
    metadata = resources.metadata(load, load.name, "user")
    if access.has_tls:
        copy = secret_of(metadata, resources.trust_secret(load))
        if problem := ensure_trust(services, copy, {CA: cluster}):
            return problem
    user = pod_user(load, resources.login_secret(load), metadata)
    of_topics = {rule(user, ResourceType.TOPIC, topic, AclOperation.READ) for topic in load.spec.topics}
    rules = frozenset(of_topics | {rule(user, ResourceType.GROUP, resources.GROUP, AclOperation.DESCRIBE)})
    name = f"{cluster.namespace}/{cluster.name}"
    clusters = {name: (cluster, Rights(rules))}
    password = ensure_user(services, user, clusters, must_be_stored=must_be_stored)
    return password if isinstance(password, Problem) else access
