"""The configuration keys: Kafka's names, types, defaults and meaning (docs of Kafka 4.4 and, for ZooKeeper, 3.9).

`BROKER_KEYS` may be set in server.properties, `TOPIC_KEYS` in a topic's configuration. Some keys are our own:
`audit.log`, `audit.log.max.bytes`, `audit.log.max.per.second`, `http.listener`, `log.format`,
`log.stray.retention.ms`, `shutdown.drain.ms`, `unclean.coordination.enable`, `zookeeper.sasl.jaas.config` and, of
topics, `millstream.mirror.source`, `millstream.mirror.rejoined`, `millstream.mirror.promoted` and
`millstream.topic.owner`. Keys marked `inert` tune machinery that this broker does not have (thread pools, socket
buffers the kernel sizes itself): files that set them stay valid, and the broker says at start that they have no
effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream_kafka.batch import LARGEST_RECORD
from millstream_kafka.mirror_source import KEY as MIRROR_SOURCE
from millstream_kafka.mirror_source import PROMOTED as MIRROR_PROMOTED
from millstream_kafka.mirror_source import REJOINED as MIRROR_REJOINED
from millstream_kafka.topic_owner import KEY as TOPIC_OWNER

from .config_types import (
    INT_MAX,
    LONG_MAX,
    Key,
    Synonym,
    Type,
    address_limits,
    at_least,
    audit_log,
    between,
    gzip_level,
    mirror_requests,
    mirror_source,
    never_or_at_least,
    one_of,
    principals,
    replicas,
    some_of,
    topic_owner,
)
from .sasl_keys import SASL_KEYS
from .tls_keys import TLS_KEYS
from .zookeeper_keys import ZOOKEEPER_KEYS

BOOLEAN, STRING, INT, SHORT = Type.BOOLEAN, Type.STRING, Type.INT, Type.SHORT
LONG, DOUBLE, LIST = Type.LONG, Type.DOUBLE, Type.LIST

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
HOUR_MS = 60 * 60 * 1000
AUTHORIZER = "authorizer.class.name"
AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
AUDIT_LOG = "audit.log"
PER_ADDRESS = "max.connections.per.ip.overrides"
SUPER_USERS = "super.users"
ALLOWS_WITHOUT_ACL = "allow.everyone.if.no.acl.found"


def _table(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


def _inert(type_: Type, **defaults: int | str | None) -> Iterable[Key]:
    """Inert keys with Kafka's defaults, by their names with _ for dots."""
    doc = "Accepted for Kafka's sake; nothing here depends on it."
    return (Key(name.replace("_", "."), type_, value, doc, inert=True) for name, value in defaults.items())


