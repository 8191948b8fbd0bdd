"""Cluster: its Kubernetes objects, the state of its brokers, and their restarts.

A reconcile takes these steps. Each writes only what differs; what cannot be done yet is reported and retried:

    fewer or more brokers                          move replicas, before or after (scaling.py)
    live configuration                             set it on the running brokers (kafka.py)
    the brokers' login to ZooKeeper                which step its servers and brokers take (zookeeper_login.py)
    ZooKeeper                                      apply and restart its servers, one at a time (ensemble.py)
    the operator's login                           the stage of the Internal listener (platform.py)
    listeners, configuration, brokers              apply the objects (objects.py)
    restarts                                       one broker at a time, as partitions allow (rolling.py)

An invalid spec is refused before anything is changed: running brokers continue as they are. The same holds while the
Cluster is paused by its annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...models import Cluster
from ...models.conditions import ConditionType, Reason
from ...models.problem import Problem, is_paused
from ...resources.certificates import names_of_brokers
from ...resources.listeners import external_listeners
from ...resources.owned import selector
from ...state.cache import key_for
from ...state.context import ClusterParts
from ...state.status import write_status
from ..common.pod_users import remove_unused_users
from ..common.refused_pods import why_no_pods
from . import certificates, ensemble, platform, unstated, zookeeper_login
from .kafka import View, cluster_id_of, configure_live, scale, spread
from .objects import (
    apply_brokers,
    apply_listeners,
    apply_network_policies,
    live_brokers,
    node_addresses,
    restart,
)
from .plan import (
    NOWHERE,
    Findings,
    Outside,
    StatefulSet,
    broker_pods,
    held_for_upgrade,
    is_rolling,
    is_settled,
    is_whole,
    kept_roll,
    ready_replicas,
    refusal,
    rolling_condition,
    status_of,
    why_not_outside,
    why_not_ready,
)
from .rolling import Roll, RollingPod, plan_roll, unreachable_minimums, wait_for_all
from .upgrades import Upgrade

READY_INTERVAL_S = 60.0
WAITING_INTERVAL_S = 5.0
PLAINTEXT = (
    "spec.listeners: {} carries records in plain text, and anyone who reaches it can administer the cluster: set "
    "allowPlaintext: true where you trust the network, or remove it"
)


def reconcile_cluster(services: ClusterParts, cluster: Cluster) -> float:
    """Reconcile one Cluster; returns seconds until the next reconcile."""
    if cluster.metadata.deletion_timestamp is not None or is_paused(cluster):
        services.upgrade_queue.leave(services.store, key_for(cluster))
    if cluster.metadata.deletion_timestamp is not None:
        return READY_INTERVAL_S  # Kubernetes deletes its objects too
    desired = cluster.spec.brokers.replicas
    live = live_brokers(services, cluster)
    findings = Findings(ready=ready_replicas(live), config_keys=cluster.status.config_keys)
    findings.conditions += kept_roll(cluster)  # until a reconcile gets as far as the pods
    given, cluster = cluster, unstated.known(cluster, live, services.new_clusters).completed
    findings.conditions += unstated.open_listeners(cluster)
    if is_paused(cluster):
        return _report(services, cluster, findings, _pods(services, cluster), NOWHERE)
    if (problem := refusal(cluster)) is not None:
        services.upgrade_queue.leave(services.store, key_for(cluster))
        findings.problem = problem
        return _report(services, cluster, findings, (), NOWHERE)
    staged = unstated.record(services, given, live)
    if not isinstance(staged, Problem):
        cluster = staged.completed
        staged = platform.stage(services, cluster, live, lambda: _pods(services, cluster), findings.warn)
    if not isinstance(staged, Problem):
        cluster = staged
        staged = zookeeper_login.stage(services, cluster, live, findings.warn)
    if isinstance(staged, Problem):
        services.upgrade_queue.leave(services.store, key_for(cluster))
        findings.problem = staged
        return _report(services, cluster, findings, _pods(services, cluster), NOWHERE)
    cluster = staged
    admin = services.brokers_of(cluster)
    current = live["spec"].get("replicas") if live else None
    view = View(admin) if findings.ready else View(None)
    replicas = scale(cluster, current, view, findings)
    if not configure_live(cluster, view, findings):
        services.upgrade_queue.leave(services.store, key_for(cluster))
        return _report(services, cluster, findings, _pods(services, cluster), NOWHERE)
    upgrade = Upgrade(services, cluster, findings.ready >= desired)
    servers = ensemble.apply_ensemble(services, cluster, findings.warn, upgrade.may)
    serves = servers is None or is_settled(servers)
    server_roll = Roll() if servers is None else ensemble.roll_ensemble(services, cluster, servers)
    apply_network_policies(services, cluster)
    found = apply_listeners(services, cluster, replicas)
    if plain := [
        one.name for one in external_listeners(cluster) if not (one.allow_plaintext or one.is_encrypted)
    ]:
        findings.warn(Reason.PLAINTEXT_LISTENER, PLAINTEXT.format(", ".join(plain)))
    if (problem := why_not_outside(found)) is not None:
        findings.problem = problem
        pods = _pods(services, cluster)
        _end(upgrade, findings, serves and live is not None and is_whole(broker_pods(live, pods), desired))
        return _report(services, cluster, findings, pods, found)
    pods = _pods(services, cluster)
    if (problem := _certificates(services, cluster, replicas, found, pods, findings)) is not None:
        findings.problem = problem
        _end(upgrade, findings, serves and live is not None and is_whole(broker_pods(live, pods), desired))
        return _report(services, cluster, findings, pods, found)
    live = apply_brokers(services, cluster, live, replicas, found.known, findings.warn)
    findings.ready = ready_replicas(live)
    pods = _pods(services, cluster)
    if findings.ready < desired and findings.problem is None:
        findings.problem = (
            ensemble.why_no_zookeeper(services, cluster, servers)
            or why_no_pods(services, live)
            or why_not_ready(pods, findings.ready, desired)
        )
    brokers = held_for_upgrade(broker_pods(live, pods), upgrade.may, serves)
    _roll(services, cluster, live, brokers, server_roll, view, findings)
    _end(upgrade, findings, findings.ready >= desired and is_whole(brokers, desired) and serves)
    if not findings.busy and findings.problem is None:
        findings.busy = platform.rotate(services, cluster)
        if cluster.status.platform is not None:
            remove_unused_users(services, cluster, admin)
        spread(cluster, view, findings)
    findings.strays = view.strays()
    findings.busy = findings.busy or bool(view.failure)
    return _report(services, cluster, findings, pods, found)


def _roll(
    services: ClusterParts,
    cluster: Cluster,
    live: StatefulSet,
    brokers: Sequence[RollingPod],
    servers: Roll,
    view: View,
    findings: Findings,
) -> None:
    """Restart the next stale broker, if one may be restarted now, and report the Cluster's progress. ``servers``: the
    roll of its ZooKeeper servers, for which brokers wait."""
    findings.busy = findings.busy or bool(servers.words)
    findings.conditions = [one for one in findings.conditions if one[0] is not ConditionType.ROLLING_UPDATE]
    if not any(pod.reasons for pod in brokers):
        end = Roll()
        if is_rolling(cluster):
            desired = live["spec"]["replicas"]
            end = wait_for_all([pod for pod in brokers if pod.number < desired], desired)
        # neither while the Cluster is being made, nor because servers are down
        if servers.remaining or servers.is_end or (servers.is_usual and findings.ready):
            end = servers
        if end.words:
            findings.conditions.append(rolling_condition(end))
            findings.busy = True
        return
    partitions = view.partitions()
    roll = plan_roll(brokers, live["spec"]["replicas"], partitions, view.brokers(), servers)
    restart(services, cluster, roll)
    findings.busy = True
    findings.conditions.append(rolling_condition(roll))
    if partitions is not None and (topics := unreachable_minimums(partitions)):
        words = (
            f"min.insync.replicas of {', '.join(topics[:3])} needs every replica: while a broker restarts, "
            "acks=all waits; lower it or raise replicationFactor"
        )
        findings.warn(Reason.MINIMUM_ISR, words)


def _certificates(
    services: ClusterParts,
    cluster: Cluster,
    replicas: int,
    found: Outside,
    pods: Sequence[Mapping[str, Any]],
    findings: Findings,
) -> Problem | None:
    """Apply the certificates of listeners with TLS; returns why brokers cannot have them."""
    if not cluster.spec.is_encrypted:
        return None
    nodes = node_addresses(services, cluster, pods)
    names = names_of_brokers(cluster, range(replicas), found.known, found.bootstraps, nodes)
    endpoints = certificates.endpoints_of(cluster, pods)
    problem, said, busy = certificates.apply_certificates(services, cluster, names, endpoints)
    findings.conditions.append(said)
    findings.busy = findings.busy or busy
    return problem


def _end(upgrade: Upgrade, findings: Findings, whole: bool) -> None:
    upgrade.end(whole)
    if upgrade.said is not None:
        findings.conditions.append(upgrade.said)
        findings.busy = findings.busy or upgrade.goes_on


def _report(
    services: ClusterParts,
    cluster: Cluster,
    findings: Findings,
    pods: Sequence[Mapping[str, Any]],
    found: Outside,
) -> float:
    before = cluster.status.brokers
    if findings.ready > ((before.ready if before is not None else None) or 0):
        services.admins.retry(services.address_of(cluster))  # before the status wakes Topics and groups
    cluster_id = cluster_id_of(services, cluster, findings.ready)
    status = status_of(cluster, findings, pods, found, cluster_id, services.now())
    write_status(services, cluster, status)
    settled = findings.problem is None and not findings.busy and status.cluster_id
    return READY_INTERVAL_S if settled else WAITING_INTERVAL_S


def _pods(services: ClusterParts, cluster: Cluster) -> list[dict[str, Any]]:
    return services.kube.list("v1", "Pod", cluster.namespace, selector(cluster))
