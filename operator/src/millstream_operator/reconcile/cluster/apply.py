"""Cluster: its brokers, their configuration, certificates and restarts, wherever they run (state/context.py).

A reconcile takes these steps. Each changes only what differs; what cannot be done yet is reported and retried:

    fewer or more brokers                          move replicas, before or after (scaling.py)
    live configuration                             set it on the running brokers (kafka.py)
    ZooKeeper, addresses                           `prepare` of the brokers (pods.py, local/brokers.py)
    certificates                                   issue and renew them (certificates.py)
    configuration, brokers                         `run` of the brokers
    restarts                                       one broker at a time, as partitions allow (rolling.py)

An invalid spec is refused before anything is changed: running brokers continue as they are. The same holds while the
Cluster is paused by its annotation.
"""

from __future__ import annotations

from ...models import Cluster
from ...models.conditions import ConditionType, Reason
from ...models.problem import Problem, is_paused
from ...models.roll import Roll
from ...state.cache import key_for
from ...state.context import ClusterBrokers, ClusterParts
from ...state.status import write_status
from .certificates import apply_certificates
from .kafka import View, cluster_id_of, configure_live, scale, spread
from .plan import Findings, is_rolling, kept_roll, refusal, rolling_condition, status_of
from .rolling import plan_roll, unreachable_minimums, wait_for_all

READY_INTERVAL_S = 60.0
WAITING_INTERVAL_S = 5.0


def reconcile_cluster(services: ClusterParts, cluster: Cluster) -> float:
    """Reconcile one Cluster; returns seconds until the next reconcile."""
    if cluster.metadata.deletion_timestamp is not None:
        services.upgrade_queue.leave(services.store, key_for(cluster))
        return READY_INTERVAL_S  # Kubernetes deletes its objects too
    brokers = services.broker_runtime.open(services, cluster)
    findings = findings_of(brokers)
    if is_paused(cluster):
        return _left_alone(services, brokers, findings)
    findings.problem = refusal(brokers.cluster) or brokers.refusal() or brokers.stage(findings.warn)
    if findings.problem is not None:
        return _left_alone(services, brokers, findings)
    cluster = brokers.cluster
    view = View(services.brokers_of(cluster) if brokers.ready else None)
    replicas = scale(cluster, brokers.current, view, findings)
    if not configure_live(cluster, view, findings):
        return _left_alone(services, brokers, findings)
    problem = brokers.prepare(replicas, findings.warn) or _certificates(services, brokers, replicas, findings)
    if problem is not None:
        findings.problem = problem
        _end(brokers, findings)
        return report(services, brokers, findings)
    problem = brokers.run(replicas, findings.warn)
    findings.ready, findings.problem = brokers.ready, findings.problem or problem
    _roll(brokers, replicas, view, findings)
    _end(brokers, findings)
    if not findings.busy and findings.problem is None:
        findings.busy = brokers.maintain()
        if brokers.rebalances:
            spread(cluster, view, findings)
    findings.strays = view.strays()
    findings.busy = findings.busy or bool(view.failure)
    return report(services, brokers, findings)


def findings_of(brokers: ClusterBrokers) -> Findings:
    """What is known before anything is done."""
    cluster = brokers.cluster
    # the roll's condition stays until a reconcile gets as far as the pods
    conditions = [*kept_roll(cluster), *brokers.conditions()]
    return Findings(ready=brokers.ready, config_keys=cluster.status.config_keys, conditions=conditions)


def _left_alone(services: ClusterParts, brokers: ClusterBrokers, findings: Findings) -> float:
    services.upgrade_queue.leave(services.store, key_for(brokers.cluster))
    return report(services, brokers, findings)


def _roll(brokers: ClusterBrokers, replicas: int, view: View, findings: Findings) -> None:
    """Restart the next stale broker, if one may be restarted now, and report the Cluster's progress."""
    servers, pods = brokers.servers, brokers.pods()
    findings.busy = findings.busy or bool(servers.words)
    findings.conditions = [
        condition for condition in findings.conditions if condition[0] is not ConditionType.ROLLING_UPDATE
    ]
    if not any(pod.reasons for pod in pods):
        end = Roll()
        if is_rolling(brokers.cluster):
            end = wait_for_all([pod for pod in pods if pod.number < replicas], replicas)
        # neither while the Cluster is being made, nor because servers are down
        if servers.remaining or servers.is_end or (servers.is_usual and findings.ready):
            end = servers
        if end.words:
            findings.conditions.append(rolling_condition(end))
            findings.busy = True
        return
    partitions = view.partitions()
    roll = plan_roll(pods, replicas, partitions, view.brokers(), servers)
    findings.problem = brokers.restart(roll) or findings.problem
    findings.busy = True
    findings.conditions.append(rolling_condition(roll))
    if partitions is not None and (topics := unreachable_minimums(partitions)):
        words = (
            f"min.insync.replicas of {', '.join(topics[:3])} needs every replica: while a broker restarts, "
            "acks=all waits; lower it or raise replicationFactor"
        )
        findings.warn(Reason.MINIMUM_ISR, words)


def _certificates(
    services: ClusterParts, brokers: ClusterBrokers, replicas: int, findings: Findings
) -> Problem | None:
    """Apply the certificates of listeners with TLS; returns why brokers cannot have them."""
    if not brokers.cluster.spec.is_encrypted:
        return None
    problem, condition, busy = apply_certificates(
        services, brokers.cluster, brokers.names(replicas), brokers.endpoints()
    )
    findings.conditions.append(condition)
    findings.busy = findings.busy or busy
    return problem


def _end(brokers: ClusterBrokers, findings: Findings) -> None:
    condition, continues = brokers.end()
    findings.conditions += [condition] if condition is not None else []
    findings.busy = findings.busy or continues


def report(services: ClusterParts, brokers: ClusterBrokers, findings: Findings) -> float:
    """Write the status; returns seconds until the next reconcile."""
    cluster = brokers.cluster
    before = cluster.status.brokers
    if findings.ready > ((before.ready if before is not None else None) or 0):
        services.admins.retry(services.address_of(cluster))  # before the status wakes Topics and groups
    cluster_id = cluster_id_of(services, cluster, findings.ready)
    status = status_of(cluster, findings, *brokers.addresses(), cluster_id, services.now())
    write_status(services, cluster, status)
    settled = findings.problem is None and not findings.busy and status.cluster_id
    return READY_INTERVAL_S if settled else WAITING_INTERVAL_S
