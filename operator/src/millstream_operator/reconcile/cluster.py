"""Cluster: its Kubernetes objects, and how its brokers are.

What this version cannot do (more brokers than one, ZooKeeper) and configuration that is ours to decide is refused
before anything is touched: brokers that run go on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conditions import ConditionType, Reason
from ..kafka_admin import AdminError
from ..models import BrokerCount, Cluster, ClusterStatus, ListenerStatus
from ..quantity import parse_quantity
from ..resources import cluster as build
from ..resources.owned import disruption_budget, labels, selector
from ..services import Services
from ..status import write_status
from .objects import ensure
from .report import Problem, conditions_with
from .volumes import class_needs_owner

READY_INTERVAL_S = 60.0
WAITING_INTERVAL_S = 5.0


def refusal(cluster: Cluster) -> Problem | None:
    """Why a Cluster cannot be as its spec says, for what the schema cannot tell."""
    if cluster.spec.brokers.replicas > 1:
        return Problem(
            Reason.REPLICATION_NOT_AVAILABLE,
            f"spec.brokers.replicas: {cluster.spec.brokers.replicas} is not allowed: this version runs clusters of 1 "
            "broker; nothing was changed",
        )
    if cluster.spec.zookeeper is not None:
        return Problem(
            Reason.ZOOKEEPER_NOT_AVAILABLE,
            "spec.zookeeper: not allowed: this version coordinates its one broker without ZooKeeper; nothing was "
            "changed",
        )
    if reserved := sorted(build.RESERVED_CONFIG.intersection(cluster.spec.config)):
        return Problem(
            Reason.INVALID_CONFIG,
            f"spec.config[{reserved[0]}]: not allowed: the operator decides "
            f"{', '.join(sorted(build.RESERVED_CONFIG))}; nothing was changed",
        )
    return None


def reconcile_cluster(services: Services, cluster: Cluster) -> float:
    """One look at one Cluster; returns seconds until the next."""
    if cluster.metadata.deletion_timestamp is not None:
        return READY_INTERVAL_S  # its objects go with it
    problem = refusal(cluster)
    if problem is None:
        node_ports = _apply_services(services, cluster)
        stateful_set: Mapping[str, Any] | None = _apply_brokers(services, cluster, node_ports)
    else:
        node_ports = {}
        stateful_set = services.kube.get(
            "apps/v1", "StatefulSet", cluster.namespace, build.broker_set_name(cluster)
        )
    desired = cluster.spec.brokers.replicas
    ready = ready_brokers(stateful_set, desired if problem is None else None)
    pods: Sequence[Mapping[str, Any]] = ()
    if problem is None and (ready < desired or node_ports):
        pods = services.kube.list("v1", "Pod", cluster.namespace, selector(cluster))
    if problem is None and ready < desired:
        problem = why_not_ready(pods, ready, desired)
    status = ClusterStatus(
        observed_generation=cluster.metadata.generation,
        cluster_id=_cluster_id(services, cluster, ready),
        brokers=BrokerCount(desired=desired, ready=ready),
        bootstrap=build.bootstrap_of(cluster),
        listeners=listener_status(node_ports, pods) or cluster.status.listeners if node_ports else None,
        conditions=conditions_with(cluster, _ready_condition(problem, desired), now=services.now()),
    )
    write_status(services, cluster, status)
    return READY_INTERVAL_S if problem is None and status.cluster_id else WAITING_INTERVAL_S


def ready_brokers(stateful_set: Mapping[str, Any] | None, desired: int | None) -> int:
    """Brokers that serve; with ``desired``, only those that run what the StatefulSet says now."""
    if stateful_set is None:
        return 0
    status = stateful_set.get("status") or {}
    ready = int(status.get("readyReplicas") or 0)
    if desired is None:
        return ready
    if (status.get("observedGeneration") or 0) < stateful_set["metadata"].get("generation", 0):
        return 0
    return min(ready, int(status.get("updatedReplicas") or 0))


def why_not_ready(pods: Sequence[Mapping[str, Any]], ready: int, desired: int) -> Problem:
    """What the brokers' pods say."""
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        for container in status.get("containerStatuses") or ():
            ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get(
                "terminated"
            )
            if not container.get("ready") and ended and ended.get("exitCode"):
                words = (ended.get("message") or "").strip().splitlines()
                said = words[-1] if words else f"exit status {ended['exitCode']}, {ended.get('reason', '')}"
                return Problem(Reason.BROKER_FAILED, f"{name}: {said}")
            waiting = container.get("state", {}).get("waiting") or {}
            if waiting.get("message"):
                return Problem(Reason.BROKERS_STARTING, f"{name}: {waiting['reason']}: {waiting['message']}")
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return Problem(
                    Reason.BROKERS_STARTING, f"{name}: {condition.get('message', 'not scheduled')}"
                )
    return Problem(Reason.BROKERS_STARTING, f"{ready} of {desired} brokers are ready")


