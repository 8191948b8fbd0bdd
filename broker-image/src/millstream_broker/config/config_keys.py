"""The keys of server.properties: names, types, defaults and meaning of Kafka 4.4 and, for ZooKeeper, of Kafka 3.9.

Some keys are our own: `audit.log`, `audit.log.max.bytes`, `audit.log.max.per.second`, `http.listener`, `log.format`,
`log.stray.retention.ms`, `shutdown.drain.ms`, `unclean.coordination.enable` and `zookeeper.sasl.jaas.config`. Keys
marked `inert` tune machinery that this broker does not have (thread pools, socket buffers the kernel sizes itself):
files that set them stay valid, and the broker says at start that they have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from .config_types import (
    INT_MAX,
    Key,
    Type,
    address_limits,
    at_least,
    audit_log,
    between,
    keys_by_name,
    one_of,
    principals,
)
from .coordinator_keys import COORDINATOR_KEYS
from .log_keys import LOG_KEYS
from .replication_keys import REPLICATION_KEYS
from .sasl_keys import SASL_KEYS
from .tls_keys import TLS_KEYS
from .zookeeper_keys import ZOOKEEPER_KEYS

BOOLEAN, STRING, INT, LONG, LIST = Type.BOOLEAN, Type.STRING, Type.INT, Type.LONG, Type.LIST

AUTHORIZER = "authorizer.class.name"
AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
AUDIT_LOG = "audit.log"
PER_ADDRESS = "max.connections.per.ip.overrides"
SUPER_USERS = "super.users"
ALLOWS_WITHOUT_ACL = "allow.everyone.if.no.acl.found"


def _inert(type_: Type, **defaults: int | str | None) -> Iterable[Key]:
    """Inert keys with Kafka's defaults, by their names with _ for dots."""
    doc = "Accepted for Kafka's sake; nothing here depends on it."
    return (Key(name.replace("_", "."), type_, value, doc, inert=True) for name, value in defaults.items())


