"""A Cluster's Kubernetes objects.

    NAME-brokers     ConfigMap with server.properties and, for broker N, broker-N.properties; StatefulSet with a volume
                     per broker; headless Service that gives every broker a name; PodDisruptionBudget
    NAME-brokerN     Service of broker N: its address for clients inside Kubernetes, whichever pod it has
    NAME-bootstrap   Service in front of all ready brokers: the first address for clients
    NAME-LISTENER-N  Service of broker N for a NodePort or LoadBalancer listener

All belong to the Cluster (ownerReferences), so Kubernetes deletes them with it, without a finalizer. The StatefulSet's
persistentVolumeClaimRetentionPolicy, which is the Cluster's deletionPolicy, decides about the volumes.

A broker's address on each listener differs from the others', and is in a file of its own, so all share one pod
template. The StatefulSet is updated OnDelete: the operator decides when each broker restarts
(reconcile/cluster/rolling.py). The template carries hashes of the configuration that a broker reads once, and a pod
those it was created with: they give the reasons for a restart. Pods satisfy the "restricted" Pod Security Standard.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..models import Cluster, Quantity
from ..models.cluster import UNSTATED, PlatformTls, Unstated
from . import platform, zookeeper_login
from .broker_config import (
    CONFIG_FOLDER,
    DATA,
    HTTP_PORT,
    PLATFORM_FILE,
    PLATFORM_FOLDER,
    RACKS,
    TLS_FOLDER,
    ZOOKEEPER_FOLDER,
    addresses_of,
    broker_set_name,
    files,
    listeners_hash,
    pod_name,
    restart_hash,
    user_hash,
)
from .certificates import certificates_volume
from .listeners import Addresses, all_listeners, operator_port, platform_ports, replication_port
from .owned import (
    RELEASE,
    SPEC_HASH,
    USER,
    Manifest,
    claim_template,
    digest,
    from_field,
    labels,
    metadata,
    probe,
    selector,
    service,
    spread_over_nodes,
    spread_over_racks,
)
from .pods import resources_of, with_template
from .volumes import CONTAINER_SECURITY, UserIds, pod_security, secret_volume, with_owner

CONFIG_HASH = "millstream.dev/config-hash"
LISTENERS_HASH = "millstream.dev/listeners-hash"
USER_HASH = "millstream.dev/user-config-hash"
"""Annotation: hash of the Cluster's configuration and listeners.

The two annotations above also cover the operator's own settings, which a new release may change.
"""
ADDRESSES = "millstream.dev/addresses"
LOG_FORMAT = "log.format"
DRAIN = "shutdown.drain.ms"
DRAIN_MS = 5000
"""Two seconds more than kubelet needs to see that a broker is not ready, so that everybody learns of it."""
TEMPLATE_HASH = "millstream.dev/template-hash"


def bootstrap_of(cluster: Cluster) -> str:
    """The address at which clients inside Kubernetes connect first."""
    return f"{cluster.name}-bootstrap.{cluster.namespace}.svc:{cluster.spec.internal.port}"


def platform_bootstrap_of(cluster: Cluster) -> str:
    """The address at which the operator connects first, with its password."""
    return f"{cluster.name}-bootstrap.{cluster.namespace}.svc:{operator_port(cluster)}"


def config_map(
    cluster: Cluster, brokers: int, addresses: Addresses, racks: Mapping[str, str] | None
) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, broker_set_name(cluster)),
        "data": files(cluster, brokers, addresses, racks),
    }


def brokers_service(cluster: Cluster) -> Manifest:
    return service(
        cluster,
        broker_set_name(cluster),
        # Names for users and tools; brokers and clients have addresses of their own (listeners.py).
        {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(cluster)},
        {"kafka": cluster.spec.internal.port, "http": HTTP_PORT},
    )


def bootstrap_service(cluster: Cluster) -> Manifest:
    spec = {"type": "ClusterIP", "selector": selector(cluster)}
    ports = {"kafka": cluster.spec.internal.port}
    if cluster.spec.platform_login:
        if cluster.spec.platform_tls is not PlatformTls.ON:
            ports["platform"] = replication_port(cluster)
        ports |= platform_ports(cluster)
    return service(cluster, f"{cluster.name}-bootstrap", spec, ports)


def stateful_set(
    cluster: Cluster,
    *,
    image: str,
    pull_policy: str,
    replicas: int | None = None,
    addresses: Addresses | None = None,
    claim_size: Quantity | None = None,
    owner: bool = False,
    racks: bool = False,
    user_ids: UserIds = UserIds.FIXED,
    release: str = "",
    log_format: str = "plain",
) -> Manifest:
    """The brokers.

    ``replicas``: their number, while some beyond the spec are being drained. ``addresses``: those of external
    listeners. ``claim_size``: the size in the claim template of the existing StatefulSet, which Kubernetes never
    changes. ``owner``: see volumes.py. ``racks``: whether racks are known. ``log_format``: for Clusters that do not set
    it.
    """
    brokers = cluster.spec.brokers
    count = brokers.replicas if replicas is None else replicas
    pod_spec = _pod_spec(cluster, image, pull_policy, racks, user_ids, log_format)
    if owner:
        # It runs as root, so it uses the operator's image, whatever the Cluster's own is.
        pod_spec = with_owner(pod_spec, volume="data", user=USER, image=image, pull_policy=pull_policy)
    template = with_template(
        {"metadata": {"labels": labels(cluster), "annotations": {}}, "spec": pod_spec},
        brokers.template,
        container="broker",
        selector=selector(cluster),
    )
    if cluster.spec.platform_login:
        is_open = cluster.spec.internal.is_open
        template["metadata"]["annotations"][platform.STAGE] = platform.OPEN if is_open else platform.CLOSED
    template["metadata"]["annotations"] |= zookeeper_login.pod_annotations(cluster)
    if tls := cluster.spec.platform_tls:
        template["metadata"]["annotations"][platform.TLS_STAGE] = str(tls)
    template["metadata"]["annotations"] |= {
        TEMPLATE_HASH: digest(template),
        CONFIG_HASH: restart_hash(cluster),
        LISTENERS_HASH: listeners_hash(cluster),
        USER_HASH: user_hash(cluster),
        ADDRESSES: addresses_of(count, addresses or {}),
        RELEASE: release,
        SPEC_HASH: digest([cluster.spec.image, brokers.resources, brokers.template, brokers.rack]),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {**metadata(cluster, broker_set_name(cluster)), **_copied(cluster)},
        "spec": {
            "serviceName": broker_set_name(cluster),
            "replicas": count,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
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


def _copied(cluster: Cluster) -> Manifest:
    """What stands in the Cluster's own annotation, if it began with secure listeners."""
    is_secure = cluster.metadata.annotations.get(UNSTATED) == Unstated.SECURE
    return {"annotations": {UNSTATED: Unstated.SECURE.value}} if is_secure else {}