def listener_status(
    node_ports: Mapping[str, int], pods: Sequence[Mapping[str, Any]]
) -> tuple[ListenerStatus, ...]:
    """Where clients outside connect: the nodes of the brokers, at the listener's port."""
    hosts = sorted({pod["status"]["hostIP"] for pod in pods if (pod.get("status") or {}).get("hostIP")})
    if not hosts:
        return ()
    return tuple(
        ListenerStatus(name=name, bootstrap=",".join(f"{host}:{port}" for host in hosts))
        for name, port in node_ports.items()
    )


def _ready_condition(problem: Problem | None, desired: int) -> tuple[ConditionType, bool, Reason, str]:
    if problem is not None:
        return ConditionType.READY, False, problem.reason, problem.message
    words = "the broker is ready" if desired == 1 else f"all {desired} brokers are ready"
    return ConditionType.READY, True, Reason.ALL_BROKERS_READY, words


def _apply_services(services: Services, cluster: Cluster) -> dict[str, int]:
    """Everything the brokers need before they start; returns the node's port by NodePort listener."""
    for manifest in (
        build.config_map(cluster),
        build.brokers_service(cluster),
        build.bootstrap_service(cluster),
        disruption_budget(cluster, build.broker_set_name(cluster), "broker"),
    ):
        ensure(services.kube, manifest)
    listeners = {
        build.external_service_name(cluster, listener, 0): listener.name
        for listener in build.external_listeners(cluster)
    }
    node_ports: dict[str, int] = {}
    for manifest in build.external_services(cluster):
        live = ensure(services.kube, manifest)
        if name := listeners.get(manifest["metadata"]["name"]):
            node_ports[name] = live["spec"]["ports"][0]["nodePort"]
    _drop_services(services, cluster, keep=set(listeners))
    return node_ports


def _drop_services(services: Services, cluster: Cluster, keep: set[str]) -> None:
    """Delete the Services of listeners that are no longer in the spec."""
    fixed = {build.broker_set_name(cluster), f"{cluster.name}-bootstrap"}
    for service in services.kube.list("v1", "Service", cluster.namespace, labels(cluster)):
        metadata = service["metadata"]
        ours = any(owner.get("uid") == cluster.metadata.uid for owner in metadata.get("ownerReferences", ()))
        if ours and metadata["name"] not in keep | fixed:
            services.kube.delete("v1", "Service", cluster.namespace, metadata["name"])


def _apply_brokers(services: Services, cluster: Cluster, node_ports: Mapping[str, int]) -> Mapping[str, Any]:
    live = services.kube.get("apps/v1", "StatefulSet", cluster.namespace, build.broker_set_name(cluster))
    claim_size = None
    if live is not None:
        claim_size = live["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    wanted = build.stateful_set(
        cluster,
        image=services.images.broker,
        pull_policy=services.images.pull_policy,
        node_ports=node_ports,
        claim_size=claim_size,
        owner=class_needs_owner(services, cluster.spec.brokers.storage.class_name),
    )
    result = ensure(services.kube, wanted)
    _grow_volumes(services, cluster)
    return result


def _grow_volumes(services: Services, cluster: Cluster) -> None:
    """Ask for bigger volumes where they are smaller than the spec says; one that is bigger stays."""
    wanted = cluster.spec.brokers.storage.size
    for broker in range(cluster.spec.brokers.replicas):
        name = build.claim_name(cluster, broker)
        claim = services.kube.get("v1", "PersistentVolumeClaim", cluster.namespace, name)
        if claim is None or parse_quantity(
            claim["spec"]["resources"]["requests"]["storage"]
        ) >= parse_quantity(wanted):
            continue
        services.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"namespace": cluster.namespace, "name": name},
                "spec": {"resources": {"requests": {"storage": wanted}}},
            }
        )


def _cluster_id(services: Services, cluster: Cluster, ready: int) -> str | None:
    if cluster.status.cluster_id or not ready:
        return cluster.status.cluster_id
    try:
        return services.admins.at(services.address_of(cluster)).cluster_id()
    except AdminError:
        return None  # ready a moment ago: the next look will tell