BROKER_KEYS = keys_by_name(
    # Identity and addresses
    Key("broker.id", INT, 1, "Number of this broker, unique in its cluster.", between(0, INT_MAX)),
    Key("broker.rack", STRING, None, "Rack of this broker; replicas are spread over racks."),
    Key(
        "replica.selector.class",
        STRING,
        None,
        "Rack-aware reads (KIP-392): consumers read the replica in their `client.rack`.",
        one_of("org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    Key(
        "listeners",
        LIST,
        ["PLAINTEXT://127.0.0.1:9092"],
        "Addresses to listen on: NAME://HOST:PORT, comma-separated. Without a host (also 0.0.0.0 or [::]): every "
        "address, IPv4 and IPv6.",
    ),
    Key("advertised.listeners", LIST, [], "Addresses for clients, where they differ from `listeners`."),
    Key(
        "listener.security.protocol.map",
        LIST,
        [
            *("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
            *("INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT"),
        ],
        "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    ),
    Key("inter.broker.listener.name", STRING, None, "Listener for other brokers; default: the first."),
    # Access rules
    Key(
        AUTHORIZER,
        STRING,
        "",
        "Check what clients may do, by access rules (ACLs). Both of Kafka's names mean the broker's own authorizer; "
        "empty: everything is allowed.",
        one_of("", *AUTHORIZERS),
    ),
    Key(
        SUPER_USERS,
        STRING,
        "",
        "Principals that may do everything, whatever the access rules: `User:admin;User:operator`.",
        principals,
    ),
    Key(
        ALLOWS_WITHOUT_ACL,
        BOOLEAN,
        False,
        "Whether everybody may use a resource that no access rule names.",
    ),
    Key(
        "http.listener",
        STRING,
        "127.0.0.1:9404",
        "HOST:PORT of /healthz, /readyz, /metrics; hosts as in `listeners`.",
    ),
    Key(
        "log.format",
        STRING,
        "plain",
        "The form of log lines on stderr: plain for people, json for machines, one object a line.",
        one_of("plain", "json"),
    ),
    # Audit log
    Key(
        AUDIT_LOG,
        STRING,
        None,
        "Where logins, administrative requests and denied ones are recorded, as JSON: stdout, the path of a file, or"
        " off. Default: stdout with an authorizer, TLS or SASL, otherwise off.",
        audit_log,
    ),
    Key(
        "audit.log.max.bytes",
        LONG,
        104_857_600,
        "Largest file of the audit log; one older file of this size is kept beside it, as PATH.1.",
        at_least(65_536),
    ),
    Key(
        "audit.log.max.per.second",
        INT,
        100,
        "Most lines a second of each kind; others are counted. One client has a tenth of it for logins and denials.",
        between(1, 100_000),
    ),
    *ZOOKEEPER_KEYS,
    Key(
        "unclean.coordination.enable",
        BOOLEAN,
        False,
        "Start although the data belongs to another cluster, or the tree is empty; unknown logs are kept, not served.",
    ),
    Key(
        "shutdown.drain.ms",
        INT,
        0,
        "Time for which a stopping broker still serves, not ready, so that load balancers remove it first.",
        between(0, 30_000),
    ),
    # Topics
    Key("num.partitions", INT, 1, "Default partitions of a new topic.", at_least(1)),
    Key("default.replication.factor", INT, 1, "Default replicas of a new topic.", at_least(1)),
    Key(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether a Metadata request creates the topics that it names.",
    ),
    Key("delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted."),
    Key("min.insync.replicas", INT, 1, "In-sync replicas that an acks=all write needs.", at_least(1), True),
    Key(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica outside the ISR may lead, losing data.",
        None,
        True,
    ),
    # Connections
    Key("socket.request.max.bytes", INT, 104_857_600, "Largest request.", at_least(1)),
    Key("socket.listen.backlog.size", INT, 1024, "Connections that may wait to be accepted.", at_least(1)),
    Key("queued.max.request.bytes", LONG, 268_435_456, "Bytes of unfinished requests, in all.", at_least(1)),
    Key("connections.max.idle.ms", LONG, 600_000, "Silence after which a connection is closed.", at_least(1)),
    Key("max.connections", INT, INT_MAX, "Most connections.", at_least(0), True, of_listener=True),
    Key("max.connections.per.ip", INT, INT_MAX, "Most connections from one address.", at_least(0), True),
    Key(
        PER_ADDRESS,
        STRING,
        "",
        "Most connections from single addresses, instead of max.connections.per.ip.",
        address_limits,
        True,
    ),
    Key(
        "max.connection.creation.rate",
        INT,
        INT_MAX,
        "Most new connections a second; others wait.",
        at_least(1),
        True,
        of_listener=True,
    ),
    # Quotas
    Key("quota.window.num", INT, 11, "Windows over which rates of clients are measured.", at_least(1)),
    Key("quota.window.size.seconds", INT, 1, "Length of such a window.", at_least(1)),
    Key(
        "controller.quota.window.num",
        INT,
        11,
        "Windows whose worth of created and deleted partitions may come at once.",
        at_least(1),
    ),
    Key("controller.quota.window.size.seconds", INT, 1, "Length of such a window.", at_least(1)),
    Key("fetch.max.bytes", INT, 57_671_680, "Largest fetch response.", at_least(1024)),
    Key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Most fetch sessions of consumers; 0: none.",
        at_least(0),
    ),
    # Security
    *TLS_KEYS,
    *SASL_KEYS,
    *LOG_KEYS,
    *COORDINATOR_KEYS,
    *REPLICATION_KEYS,
    *_inert(INT, num_network_threads=3, num_io_threads=8, background_threads=10, queued_max_requests=500),
    *_inert(INT, socket_send_buffer_bytes=102_400, socket_receive_buffer_bytes=102_400),
    *_inert(INT, num_replica_fetchers=1),
    *_inert(INT, offsets_load_buffer_size=5_242_880, log_cleaner_io_buffer_size=524_288),
    *_inert(INT, zookeeper_connection_timeout_ms=None, controller_socket_timeout_ms=30_000),
    *_inert(INT, zookeeper_max_in_flight_requests=10),
    *_inert(STRING, inter_broker_protocol_version=None, log_message_format_version=None),
)

BROKER_PAIRS = (
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
)
"""Keys whose values depend on each other: the first may not exceed the second."""
