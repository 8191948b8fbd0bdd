"""A Cluster's Kubernetes objects.

    NAME-brokers     ConfigMap with server.properties; StatefulSet with a volume a broker; headless Service that gives
                     every broker a name; PodDisruptionBudget
    NAME-bootstrap   Service in front of all brokers that are ready: where clients connect first
    NAME-LISTENER-N  Service of broker N for a NodePort listener

All belong to the Cluster (ownerReferences), so that Kubernetes deletes them with it, without a finalizer; what becomes
of the volumes is the StatefulSet's persistentVolumeClaimRetentionPolicy, which is the Cluster's deletionPolicy.

A broker's own address needs its pod's name and node, so that `advertised.listeners` is an argument of the command and
not in the file. Pods satisfy the "restricted" Pod Security Standard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ..models import Cluster, Listener, Quantity
from .merge import merge
from .owned import (
    POD_SECURITY,
    USER,
    Manifest,
    claim_template,
    from_field,
    labels,
    metadata,
    probe,
    selector,
    service,
    spread_over_nodes,
)
from .volumes import with_owner

CONFIG_HASH = "millstream.dev/config-hash"
HTTP_PORT = 9404
DATA = "/var/lib/millstream"
CONFIG_FOLDER = "/etc/millstream"
# What the operator decides, because it would not work otherwise.
RESERVED_CONFIG = frozenset(
    (
        "advertised.listeners",
        "broker.id",
        "http.listener",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "zookeeper.connect",
    )
)


def bootstrap_of(cluster: Cluster) -> str:
    """Where clients inside Kubernetes connect."""
    return f"{cluster.name}-bootstrap.{cluster.namespace}.svc:{cluster.spec.internal.port}"


def broker_set_name(cluster: Cluster) -> str:
    return f"{cluster.name}-brokers"


def broker_config(cluster: Cluster) -> dict[str, str]:
    """server.properties as the user's configuration and ours make it."""
    listeners = all_listeners(cluster)
    return {
        **cluster.spec.config,
        "log.dirs": DATA,
        "listeners": ",".join(f"{kafka_name(listener)}://0.0.0.0:{listener.port}" for listener in listeners),
        "listener.security.protocol.map": ",".join(
            f"{kafka_name(listener)}:PLAINTEXT" for listener in listeners
        ),
        "inter.broker.listener.name": kafka_name(cluster.spec.internal),
        "http.listener": f"0.0.0.0:{HTTP_PORT}",
    }


def properties(config: Mapping[str, str]) -> str:
    """A properties file; what its format would read otherwise is escaped.
    https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)"""
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    lines = []
    for key, value in sorted(config.items()):
        text = value.translate(escaped)
        lines.append(f"{key}={chr(92) + text if text[:1] == ' ' else text}\n")
    return "".join(lines)


def all_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return cluster.spec.listeners or (cluster.spec.internal,)


def external_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return tuple(listener for listener in cluster.spec.listeners if listener.type == "NodePort")


def kafka_name(listener: Listener) -> str:
    """A listener's name as Kafka writes it."""
    return listener.name.upper().replace("-", "_")


def external_service_name(cluster: Cluster, listener: Listener, broker: int) -> str:
    return f"{cluster.name}-{listener.name}-{broker}"


def config_map(cluster: Cluster) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, broker_set_name(cluster)),
        "data": {"server.properties": properties(broker_config(cluster))},
    }


def brokers_service(cluster: Cluster) -> Manifest:
    return service(
        cluster,
        broker_set_name(cluster),
        # Brokers and clients must find a broker that is about to be ready too.
        {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(cluster)},
        {"kafka": cluster.spec.internal.port, "http": HTTP_PORT},
    )


def bootstrap_service(cluster: Cluster) -> Manifest:
    spec = {"type": "ClusterIP", "selector": selector(cluster)}
    return service(cluster, f"{cluster.name}-bootstrap", spec, {"kafka": cluster.spec.internal.port})