def _credentials_volume(cluster: Cluster) -> Manifest:
    """Without the passwords: brokers only verify them. Its name is one that no volume of a user's has."""
    items = [{"key": PLATFORM_FILE, "path": PLATFORM_FILE}]
    return secret_volume("conf", platform.login_secret(cluster), items=items)


def claim_name(cluster: Cluster, broker: int) -> str:
    """The name that the StatefulSet gives a broker's volume claim."""
    return f"data-{pod_name(cluster, broker)}"


def _pod_spec(
    cluster: Cluster, image: str, pull_policy: str, racks: bool, user_ids: UserIds, log_format: str
) -> Manifest:
    overrides = ["--override", "broker.id=$(POD_INDEX)"]
    if racks:
        overrides += ["--override", f"broker.rack=${{file:{CONFIG_FOLDER}/{RACKS}:$(NODE_NAME)}}"]
    if DRAIN not in cluster.spec.config:
        overrides += ["--override", f"{DRAIN}={DRAIN_MS}"]
    # Part of the pod, not of the configuration: a new setting of the operator is an upgrade, Cluster by Cluster.
    if log_format != "plain" and LOG_FORMAT not in cluster.spec.config:
        overrides += ["--override", f"{LOG_FORMAT}={log_format}"]
    certificates = certificates_volume(cluster)
    logins = zookeeper_login.volumes(cluster)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": pod_security(USER, user_ids),
        "affinity": spread_over_nodes(cluster, "broker"),
        **spread_over_racks(cluster, "broker"),
        "containers": [
            {
                "name": "broker",
                "image": cluster.spec.image or image,
                "imagePullPolicy": pull_policy,
                "command": [
                    "millstream-broker",
                    f"{CONFIG_FOLDER}/server.properties",
                    f"{CONFIG_FOLDER}/broker-$(POD_INDEX).properties",
                ],
                "args": overrides,
                "env": [
                    from_field("POD_INDEX", "metadata.labels['apps.kubernetes.io/pod-index']"),
                    from_field("NODE_NAME", "spec.nodeName"),
                    from_field("HOST_IP", "status.hostIP"),
                    from_field("POD_IP", "status.podIP"),
                ],
                "ports": [
                    *(
                        {"name": listener.name, "containerPort": listener.port}
                        for listener in all_listeners(cluster)
                    ),
                    {"name": "9091-brokers", "containerPort": replication_port(cluster)},
                    *(
                        {"name": "9090-platform", "containerPort": port}
                        for port in platform_ports(cluster).values()
                    ),
                    {"name": "http", "containerPort": HTTP_PORT},
                ],
                "resources": resources_of(cluster.spec.brokers.resources),
                # A log that was not closed is recovered before the broker is ready; the liveness probe waits for that.
                "startupProbe": probe("/readyz", periodSeconds=1, failureThreshold=600),
                # A stopping broker is unready within 3 s: Services drop it before its network stops.
                "readinessProbe": probe("/readyz", periodSeconds=1, failureThreshold=3),
                "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=6),
                "securityContext": CONTAINER_SECURITY,
                # A broker that refuses its configuration gives the reason in its last line, which the condition shows.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "data", "mountPath": DATA},
                    {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                    *(
                        {"name": each["name"], "mountPath": TLS_FOLDER, "readOnly": True}
                        for each in certificates
                    ),
                    *(
                        [{"name": "conf", "mountPath": PLATFORM_FOLDER, "readOnly": True}]
                        if cluster.spec.platform_login
                        else ()
                    ),
                    *(
                        {"name": each["name"], "mountPath": ZOOKEEPER_FOLDER, "readOnly": True}
                        for each in logins
                    ),
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": broker_set_name(cluster)}},
            {"name": "tmp", "emptyDir": {}},
            *certificates,
            *([_credentials_volume(cluster)] if cluster.spec.platform_login else ()),
            *logins,
        ],
    }
