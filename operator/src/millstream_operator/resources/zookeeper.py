"""The ZooKeeper ensemble of a Cluster that runs its own.

    NAME-zookeeper    StatefulSet of 1 or 3 servers with a volume each; its headless Service; PodDisruptionBudget
    NAME-zookeeperN   Service of server N: its address for brokers and its peers, whichever pod it has

Brokers log in with the password in a Secret (zookeeper_login.py), which each server reads when it starts.

The image is the official one (or one that reads the same `ZOO_*` variables). Servers are counted from 1, like their
ids. The readiness probe checks that the server serves, so a rolling update waits until the quorum is complete again;
the liveness probe does not, because a server without a quorum should wait for it. The volumes use the brokers' storage
class, and are deleted with the brokers' volumes.
"""

from __future__ import annotations

from ..models import Cluster, Quantity
from ..models.cluster import SecuredZooKeeper, ZooKeeperResources
from ..models.quantity import parse_quantity
from .owned import (
    RELEASE,
    SPEC_HASH,
    USER,
    Manifest,
    claim_template,
    digest,
    disruption_budget,
    from_field,
    labels,
    metadata,
    selector,
    service,
    spread_over_nodes,
    spread_over_racks,
)
from .pods import SMALL_STEP, resources_of, with_template
from .volumes import WRITABLE_CONTAINER_SECURITY, UserIds, pod_security, secret_volume, with_owner

COMPONENT = "zookeeper"
CLIENT_PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888
SERVES = f"exec 3<>/dev/tcp/127.0.0.1/{CLIENT_PORT} && echo srvr >&3 && grep -q ^Mode: <&3"
HEAP_MIB = 256
# Java keeps addresses for 30 s and failed look-ups for 10 s, and only this file can change the latter. A restarted
# server has another address, at which its peers must find it at once.
JAVA_SECURITY = "networkaddress.cache.ttl=1\nnetworkaddress.cache.negative.ttl=0\n"
JAVA_SECURITY_FILE = "data/java.security"
PREPARE = f'mkdir -p data datalog && printf %s "$JAVA_SECURITY" > {JAVA_SECURITY_FILE}'
LOGIN = "millstream.dev/zookeeper-login"
"""Annotation of pods of servers and brokers: fingerprint of the login that they have."""
LOGIN_FOLDER, LOGIN_FILE = "/run/millstream/login", "zookeeper.jaas"
SASL_PROVIDER = "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
COPY_CONF = "cp -r /conf/. /own-conf/"


def name_of(cluster: Cluster) -> str:
    return f"{cluster.name}-zookeeper"


def login_secret(cluster: Cluster) -> str:
    """The Secret with the servers' configuration of SASL."""
    return f"{name_of(cluster)}-login"


def secured(cluster: Cluster) -> SecuredZooKeeper | None:
    """The ensemble, if its servers accept logins."""
    found = cluster.spec.zookeeper
    return found if isinstance(found, SecuredZooKeeper) else None


def connect_of(cluster: Cluster) -> str:
    """The brokers' `zookeeper.connect`; empty if the single broker coordinates itself."""
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
    release: str = "",
) -> list[Manifest]:
    """All objects of the ensemble; none if the Cluster has no ensemble of its own. Parameters as for the brokers."""
    if cluster.spec.zookeeper is None or cluster.spec.zookeeper.replicas is None:
        return []
    return [
        _service(cluster, name_of(cluster), {"clusterIP": "None"}, {}),
        *(
            _service(cluster, _service_name(cluster, server), {"type": "ClusterIP"}, _pod_of(cluster, server))
            for server in _servers(cluster)
        ),
        disruption_budget(cluster, name_of(cluster), COMPONENT),
        _stateful_set(cluster, image, pull_policy, claim_size, owner, user_ids, release),
    ]


def _servers(cluster: Cluster) -> range:
    zookeeper = cluster.spec.zookeeper
    return range(1, (zookeeper.replicas or 0) + 1 if zookeeper is not None else 1)


def _service(cluster: Cluster, name: str, spec: Manifest, of: dict[str, str]) -> Manifest:
    wanted = {
        **spec,
        # The servers must find each other before they can be ready.
        "publishNotReadyAddresses": True,
        "selector": {**selector(cluster, COMPONENT), **of},
    }
    ports = {"client": CLIENT_PORT, "peer": PEER_PORT, "election": ELECTION_PORT}
    return service(cluster, name, wanted, ports, COMPONENT)


def _service_name(cluster: Cluster, server: int) -> str:
    return f"{name_of(cluster)}{server}"


def _pod_of(cluster: Cluster, server: int) -> dict[str, str]:
    return {"statefulset.kubernetes.io/pod-name": f"{name_of(cluster)}-{server}"}


def _host(cluster: Cluster, server: int) -> str:
    """A server's host for brokers and peers. A restarted server has another pod, with another address."""
    return f"{_service_name(cluster, server)}.{cluster.namespace}.svc"