def external_services(cluster: Cluster) -> list[Manifest]:
    """A Service for each NodePort listener and broker: clients talk to brokers one by one."""
    services = []
    for listener in external_listeners(cluster):
        for broker in range(cluster.spec.brokers.replicas):
            name = external_service_name(cluster, listener, broker)
            pod = {"statefulset.kubernetes.io/pod-name": f"{broker_set_name(cluster)}-{broker}"}
            entry = service(
                cluster,
                name,
                {"type": "NodePort", "selector": {**selector(cluster), **pod}},
                {"kafka": listener.port},
            )
            if listener.node_port is not None and broker == 0:
                entry["spec"]["ports"][0]["nodePort"] = listener.node_port
            services.append(entry)
    return services


def stateful_set(
    cluster: Cluster,
    *,
    image: str,
    pull_policy: str,
    node_ports: Mapping[str, int],
    claim_size: Quantity | None = None,
    owner: bool = False,
) -> Manifest:
    """The brokers. ``node_ports``: the node's port by NodePort listener. ``claim_size``: the size in the claim template
    of the StatefulSet that is there, which Kubernetes does not let us change. ``owner``: see volumes.py."""
    brokers = cluster.spec.brokers
    pod_spec = _pod_spec(cluster, image, pull_policy, node_ports)
    if owner:
        broker_image = cluster.spec.image or image
        pod_spec = with_owner(pod_spec, volume="data", user=USER, image=broker_image, pull_policy=pull_policy)
    template = merge(
        {
            "metadata": {
                "labels": labels(cluster),
                "annotations": {CONFIG_HASH: _hash(properties(broker_config(cluster)))},
            },
            "spec": pod_spec,
        },
        {
            "metadata": {
                "labels": dict(brokers.template.metadata.labels),
                "annotations": dict(brokers.template.metadata.annotations),
            },
            "spec": brokers.template.spec,
        },
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(cluster, broker_set_name(cluster)),
        "spec": {
            "serviceName": broker_set_name(cluster),
            "replicas": brokers.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector(cluster)},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": brokers.storage.deletion_policy,
                "whenScaled": "Retain",
            },
            "template": template,
            "volumeClaimTemplates": [
                claim_template(cluster, brokers.storage.size if claim_size is None else claim_size)
            ],
        },
    }


def claim_name(cluster: Cluster, broker: int) -> str:
    """The name that the StatefulSet gives a broker's volume claim."""
    return f"data-{broker_set_name(cluster)}-{broker}"


def _pod_spec(cluster: Cluster, image: str, pull_policy: str, node_ports: Mapping[str, int]) -> Manifest:
    pod_address = f"$(POD_NAME).{broker_set_name(cluster)}.{cluster.namespace}.svc"
    advertised = [f"{kafka_name(cluster.spec.internal)}://{pod_address}:{cluster.spec.internal.port}"]
    advertised += [
        f"{kafka_name(listener)}://$(HOST_IP):{node_ports[listener.name]}"
        for listener in external_listeners(cluster)
    ]
    resources = cluster.spec.brokers.resources
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": POD_SECURITY,
        "affinity": spread_over_nodes(cluster, "broker"),
        "containers": [
            {
                "name": "broker",
                "image": cluster.spec.image or image,
                "imagePullPolicy": pull_policy,
                "command": ["millstream-broker", f"{CONFIG_FOLDER}/server.properties"],
                "args": [
                    *("--override", "broker.id=$(POD_INDEX)"),
                    *("--override", f"advertised.listeners={','.join(advertised)}"),
                ],
                "env": [
                    from_field("POD_INDEX", "metadata.labels['apps.kubernetes.io/pod-index']"),
                    from_field("POD_NAME", "metadata.name"),
                    from_field("HOST_IP", "status.hostIP"),
                ],
                "ports": [
                    *(
                        {"name": listener.name, "containerPort": listener.port}
                        for listener in all_listeners(cluster)
                    ),
                    {"name": "http", "containerPort": HTTP_PORT},
                ],
                "resources": {"requests": dict(resources.requests), "limits": dict(resources.limits)},
                # A log that was not closed is recovered before the broker is ready; liveness waits for that.
                "startupProbe": probe("/readyz", periodSeconds=1, failureThreshold=600),
                "readinessProbe": probe("/readyz", periodSeconds=5, failureThreshold=3),
                "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=6),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                # A broker that refuses its configuration says why in its last line: the Cluster's condition shows it.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "data", "mountPath": DATA},
                    {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": broker_set_name(cluster)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
