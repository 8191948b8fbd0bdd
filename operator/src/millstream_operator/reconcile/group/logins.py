"""ConsumerGroup: the own user of its workload in a Cluster that requires a login, and the clients' configuration.

The user may read the group's topics as this group, no more.
"""

from __future__ import annotations

from dataclasses import replace

from ...kafka.records import Acl, AclOperation, ResourceType
from ...kubernetes.client import KubeError
from ...models import Cluster, ConsumerGroup
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources import workload as resources
from ...resources.pod_access import CA_FILE
from ...resources.pod_user import PodUser, pod_user, rule
from ...resources.workload import ConsumerLogin
from ...state.context import GroupParts
from ...state.platform import pods_connect
from ..common.objects import NotOurs, ensure
from ..common.pod_trust import authorities_of
from ..common.pod_users import Rights, ensure_user
from ..common.secrets import not_readable


def ensure_login(
    services: GroupParts,
    group: ConsumerGroup,
    cluster: Cluster,
    *,
    is_reachable: bool,
    ca_file: str = CA_FILE,
) -> ConsumerLogin | Problem | None:
    """The consumers' login, whose Secrets exist by now; None if the Cluster requires none.

    ``is_reachable``: whether brokers respond. Otherwise they get the user at a later reconcile. ``ca_file``: where the
    consumers find the Cluster's authorities.
    """
    access = replace(pods_connect(cluster), ca_file=ca_file)
    if not access.has_login:
        return None
    user = pod_user(group, resources.login_secret(group), resources.reference(group)["metadata"])
    clusters = {f"{cluster.namespace}/{cluster.name}": (cluster, Rights(_rules(user, group)))}
    password = ensure_user(services, user, clusters if is_reachable else {})
    if isinstance(password, Problem):
        return password
    try:
        authorities = authorities_of(services.kube, cluster) if access.has_tls else b""
        if isinstance(authorities, Problem):
            return authorities
        ensure(services.kube, resources.client_secret(group, access, user, password, authorities))
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error, "the Cluster requires a login, for which the operator has")
    return resources.consumer_login(group, access, password, authorities)


def _rules(user: PodUser, group: ConsumerGroup) -> frozenset[Acl]:
    """Read implies Describe."""
    of_topics = {rule(user, ResourceType.TOPIC, topic, AclOperation.READ) for topic in group.spec.topics}
    return frozenset(of_topics | {rule(user, ResourceType.GROUP, group.group_id, AclOperation.READ)})