BROKER_KEYS = _table(
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
    # The log
    Key("log.dirs", LIST, None, "Log directories; default: `log.dir`."),
    Key("log.dir", STRING, "data", "Log directory, where `log.dirs` is not set."),
    Key("log.segment.bytes", INT, 1_073_741_824, "Largest segment.", at_least(14), True),
    Key("log.roll.ms", LONG, None, "Age at which a segment ends.", at_least(1), True),
    Key("log.roll.hours", INT, 168, "The same in hours, where log.roll.ms is not set.", at_least(1)),
    Key("log.roll.jitter.ms", LONG, None, "Largest random reduction of log.roll.ms.", at_least(0), True),
    Key(
        "log.roll.jitter.hours",
        INT,
        0,
        "The same in hours, where log.roll.jitter.ms is not set.",
        at_least(0),
    ),
    Key("log.retention.ms", LONG, None, "Age at which a segment is deleted; -1: never.", at_least(-1), True),
    Key(
        "log.retention.minutes",
        INT,
        None,
        "The same in minutes, where log.retention.ms is not set.",
        at_least(-1),
    ),
    Key("log.retention.hours", INT, 168, "The same in hours, where neither is set.", at_least(-1)),
    Key(
        "log.retention.bytes",
        LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1: none.",
        at_least(-1),
        True,
    ),
    Key("log.retention.check.interval.ms", LONG, 300_000, "Interval of retention checks.", at_least(1)),
    Key(
        "log.cleanup.policy",
        LIST,
        ["delete"],
        "What happens to old segments.",
        some_of("compact", "delete"),
        True,
    ),
    Key(
        "log.segment.delete.delay.ms",
        LONG,
        60_000,
        "Time before a deleted file is removed.",
        at_least(0),
        True,
    ),
    Key("log.index.interval.bytes", INT, 4096, "Bytes of log between two index entries.", at_least(0), True),
    Key("log.index.size.max.bytes", INT, 10_485_760, "Largest index.", at_least(4), True),
    Key("log.preallocate", BOOLEAN, False, "Whether a new segment reserves its space.", None, True),
    Key(
        "log.flush.interval.messages",
        LONG,
        LONG_MAX,
        "Records after which the log is fsynced.",
        at_least(1),
        True,
    ),
    Key("log.flush.interval.ms", LONG, None, "Time after which a record is fsynced.", at_least(0), True),
    Key("log.flush.scheduler.interval.ms", LONG, LONG_MAX, "The same, where that is not set.", at_least(0)),
    Key(
        "log.stray.retention.ms",
        LONG,
        -1,
        "Age at which strays, logs that fit no topic and that nobody deleted, are removed. -1: never.",
        never_or_at_least(24 * HOUR_MS),
        True,
    ),
    Key("log.flush.offset.checkpoint.interval.ms", INT, 60_000, "Interval of recovery points.", at_least(0)),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, "Interval of log starts.", at_least(0)),
    Key(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Clock of timestamps: the producer's or the broker's.",
        one_of("CreateTime", "LogAppendTime"),
        True,
    ),
    Key(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "Longest time a timestamp may be in the past.",
        at_least(0),
        True,
    ),
    Key(
        "log.message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        "Longest time a timestamp may be in the future.",
        at_least(0),
        True,
    ),
    Key("message.max.bytes", INT, 1_048_588, "Largest record batch.", at_least(0), True),
    Key(
        "max.decompressed.message.bytes",
        INT,
        LARGEST_RECORD,
        "Largest record of a compressed batch, decompressed. Checked where the broker decompresses: when it appends,"
        " compacts and looks up timestamps. Any value below the default makes it decompress what it appends.",
        between(1, LARGEST_RECORD),
        True,
    ),
    Key("compression.type", STRING, "producer", "Codec of stored batches.", one_of(*CODECS), True),
    Key("compression.gzip.level", INT, -1, "Level of gzip, where the broker compresses.", gzip_level, True),
    Key("compression.lz4.level", INT, 9, "Level of lz4, where the broker compresses.", between(1, 17), True),
    Key(
        "compression.zstd.level",
        INT,
        3,
        "Level of zstd, where the broker compresses.",
        between(-131072, 22),
        True,
    ),
    Key("num.recovery.threads.per.data.dir", INT, 2, "Threads that open logs at start.", at_least(1)),
    Key(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "Idle time after which a producer is forgotten.",
        at_least(1),
        True,
    ),
    # Compaction
    Key("log.cleaner.enable", BOOLEAN, True, "Whether topics are compacted."),
    Key("log.cleaner.threads", INT, 1, "Most compactions at one time.", at_least(0), True),
    Key("log.cleaner.backoff.ms", LONG, 15_000, "Pause if there is nothing to compact.", at_least(0), True),
    Key(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        "Dirty share at which a log is compacted.",
        between(0, 1),
        True,
    ),
    Key(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        "Time before a record may be compacted.",
        at_least(0),
        True,
    ),
    Key(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "Time after which a record must be compacted.",
        at_least(1),
        True,
    ),
    Key("log.cleaner.delete.retention.ms", LONG, 86_400_000, "Retention of tombstones.", at_least(0), True),
    Key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        "Most bytes per second that compaction reads and writes.",
        at_least(0),
        True,
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        "Memory for keys, of all compactions; a log with more keys takes several passes.",
        at_least(1024),
        True,
    ),
    # Groups and their offsets
    Key("group.min.session.timeout.ms", INT, 6_000, "Shortest session timeout of a member.", at_least(0)),
    Key("group.max.session.timeout.ms", INT, 1_800_000, "Longest session timeout of a member.", at_least(0)),
    Key(
        "group.initial.rebalance.delay.ms",
        INT,
        3_000,
        "Time that a new group waits for members.",
        at_least(0),
    ),
    Key("group.max.size", INT, INT_MAX, "Most members of a group.", at_least(1)),
    Key("offsets.topic.num.partitions", INT, 50, "Partitions of a new __consumer_offsets.", at_least(1)),
    Key("offsets.topic.replication.factor", SHORT, 3, "Replicas of __consumer_offsets.", at_least(1)),
    Key(
        "offsets.topic.segment.bytes",
        INT,
        104_857_600,
        "Largest segment of __consumer_offsets.",
        at_least(14),
    ),
    Key("offsets.topic.compression.codec", INT, 0, "Codec of __consumer_offsets.", between(0, 4)),
    Key("offsets.retention.minutes", INT, 10_080, "Retention of an empty group's offsets.", at_least(1)),
    Key("offsets.retention.check.interval.ms", LONG, 600_000, "Interval of offset expiry.", at_least(1)),
    Key("offset.metadata.max.bytes", INT, 4096, "Longest text of a committed offset.", at_least(0)),
    Key("offsets.commit.timeout.ms", INT, 5_000, "Time that a commit waits for its replicas.", at_least(1)),
    # Transactions
    Key("transaction.max.timeout.ms", INT, 900_000, "Longest timeout of a transaction.", at_least(1)),
    Key(
        "transactional.id.expiration.ms",
        INT,
        604_800_000,
        "Time after which an idle transactional id is forgotten.",
        at_least(1),
    ),
    Key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "Interval at which transactions that timed out are aborted.",
        at_least(1),
    ),
    Key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        HOUR_MS,
        "Interval at which expired transactional ids are removed.",
        at_least(1),
    ),
    Key(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "Partitions of a new __transaction_state.",
        at_least(1),
    ),
    Key(
        "transaction.state.log.replication.factor",
        SHORT,
        3,
        "Replicas of a new __transaction_state; as many as brokers, if there are fewer.",
        at_least(1),
    ),
    Key(
        "transaction.state.log.min.isr",
        INT,
        2,
        "min.insync.replicas of a new __transaction_state, if it has as many replicas.",
        at_least(1),
    ),
    Key(
        "transaction.state.log.segment.bytes",
        INT,
        104_857_600,
        "Largest segment of __transaction_state.",
        at_least(14),
    ),
    Key(
        "request.timeout.ms",
        INT,
        30_000,
        "Time that a change of a transaction waits for the replicas of __transaction_state.",
        at_least(1),
    ),
    # Replication
    Key("replica.lag.time.max.ms", LONG, 30_000, "Lag at which a follower leaves the ISR.", at_least(1)),
    Key(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "Most bytes that a follower fetches of a partition.",
        at_least(0),
    ),
    Key(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Most bytes that a follower fetches in a request.",
        at_least(0),
    ),
    Key("replica.fetch.min.bytes", INT, 1, "Fewest bytes that a follower's fetch waits for.", at_least(1)),
    Key("replica.fetch.wait.max.ms", INT, 500, "Longest wait of a follower's fetch.", at_least(1)),
    Key("replica.fetch.backoff.ms", INT, 1_000, "Pause of a follower after a failure.", at_least(0)),
    Key("replica.socket.timeout.ms", INT, 30_000, "Time that a follower waits for a response.", at_least(1)),
    Key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5_000,
        "Interval of high watermark checkpoints.",
        at_least(1),
    ),
    Key(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Most bytes per second that moving replicas copy to this broker.",
        at_least(0),
        True,
    ),
    Key(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Accepted: the receiving side is throttled.",
        at_least(0),
        True,
        inert=True,
    ),
    Key("controlled.shutdown.enable", BOOLEAN, True, "Whether a broker that stops hands over its leaders."),
    Key("controlled.shutdown.max.retries", INT, 3, "Attempts to hand over leaders.", at_least(0)),
    Key("controlled.shutdown.retry.backoff.ms", LONG, 5_000, "Pause between those attempts.", at_least(1)),
    Key("auto.leader.rebalance.enable", BOOLEAN, True, "Whether leadership returns to preferred replicas."),
    Key("leader.imbalance.check.interval.seconds", LONG, 300, "Interval of leader checks.", at_least(1)),
    Key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "Percentage of a broker's preferred partitions that others may lead.",
        at_least(0),
    ),
    *_inert(INT, num_network_threads=3, num_io_threads=8, background_threads=10, queued_max_requests=500),
    *_inert(INT, socket_send_buffer_bytes=102_400, socket_receive_buffer_bytes=102_400),
    *_inert(INT, num_replica_fetchers=1),
    *_inert(INT, offsets_load_buffer_size=5_242_880, log_cleaner_io_buffer_size=524_288),
    *_inert(INT, zookeeper_connection_timeout_ms=None, controller_socket_timeout_ms=30_000),
    *_inert(INT, zookeeper_max_in_flight_requests=10),
    *_inert(STRING, inter_broker_protocol_version=None, log_message_format_version=None),
)


