"""The brokers' configuration files, and which changes of them need a restart.

    server.properties     common to all brokers: the user's configuration, and the operator's settings
    broker-N.properties   broker N's own: its addresses for clients
    racks.properties      the rack of each node, if the Cluster enables racks

Keys that Kafka lets an administrator change while brokers run (KIP-226) are set on the running brokers, and are not in
the hash that makes pods restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..models import Cluster
from ..models.addresses import host_port
from ..models.cluster import PlatformTls
from .listeners import (
    PLATFORM,
    REPLICATION,
    Address,
    Addresses,
    all_listeners,
    broker_host,
    external_listeners,
    kafka_name,
    platform_port,
    replication_port,
)
from .owned import digest
from .zookeeper import connect_of, secured

HTTP_PORT = 9404
DATA = "/var/lib/millstream"
CONFIG_FOLDER = "/etc/millstream"
TLS_FOLDER = "/run/millstream/tls"
PLATFORM_FOLDER, PLATFORM_FILE = "/run/millstream/platform", "credentials"
ZOOKEEPER_FOLDER, ZOOKEEPER_FILE, ZOOKEEPER_KEY = "/run/millstream/zookeeper", "login.properties", "jaas"
ZOOKEEPER_CA = "ca.crt"
RACKS = "racks.properties"
OPERATOR_USER = "millstream-operator"
# The operator's own settings, without which brokers would not work.
RESERVED_CONFIG = frozenset(
    (
        "advertised.listeners",
        "broker.id",
        "broker.rack",
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
# Keys that brokers accept while they run. A test compares the set with the brokers' own list.
DYNAMIC_CONFIG = frozenset(
    (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "log.stray.retention.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "max.decompressed.message.bytes",
        "message.max.bytes",
        "min.insync.replicas",
        "producer.id.expiration.ms",
        "unclean.leader.election.enable",
    )
)


def broker_set_name(cluster: Cluster) -> str:
    return f"{cluster.name}-brokers"


def pod_name(cluster: Cluster, broker: int) -> str:
    return f"{broker_set_name(cluster)}-{broker}"


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """Where a broker finds its certificate, the authorities to trust, and what verifies the operator's password."""

    keystore: str
    truststore: str
    credentials: str


IN_POD = BrokerFiles(
    f"{TLS_FOLDER}/broker-${{env:POD_INDEX}}.pem",
    f"{TLS_FOLDER}/ca.crt",
    f"{PLATFORM_FOLDER}/{PLATFORM_FILE}",
)


def broker_config(cluster: Cluster, files: BrokerFiles = IN_POD) -> dict[str, str]:
    """server.properties, from the user's configuration and ours."""
    config = {
        **cluster.spec.config,
        **_authorization(cluster),
        "log.dirs": DATA,
        **_listeners(cluster, _own_listeners(cluster)),
        **_mechanisms(cluster),
        **_certificate_files(cluster, files),
        **_platform(cluster, files),
        "inter.broker.listener.name": REPLICATION,
        "http.listener": f":{HTTP_PORT}",
    }
    if connect := connect_of(cluster):
        config["zookeeper.connect"] = connect
    return config | _zookeeper(cluster)


ZOOKEEPER_LOGIN, ZOOKEEPER_ACLS = "zookeeper.sasl.jaas.config", "zookeeper.set.acl"


ZOOKEEPER_TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.truststore.location": f"{ZOOKEEPER_FOLDER}/{ZOOKEEPER_CA}",
    "zookeeper.ssl.truststore.type": "PEM",
}


def _zookeeper(cluster: Cluster) -> dict[str, str]:
    """How brokers connect to ZooKeeper, and log in there."""
    ensemble = secured(cluster)
    if ensemble is None:
        return {}
    config = dict(ZOOKEEPER_TLS) if ensemble.tls is not None else {}
    if ensemble.logs_in:
        config[ZOOKEEPER_LOGIN] = f"${{file:{ZOOKEEPER_FOLDER}/{ZOOKEEPER_FILE}:{ZOOKEEPER_KEY}}}"
        if ensemble.sets_acls or ZOOKEEPER_ACLS in cluster.spec.config:
            config[ZOOKEEPER_ACLS] = str(ensemble.sets_acls).lower()
    return config