def _stateful_set(
    cluster: Cluster,
    image: str,
    pull_policy: str,
    claim_size: Quantity | None,
    owner: bool,
    user_ids: UserIds,
    release: str,
) -> Manifest:
    zookeeper = cluster.spec.zookeeper
    assert zookeeper is not None
    size = zookeeper.storage.size if claim_size is None else claim_size
    pod_spec = _pod_spec(cluster, image, pull_policy, user_ids, zookeeper.resources)
    if owner:
        pod_spec = with_owner(pod_spec, volume="data", user=USER, image=image, pull_policy=pull_policy)
    has_login = secured(cluster)
    annotations = {} if has_login is None else {"annotations": {LOGIN: has_login.login}}
    template = with_template(
        {"metadata": {"labels": labels(cluster, COMPONENT), **annotations}, "spec": pod_spec},
        zookeeper.template,
        container="zookeeper",
        selector=selector(cluster, COMPONENT),
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        # not the template's: a release with the same image restarts no server
        "metadata": {
            **metadata(cluster, name_of(cluster), COMPONENT),
            "annotations": {
                RELEASE: release,
                SPEC_HASH: digest(zookeeper if has_login is None else has_login.given),
            },
        },
        "spec": {
            "serviceName": name_of(cluster),
            "replicas": zookeeper.replicas,
            "ordinals": {"start": 1},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector(cluster, COMPONENT)},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": cluster.spec.brokers.storage.deletion_policy,
                "whenScaled": "Retain",
            },
            "template": template,
            "volumeClaimTemplates": [claim_template(cluster, size, COMPONENT)],
        },
    }


def heap_mib(resources: ZooKeeperResources) -> int:
    """Java's heap: half of the container's memory limit, which leaves room for the rest of the process."""
    memory = resources.limits.get("memory", resources.requests.get("memory"))
    return HEAP_MIB if memory is None else max(1, int(parse_quantity(memory) / 2**20 / 2))


def _pod_spec(
    cluster: Cluster, image: str, pull_policy: str, user_ids: UserIds, resources: ZooKeeperResources
) -> Manifest:
    servers = " ".join(
        f"server.{server}={_host(cluster, server)}:{PEER_PORT}:{ELECTION_PORT};{CLIENT_PORT}"
        for server in _servers(cluster)
    )
    has_login = secured(cluster) is not None
    java = [f"-Djava.security.properties=/{JAVA_SECURITY_FILE}"]
    extra = ["quorumListenOnAllIPs=true"]
    if has_login:
        java.append(f"-Djava.security.auth.login.config={LOGIN_FOLDER}/{LOGIN_FILE}")
        extra.append(SASL_PROVIDER)
    settings = {
        "ZOO_SERVERS": servers,
        # A server's own name may not resolve yet when it starts.
        "ZOO_CFG_EXTRA": " ".join(extra),
        "ZOO_4LW_COMMANDS_WHITELIST": "ruok,srvr,mntr",
        "ZOO_ADMINSERVER_ENABLED": "false",
        "ZOO_AUTOPURGE_PURGEINTERVAL": "24",
        "ZOO_MAX_CLIENT_CNXNS": "0",
        "ZK_SERVER_HEAP": str(heap_mib(resources)),
        "JMXDISABLE": "true",
        "JAVA_TOOL_OPTIONS": " ".join(java),
    }
    # The image's entrypoint writes /conf, which belongs to the image's own user.
    own_folder = user_ids is UserIds.ASSIGNED
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(USER, user_ids),
        "affinity": spread_over_nodes(cluster, COMPONENT),
        **spread_over_racks(cluster, COMPONENT),
        # The mounted folders (which Kubernetes would create as root's), and Java's properties.
        "initContainers": [
            {
                "name": "folders",
                "image": image,
                "imagePullPolicy": pull_policy,
                "command": ["sh", "-c", f"{PREPARE} && {COPY_CONF}" if own_folder else PREPARE],
                "env": [{"name": "JAVA_SECURITY", "value": JAVA_SECURITY}],
                "workingDir": "/volume",
                "resources": SMALL_STEP,
                "securityContext": WRITABLE_CONTAINER_SECURITY,
                "volumeMounts": [{"name": "data", "mountPath": "/volume"}, *_conf(own_folder, "/own-conf")],
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
                "resources": resources_of(resources),
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
                "securityContext": WRITABLE_CONTAINER_SECURITY,
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data", "subPath": "data"},
                    {"name": "data", "mountPath": "/datalog", "subPath": "datalog"},
                    *_conf(own_folder, "/conf"),
                    *([{"name": "run", "mountPath": LOGIN_FOLDER, "readOnly": True}] if has_login else ()),
                ],
            }
        ],
        **({"volumes": volumes} if (volumes := _volumes(cluster, own_folder, has_login)) else {}),
    }


def _volumes(cluster: Cluster, own_folder: bool, has_login: bool) -> list[Manifest]:
    found: list[Manifest] = [{"name": "conf", "emptyDir": {}}] if own_folder else []
    if has_login:
        items = [{"key": LOGIN_FILE, "path": LOGIN_FILE}]
        found.append(secret_volume("run", login_secret(cluster), items=items, defaultMode=0o440))
    return found


def _conf(own_folder: bool, path: str) -> list[Manifest]:
    return [{"name": "conf", "mountPath": path}] if own_folder else []