def _topic(name: str, *synonyms: str | Synonym) -> Key:
    """A topic key with the definition of its last broker key; the others differ only in their units."""
    chain = tuple(Synonym(synonym) if isinstance(synonym, str) else synonym for synonym in synonyms)
    like, factor = BROKER_KEYS[chain[-1].name], chain[-1].factor
    default = like.default * factor if isinstance(like.default, int) and factor > 1 else like.default
    return Key(
        name,
        LONG if factor > 1 else like.type,
        default,
        BROKER_KEYS[chain[0].name].doc,
        like.rule,
        synonyms=chain,
    )


TOPIC_KEYS = _table(
    _topic("cleanup.policy", "log.cleanup.policy"),
    _topic("compression.gzip.level", "compression.gzip.level"),
    _topic("compression.lz4.level", "compression.lz4.level"),
    _topic("compression.type", "compression.type"),
    _topic("compression.zstd.level", "compression.zstd.level"),
    _topic("delete.retention.ms", "log.cleaner.delete.retention.ms"),
    _topic("file.delete.delay.ms", "log.segment.delete.delay.ms"),
    _topic("flush.messages", "log.flush.interval.messages"),
    _topic("flush.ms", "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    Key(
        "follower.replication.throttled.replicas",
        LIST,
        [],
        "Replicas whose catching up is throttled.",
        replicas("follower.replication.throttled.replicas"),
    ),
    _topic("index.interval.bytes", "log.index.interval.bytes"),
    Key(
        "leader.replication.throttled.replicas",
        LIST,
        [],
        "The same on the leader: accepted.",
        replicas("leader.replication.throttled.replicas"),
    ),
    _topic("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _topic("max.decompressed.message.bytes", "max.decompressed.message.bytes"),
    _topic("max.message.bytes", "message.max.bytes"),
    _topic("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _topic("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _topic("message.timestamp.type", "log.message.timestamp.type"),
    Key(
        MIRROR_SOURCE,
        STRING,
        "",
        "The topic is a read-only replica of this one: CLUSTERID/TOPICID. With /rejoin it becomes this replica: it is"
        " read-only, and nothing is appended yet. Empty: it is an ordinary topic.",
        mirror_source,
    ),
    Key(
        MIRROR_REJOINED,
        LIST,
        [],
        "The last requests (`spec.rejoin` of a MirrorMaker) under which the topic was or became a replica, the latest"
        " first. Once it is promoted, no mirror makes it a replica again under one of them.",
        mirror_requests,
    ),
    Key(
        MIRROR_PROMOTED,
        LIST,
        [],
        "The last requests (`spec.promote` of a MirrorMaker) under which the topic was promoted, the latest first. None"
        " of them promotes it again.",
        mirror_requests,
    ),
    Key(
        TOPIC_OWNER,
        STRING,
        "",
        "The Topic resource that keeps the topic as its spec says, NAMESPACE/NAME: set by the operator and `millstream"
        " local`, for whoever changes the topic by hand. It has no effect on the topic.",
        topic_owner,
    ),
    _topic("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"),
    _topic("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
    _topic("min.insync.replicas", "min.insync.replicas"),
    _topic("preallocate", "log.preallocate"),
    _topic("retention.bytes", "log.retention.bytes"),
    _topic(
        "retention.ms",
        "log.retention.ms",
        Synonym("log.retention.minutes", 60_000),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    _topic("segment.bytes", "log.segment.bytes"),
    _topic("segment.index.bytes", "log.index.size.max.bytes"),
    _topic("segment.jitter.ms", "log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS)),
    _topic("segment.ms", "log.roll.ms", Synonym("log.roll.hours", HOUR_MS)),
    _topic("unclean.leader.election.enable", "unclean.leader.election.enable"),
)

STAND_INS = {key.synonyms[0].name: key.synonyms for key in TOPIC_KEYS.values() if len(key.synonyms) > 1}
"""Broker keys, and the keys that give their value if they are not set."""

BROKER_PAIRS = (
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
)
TOPIC_PAIRS = (("min.compaction.lag.ms", "max.compaction.lag.ms"),)
"""Keys whose values depend on each other: the first may not exceed the second."""