def _own_listeners(cluster: Cluster) -> dict[str, tuple[int, str]]:
    """Port and security protocol of the listeners that the spec does not have.

    While TLS is being prepared, the operator may still be at the brokers' listener.
    """
    tls, has_login = cluster.spec.platform_tls, cluster.spec.platform_login
    plain = "SASL_PLAINTEXT" if has_login else "PLAINTEXT"
    found = {REPLICATION: (replication_port(cluster), "SSL" if tls is PlatformTls.ON else plain)}
    if tls.has_listener:
        found[PLATFORM] = (platform_port(cluster), "SASL_SSL")
    return found


def _platform(cluster: Cluster, files: BrokerFiles) -> dict[str, str]:
    """The listeners of brokers and operator, who needs its password there.

    Brokers verify each other's certificates both ways. They connect to addresses of pods, which no certificate has.
    """
    if not cluster.spec.platform_login:
        return {}
    found = _with_operator(cluster)
    for name, (_, protocol) in _own_listeners(cluster).items():
        prefix = f"listener.name.{name.lower()}"
        if protocol.startswith("SASL"):
            found[f"{prefix}.sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
            found[f"{prefix}.sasl.scram.credentials.location"] = files.credentials
        if cluster.spec.platform_tls.has_listener:
            is_for_brokers = name == REPLICATION
            values = _tls_keys(files, "required" if is_for_brokers else "none")
            if is_for_brokers:
                values["ssl.endpoint.identification.algorithm"] = ""
            found |= {f"{prefix}.{key}": value for key, value in values.items()}
    return found


def _with_operator(cluster: Cluster) -> dict[str, str]:
    """The operator among the super users, if brokers have access rules."""
    config = {**cluster.spec.config, **_authorization(cluster)}
    authorizer, super_users = AUTHORIZATION
    if authorizer not in config:
        return {}
    others = [each for each in config.get(super_users, "").split(";") if each.strip()]
    return {super_users: ";".join((*others, f"User:{OPERATOR_USER}"))}


def _mechanisms(cluster: Cluster) -> dict[str, str]:
    return {
        f"listener.name.{kafka_name(listener).lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-512"
        for listener in cluster.spec.listeners
        if listener.has_sasl
    }


def _certificate_files(cluster: Cluster, files: BrokerFiles) -> dict[str, str]:
    """The configuration of listeners with TLS: each has the same files."""
    found: dict[str, str] = {}
    for listener in cluster.spec.listeners:
        if listener.is_encrypted:
            values = _tls_keys(files, "required" if listener.needs_certificate else "none")
            prefix = f"listener.name.{kafka_name(listener).lower()}"
            found |= {f"{prefix}.{key}": value for key, value in values.items()}
    return found


def _tls_keys(files: BrokerFiles, client_auth: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.truststore,
        "ssl.client.auth": client_auth,
        # the operator decides which names a certificate has
        "ssl.allow.san.changes": "true",
    }


AUTHORIZATION = ("authorizer.class.name", "super.users")
"""The operator's keys if the spec has ``authorization``, otherwise the user's."""


def _authorization(cluster: Cluster) -> dict[str, str]:
    """Clients without authentication have all rights as long as the Internal listener is open: mirrors and loads, and
    the operator."""
    if (authorization := cluster.spec.authorization) is None:
        return {}
    is_open = not cluster.spec.internal.has_login
    everyone = (*(("ANONYMOUS",) if is_open else ()), *authorization.super_users)
    values = (
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ";".join(f"User:{name}" for name in everyone),
    )
    return dict(zip(AUTHORIZATION, values, strict=True))


def own_config(cluster: Cluster, broker: int, addresses: Addresses) -> dict[str, str]:
    """broker-N.properties. Only the pod knows its own address and its node's, as environment variables."""
    inside = cluster.spec.internal
    advertised = [
        f"{REPLICATION}://${{env:POD_IP}}:{replication_port(cluster)}",
        f"{kafka_name(inside)}://{broker_host(cluster, broker)}:{inside.port}",
    ]
    if cluster.spec.platform_tls.has_listener:
        advertised.append(f"{PLATFORM}://{broker_host(cluster, broker)}:{platform_port(cluster)}")
    for listener in external_listeners(cluster):
        address = addresses[listener.name, broker]
        advertised.append(f"{kafka_name(listener)}://{_advertised(address)}")
    return {"advertised.listeners": ",".join(advertised)}


def _advertised(address: Address) -> str:
    return (
        f"${{env:HOST_IP}}:{address.port}" if address.host is None else host_port(address.host, address.port)
    )


def files(
    cluster: Cluster, brokers: int, addresses: Addresses, racks: Mapping[str, str] | None
) -> dict[str, str]:
    """All files by name, for this many brokers. ``racks``: the rack by node, None if brokers have none."""
    found = {"server.properties": properties(broker_config(cluster))}
    for broker in range(brokers):
        found[f"broker-{broker}.properties"] = properties(own_config(cluster, broker, addresses))
    if racks is not None:
        found[RACKS] = properties(racks)
    return found


def dynamic_config(cluster: Cluster) -> dict[str, str]:
    """The configuration to set on running brokers."""
    return {key: value for key, value in cluster.spec.config.items() if key in DYNAMIC_CONFIG}


_LISTENERS = frozenset(("listeners", "listener.security.protocol.map", "inter.broker.listener.name"))


def restart_hash(cluster: Cluster) -> str:
    """Hash of the configuration that a broker reads only once, without its listeners."""
    config = broker_config(cluster)
    return _hash({key: value for key, value in config.items() if key not in DYNAMIC_CONFIG | _LISTENERS})


def user_hash(cluster: Cluster) -> str:
    """Hash of the Cluster's own configuration.

    If it is unchanged and the configuration is not, a new release of the operator has caused the change.
    """
    zookeeper = cluster.spec.zookeeper
    static = {key: value for key, value in cluster.spec.config.items() if key not in DYNAMIC_CONFIG}
    listeners = [(listener.name, listener.port) for listener in cluster.spec.listeners]
    given: list[object] = [static, listeners, zookeeper and (zookeeper.connect, zookeeper.replicas)]
    passwords = sorted(kafka_name(one) for one in cluster.spec.listeners if one.has_sasl)
    if secured := [*passwords, *_authorization(cluster).values()]:
        given.append(secured)  # the hash of other Clusters stays as it was
    if encrypted := [
        [kafka_name(one), one.needs_certificate] for one in cluster.spec.listeners if one.is_encrypted
    ]:
        given.append(encrypted)
    if cluster.spec.platform_login:
        given.append("platform")
    if tls := cluster.spec.platform_tls:
        given.append(f"platform-tls-{tls}")
    if zookeeper is not None and (zookeeper.authentication is not None or zookeeper.tls is not None):
        given.append([zookeeper.authentication, zookeeper.tls is not None])
    return digest(given)


def listeners_hash(cluster: Cluster) -> str:
    """Hash of the listeners in the Cluster's spec.

    The brokers' own listener is the operator's, and so part of an upgrade: the pods themselves show it.
    """
    return _hash(
        {
            **_listeners(cluster, {}),
            "inter.broker.listener.name": kafka_name(cluster.spec.internal),
        }
    )


def _listeners(cluster: Cluster, others: Mapping[str, tuple[int, str]]) -> dict[str, str]:
    """``others``: port and protocol of listeners that the spec does not have."""
    given = {kafka_name(listener): (listener.port, listener.protocol) for listener in all_listeners(cluster)}
    found = given | dict(others)
    return {
        "listeners": ",".join(f"{name}://:{port}" for name, (port, _) in found.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, (_, kind) in found.items()),
    }


def addresses_of(brokers: int, addresses: Addresses) -> str:
    """Each broker's addresses outside, as JSON by broker: only a broker whose own addresses changed restarts."""
    found: dict[str, str] = {}
    for (name, broker), address in sorted(addresses.items(), key=lambda entry: (entry[0][1], entry[0][0])):
        if broker < brokers:
            found[str(broker)] = (
                f"{found.get(str(broker), '')} {name}={address.host or ''}:{address.port}".strip()
            )
    return json.dumps(found, separators=(",", ":"))


def properties(config: Mapping[str, str]) -> str:
    """A properties file; characters with a meaning in its format are escaped.

    https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)
    """
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    lines = []
    for key, value in sorted(config.items()):
        text = value.translate(escaped)
        lines.append(f"{key}={chr(92) + text if text[:1] == ' ' else text}\n")
    return "".join(lines)


def _hash(config: Mapping[str, str]) -> str:
    return hashlib.sha256(properties(config).encode()).hexdigest()[:16]
