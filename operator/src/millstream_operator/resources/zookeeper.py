"""The ZooKeeper ensemble that a Cluster brings along.

    NAME-zookeeper   StatefulSet of 1 or 3 servers with a volume each; headless Service that names them;
                     PodDisruptionBudget

The image is the official one (or one that reads the same `ZOO_*` variables). Servers are counted from 1, as their ids
are. Readiness asks the server whether it serves, so that a rolling update waits for the quorum to be whole again;
liveness does not, since a server without a quorum is to wait for it. The volumes are of the brokers' storage class and
go when theirs go.
"""

from __future__ import annotations

from ..models import Cluster, Quantity
from .owned import (
    USER,
    Manifest,
    claim_template,
    disruption_budget,
    from_field,
    labels,
    metadata,
    selector,
    service,
    spread_over_nodes,
)
from .volumes import UserIds, pod_security, with_owner

COMPONENT = "zookeeper"
CLIENT_PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888
SERVES = f"exec 3<>/dev/tcp/127.0.0.1/{CLIENT_PORT} && echo srvr >&3 && grep -q ^Mode: <&3"
HEAP_MB = 256
CONTAINER_SECURITY: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def name_of(cluster: Cluster) -> str:
    return f"{cluster.name}-zookeeper"


def connect_of(cluster: Cluster) -> str:
    """The brokers' `zookeeper.connect`; empty where the one broker coordinates itself."""
    zookeeper = cluster.spec.zookeeper
    if zookeeper is None:
        return ""
    if zookeeper.connect is not None:
        return zookeeper.connect
    return ",".join(f"{_host(cluster, server)}:{CLIENT_PORT}" for server in _servers(cluster))


def objects(
    cluster: Cluster,
    *,
    image: str,
    pull_policy: str,
    claim_size: Quantity | None = None,
    owner: bool = False,
    user_ids: UserIds = UserIds.FIXED,
) -> list[Manifest]:
    """Everything of the ensemble; nothing where the Cluster has none of its own. Parameters as for the brokers."""
    if cluster.spec.zookeeper is None or cluster.spec.zookeeper.replicas is None:
        return []
    return [
        service(
            cluster,
            name_of(cluster),
            # The servers must find each other before they can be ready.
            {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": selector(cluster, COMPONENT),
            },
            {"client": CLIENT_PORT, "peer": PEER_PORT, "election": ELECTION_PORT},
            COMPONENT,
        ),
        disruption_budget(cluster, name_of(cluster), COMPONENT),
        _stateful_set(cluster, image, pull_policy, claim_size, owner, user_ids),
    ]


def _servers(cluster: Cluster) -> range:
    zookeeper = cluster.spec.zookeeper
    return range(1, (zookeeper.replicas or 0) + 1 if zookeeper is not None else 1)


def _host(cluster: Cluster, server: int) -> str:
    return f"{name_of(cluster)}-{server}.{name_of(cluster)}.{cluster.namespace}.svc"


def _stateful_set(
    cluster: Cluster,
    image: str,
    pull_policy: str,
    claim_size: Quantity | None,
    owner: bool,
    user_ids: UserIds,
) -> Manifest:
    zookeeper = cluster.spec.zookeeper
    assert zookeeper is not None
    size = zookeeper.storage.size if claim_size is None else claim_size
    pod_spec = _pod_spec(cluster, image, pull_policy, user_ids)
    if owner:
        pod_spec = with_owner(pod_spec, volume="data", user=USER, image=image, pull_policy=pull_policy)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(cluster, name_of(cluster), COMPONENT),
        "spec": {
            "serviceName": name_of(cluster),
            "replicas": zookeeper.replicas,
            "ordinals": {"start": 1},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector(cluster, COMPONENT)},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": cluster.spec.brokers.storage.deletion_policy,
                "whenScaled": "Retain",
            },
            "template": {"metadata": {"labels": labels(cluster, COMPONENT)}, "spec": pod_spec},
            "volumeClaimTemplates": [claim_template(cluster, size, COMPONENT)],
        },
    }


def _pod_spec(cluster: Cluster, image: str, pull_policy: str, user_ids: UserIds) -> Manifest:
    servers = " ".join(
        f"server.{server}={_host(cluster, server)}:{PEER_PORT}:{ELECTION_PORT};{CLIENT_PORT}"
        for server in _servers(cluster)
    )
    settings = {
        "ZOO_SERVERS": servers,
        # A server's own name may not resolve yet when it starts.
        "ZOO_CFG_EXTRA": "quorumListenOnAllIPs=true",
        "ZOO_4LW_COMMANDS_WHITELIST": "ruok,srvr,mntr",
        "ZOO_ADMINSERVER_ENABLED": "false",
        "ZOO_AUTOPURGE_PURGEINTERVAL": "24",
        "ZOO_MAX_CLIENT_CNXNS": "0",
        "ZK_SERVER_HEAP": str(HEAP_MB),
        "JMXDISABLE": "true",
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(USER, user_ids),
        "affinity": spread_over_nodes(cluster, COMPONENT),
        # The folders that are mounted: Kubernetes would make them itself, and root's.
        "initContainers": [
            {
                "name": "folders",
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["mkdir", "-p", "/volume/data", "/volume/datalog"],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [{"name": "data", "mountPath": "/volume"}],
            }
        ],
        "containers": [
            {
                "name": "zookeeper",
                "image": image,
                "imagePullPolicy": pull_policy,
                "env": [
                    from_field("ZOO_MY_ID", "metadata.labels['apps.kubernetes.io/pod-index']"),
                    *({"name": name, "value": value} for name, value in settings.items()),
                ],
                "ports": [
                    {"name": "client", "containerPort": CLIENT_PORT},
                    {"name": "peer", "containerPort": PEER_PORT},
                    {"name": "election", "containerPort": ELECTION_PORT},
                ],
                "resources": {
                    "requests": {"cpu": "100m", "memory": f"{HEAP_MB}Mi"},
                    "limits": {"memory": f"{2 * HEAP_MB}Mi"},
                },
                "readinessProbe": {
                    "exec": {"command": ["bash", "-c", SERVES]},
                    "timeoutSeconds": 5,
                    "periodSeconds": 3,
                    "failureThreshold": 3,
                },
                "livenessProbe": {
                    "tcpSocket": {"port": "client"},
                    "initialDelaySeconds": 60,
                    "periodSeconds": 10,
                    "failureThreshold": 6,
                },
                # the image's entrypoint writes /conf, so its root file system stays writable
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data", "subPath": "data"},
                    {"name": "data", "mountPath": "/datalog", "subPath": "datalog"},
                ],
            }
        ],
    }
