"""Cluster: how the ZooKeeper servers that the operator runs come to ask brokers for a login.

An ensemble without logins gets there without an outage, in three rolls:

    1. servers accept logins; brokers without one stay connected
    2. when every server does, brokers log in
    3. when every broker does, brokers keep others from their nodes (`zookeeper.set.acl`); the next controller also
       restricts the nodes that exist

A new ensemble has all of it from its first server on. No step is taken back, because a broker without a login could
not use nodes that are restricted. The servers do not require a login of everybody: consumers that coordinate by
ZooKeeper have none.

Where an ensemble is on the way stands in the templates of both StatefulSets, and in their pods. The first two rolls are
those of an upgrade, and the third waits like one.
"""

from __future__ import annotations

import logging

from msgspec.structs import asdict, replace

from ...kubernetes.client import KubeError
from ...models import Cluster
from ...models.cluster import SecuredZooKeeper
from ...models.problem import Problem
from ...resources.broker_config import broker_set_name
from ...resources.zookeeper import COMPONENT, LOGIN, name_of
from ...resources.zookeeper_login import ACCESS, RESTRICTED, fingerprint, password_of, secrets
from ...state.context import ClusterParts, Warn
from ..common.objects import bring, find
from ..common.secrets import new_password, not_readable
from . import outside_zookeeper
from .objects import find_stateful_set
from .plan import StatefulSet
from .stateful_pods import all_have, template_annotations

log = logging.getLogger(__name__)


def stage(
    services: ClusterParts, cluster: Cluster, brokers: StatefulSet | None, warn: Warn
) -> Cluster | Problem:
    """The Cluster as its servers and brokers are to be now. ``brokers``: their StatefulSet. Raises NotOurs."""
    ensemble = cluster.spec.zookeeper
    if ensemble is None or ensemble.replicas is None:
        return outside_zookeeper.stage(services, cluster, brokers)
    servers = find_stateful_set(services, cluster, name_of(cluster))
    login = _login(services, cluster, template_annotations(servers).get(LOGIN, ""), warn)
    if not login:
        return cluster
    before = template_annotations(brokers).get(ACCESS)
    logs_in = before is not None or all_have(
        services.kube, cluster, servers, name_of(cluster), COMPONENT, LOGIN
    )
    sets_acls = before == RESTRICTED or (
        logs_in and all_have(services.kube, cluster, brokers, broker_set_name(cluster), "broker", ACCESS)
    )
    secured = SecuredZooKeeper(**asdict(ensemble), login=login, logs_in=logs_in, sets_acls=sets_acls)
    return replace(cluster, spec=replace(cluster.spec, zookeeper=secured))


def _login(services: ClusterParts, cluster: Cluster, known: str, warn: Warn) -> str:
    """The fingerprint of the login, whose Secrets exist then; "" without a right to Secrets.

    ``known``: that of the password which servers accept. A password that they do not know makes them restart.
    """
    try:
        live = [find(services.kube, each) for each in secrets(cluster, "")]
        there = [password for each in live if (password := password_of(each)) is not None]
        matching = [password for password in there if fingerprint(password) == known]
        password = next(iter((*matching, *there)), "") or new_password()
        if known and not matching:
            log.warning(
                "Cluster %s: both Secrets with the login to its ZooKeeper are lost or changed: its servers and"
                " brokers restart with another password",
                cluster.name,
            )
        for manifest, before in zip(secrets(cluster, password), live, strict=True):
            bring(services.kube, manifest, before)
        return fingerprint(password)
    except KubeError as error:
        problem = not_readable(error, "spec.zookeeper: brokers need a login to it, and the operator has")
        warn(problem.reason, problem.message)
        return known
