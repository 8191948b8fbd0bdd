"""The configuration keys: Kafka's names, types, defaults and meaning (docs of Kafka 4.1 and, for ZooKeeper, 3.9).

`BROKER_KEYS` may stand in server.properties, `TOPIC_KEYS` in a topic's configuration. The one key of our own is
`http.listener`. Keys marked `inert` tune machinery that this broker does not have (thread pools, socket buffers the
kernel sizes itself): files that set them stay valid, and the broker says at start that they have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from .config_types import (
    INT_MAX,
    LONG_MAX,
    Key,
    Synonym,
    Type,
    at_least,
    between,
    gzip_level,
    one_of,
    replicas,
    some_of,
)

BOOLEAN, STRING, INT, SHORT = Type.BOOLEAN, Type.STRING, Type.INT, Type.SHORT
LONG, DOUBLE, LIST = Type.LONG, Type.DOUBLE, Type.LIST

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
HOUR_MS = 60 * 60 * 1000


def _table(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


def _inert(type_: Type, **defaults: int | str | None) -> Iterable[Key]:
    """Keys by their names with _ for dots, and Kafka's defaults."""
    doc = "Accepted for Kafka's sake; nothing here depends on it."
    return (Key(name.replace("_", "."), type_, value, doc, inert=True) for name, value in defaults.items())


BROKER_KEYS = _table(
    # Who the broker is and where it listens
    Key("broker.id", INT, 1, "The broker's number, unique in its cluster.", between(0, INT_MAX)),
    Key(
        "broker.rack",
        STRING,
        None,
        "The rack the broker stands in, told to clients and used to place replicas.",
    ),
    Key(
        "replica.selector.class",
        STRING,
        None,
        "Which replicas consumers read: the leader, or the one in their `client.rack` (KIP-392).",
        one_of("org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    ),
    Key(
        "listeners",
        LIST,
        ["PLAINTEXT://127.0.0.1:9092"],
        "Where to listen: NAME://HOST:PORT, comma-separated.",
    ),
    Key(
        "advertised.listeners", LIST, [], "What clients are told to connect to, where it is not `listeners`."
    ),
    Key(
        "listener.security.protocol.map",
        LIST,
        ["PLAINTEXT:PLAINTEXT", "INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT"],
        "The security protocol of each listener name.",
    ),
    Key(
        "inter.broker.listener.name",
        STRING,
        None,
        "The listener brokers use among themselves; default the first.",
    ),
    Key(
        "http.listener",
        STRING,
        "127.0.0.1:9404",
        "Where /healthz, /readyz and /metrics are served: HOST:PORT.",
    ),
    Key(
        "zookeeper.connect",
        STRING,
        "",
        "The ZooKeeper ensemble and the path of the cluster in it: HOST:PORT,HOST:PORT/PATH. Empty: this broker"
        " coordinates itself.",
    ),
    Key(
        "zookeeper.session.timeout.ms",
        INT,
        18_000,
        "How long ZooKeeper waits for a silent broker.",
        at_least(1),
    ),
    # Topics
    Key("num.partitions", INT, 1, "Partitions of a topic created without saying how many.", at_least(1)),
    Key(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic created without saying how many.",
        at_least(1),
    ),
    Key("auto.create.topics.enable", BOOLEAN, True, "Create a topic when a client asks for its metadata."),
    Key("delete.topic.enable", BOOLEAN, True, "Allow topics to be deleted."),
    Key(
        "min.insync.replicas",
        INT,
        1,
        "Replicas that must have a record before acks=all is given.",
        at_least(1),
        True,
    ),
    Key(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Let a replica outside the ISR lead, losing data.",
        None,
        True,
    ),
    # Connections
    Key("socket.request.max.bytes", INT, 104_857_600, "The largest request that is taken.", at_least(1)),
    Key("socket.listen.backlog.size", INT, 1024, "Connections that wait to be accepted.", at_least(1)),
    Key("queued.max.request.bytes", LONG, 268_435_456, "Bytes of unfinished requests, in all.", at_least(1)),
    Key(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "Close a connection that is silent for so long.",
        at_least(1),
    ),
    Key("max.connections", INT, INT_MAX, "Connections at one time.", at_least(0), True),
    Key(
        "max.connections.per.ip", INT, INT_MAX, "Connections at one time from one address.", at_least(0), True
    ),
    Key("fetch.max.bytes", INT, 57_671_680, "The most a fetch response carries.", at_least(1024)),
    Key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Fetch sessions of consumers at one time; 0: none, each request names all its partitions.",
        at_least(0),
    ),
    # The log
    Key("log.dirs", LIST, None, "The folders the logs are kept in; default `log.dir`."),
    Key("log.dir", STRING, "data", "The folder the logs are kept in, where `log.dirs` is not set."),
    Key("log.segment.bytes", INT, 1_073_741_824, "A segment's size.", at_least(14), True),
    Key("log.roll.ms", LONG, None, "Start a new segment after so long.", at_least(1), True),
    Key(
        "log.roll.hours",
        INT,
        168,
        "Start a new segment after so long, where log.roll.ms is not set.",
        at_least(1),
    ),
    Key(
        "log.roll.jitter.ms",
        LONG,
        None,
        "The most that is taken off log.roll.ms, at random.",
        at_least(0),
        True,
    ),
    Key(
        "log.roll.jitter.hours",
        INT,
        0,
        "The same in hours, where log.roll.jitter.ms is not set.",
        at_least(0),
    ),
    Key("log.retention.ms", LONG, None, "Delete segments older than this; -1: never.", at_least(-1), True),
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
        "Delete the oldest segments of a larger partition; -1: never.",
        at_least(-1),
        True,
    ),
    Key("log.retention.check.interval.ms", LONG, 300_000, "How often retention looks.", at_least(1)),
    Key(
        "log.cleanup.policy",
        LIST,
        ["delete"],
        "What becomes of old segments.",
        some_of("compact", "delete"),
        True,
    ),
    Key(
        "log.segment.delete.delay.ms",
        LONG,
        60_000,
        "How long a deleted segment's file stays.",
        at_least(0),
        True,
    ),
    Key(
        "log.index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of its index.",
        at_least(0),
        True,
    ),
    Key("log.index.size.max.bytes", INT, 10_485_760, "An index's size.", at_least(4), True),
    Key("log.preallocate", BOOLEAN, False, "Reserve a segment's space when it is created.", None, True),
    Key("log.flush.interval.messages", LONG, LONG_MAX, "fsync after so many records.", at_least(1), True),
    Key("log.flush.interval.ms", LONG, None, "fsync a record after so long.", at_least(0), True),
    Key("log.flush.scheduler.interval.ms", LONG, LONG_MAX, "The same, where it is not set.", at_least(0)),
    Key(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often it is written down from where on recovery would read.",
        at_least(0),
    ),
    Key(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60_000,
        "How often it is written down where logs start.",
        at_least(0),
    ),
    Key(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock gives a record its time: the producer's or the broker's.",
        one_of("CreateTime", "LogAppendTime"),
        True,
    ),
    Key(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far in the past a record's time may lie.",
        at_least(0),
        True,
    ),
    Key(
        "log.message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        "How far in the future a record's time may lie.",
        at_least(0),
        True,
    ),
    Key("message.max.bytes", INT, 1_048_588, "The largest record batch that is taken.", at_least(0), True),
    Key("compression.type", STRING, "producer", "The codec batches are stored with.", one_of(*CODECS), True),
    Key("compression.gzip.level", INT, -1, "gzip's level, where the broker compresses.", gzip_level, True),
    Key("compression.lz4.level", INT, 9, "lz4's level, where the broker compresses.", between(1, 17), True),
    Key(
        "compression.zstd.level",
        INT,
        3,
        "zstd's level, where the broker compresses.",
        between(-131072, 22),
        True,
    ),
    Key("num.recovery.threads.per.data.dir", INT, 2, "Threads that open logs at start.", at_least(1)),
    Key(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "Forget an idempotent producer after so long.",
        at_least(1),
        True,
    ),
    # Compaction
    Key("log.cleaner.enable", BOOLEAN, True, "Compact the topics that ask for it."),
    Key("log.cleaner.threads", INT, 1, "Threads that compact.", at_least(0), True),
    Key("log.cleaner.backoff.ms", LONG, 15_000, "Pause when there is nothing to compact.", at_least(0), True),
    Key(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        "Share of a log that is new before it is compacted.",
        between(0, 1),
        True,
    ),
    Key(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        "How long a record stays whatever comes after.",
        at_least(0),
        True,
    ),
    Key(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "When a record is compacted at the latest.",
        at_least(1),
        True,
    ),
    Key("log.cleaner.delete.retention.ms", LONG, 86_400_000, "How long tombstones stay.", at_least(0), True),
    Key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        1.7976931348623157e308,
        "The most that compaction reads and writes.",
        at_least(0),
        True,
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        134_217_728,
        "Memory for keys while compacting, of all threads; with more keys a log takes several passes.",
        at_least(1024),
        True,
    ),
    # Groups and their offsets
    Key(
        "group.min.session.timeout.ms",
        INT,
        6_000,
        "The least session timeout a member may ask for.",
        at_least(0),
    ),
    Key("group.max.session.timeout.ms", INT, 1_800_000, "The most.", at_least(0)),
    Key(
        "group.initial.rebalance.delay.ms",
        INT,
        3_000,
        "How long a new group waits for more members.",
        at_least(0),
    ),
    Key("group.max.size", INT, INT_MAX, "Members a group may have.", at_least(1)),
    Key(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets, when it is created.",
        at_least(1),
    ),
    Key(
        "offsets.topic.replication.factor",
        SHORT,
        3,
        "Its replicas; never more than there are brokers.",
        at_least(1),
    ),
    Key("offsets.topic.segment.bytes", INT, 104_857_600, "Its segments' size.", at_least(14)),
    Key("offsets.topic.compression.codec", INT, 0, "Its codec.", between(0, 4)),
    Key(
        "offsets.retention.minutes",
        INT,
        10_080,
        "Forget the offsets of a group without members.",
        at_least(1),
    ),
    Key("offsets.retention.check.interval.ms", LONG, 600_000, "How often that is looked at.", at_least(1)),
    Key("offset.metadata.max.bytes", INT, 4096, "The longest text committed with an offset.", at_least(0)),
    Key("offsets.commit.timeout.ms", INT, 5_000, "How long a commit waits for its replicas.", at_least(1)),
    # Replication
    Key(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "A follower that lags for so long leaves the ISR.",
        at_least(1),
    ),
    Key(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "The most a follower asks for of one partition.",
        at_least(0),
    ),
    Key(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "The most a follower asks for in one request.",
        at_least(0),
    ),
    Key("replica.fetch.min.bytes", INT, 1, "The least a follower's fetch waits for.", at_least(1)),
    Key("replica.fetch.wait.max.ms", INT, 500, "How long it waits at most.", at_least(1)),
    Key("replica.fetch.backoff.ms", INT, 1_000, "Pause of a follower after a failure.", at_least(0)),
    Key("replica.socket.timeout.ms", INT, 30_000, "How long a follower waits for an answer.", at_least(1)),
    Key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5_000,
        "How often high watermarks are written down.",
        at_least(1),
    ),
    Key(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes a second that replicas which are being moved here take in.",
        at_least(0),
        True,
    ),
    Key(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Accepted: the side that receives is the one that is throttled.",
        at_least(0),
        True,
        inert=True,
    ),
    Key("controlled.shutdown.enable", BOOLEAN, True, "Move leaders away before stopping."),
    Key(
        "controlled.shutdown.max.retries",
        INT,
        3,
        "How often to ask again while there are partitions that nobody else can lead.",
        at_least(0),
    ),
    Key("controlled.shutdown.retry.backoff.ms", LONG, 5_000, "The pause before asking again.", at_least(1)),
    Key("auto.leader.rebalance.enable", BOOLEAN, True, "Give leadership back to the preferred replica."),
    Key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often the controller looks who should lead again.",
        at_least(1),
    ),
    Key(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "So many per cent of what a broker should lead may be led by others.",
        at_least(0),
    ),
    *_inert(INT, num_network_threads=3, num_io_threads=8, background_threads=10, queued_max_requests=500),
    *_inert(INT, socket_send_buffer_bytes=102_400, socket_receive_buffer_bytes=102_400),
    *_inert(INT, num_replica_fetchers=1),
    *_inert(INT, request_timeout_ms=30_000),
    *_inert(INT, offsets_load_buffer_size=5_242_880, log_cleaner_io_buffer_size=524_288),
    *_inert(SHORT, transaction_state_log_replication_factor=3),
    *_inert(INT, transaction_state_log_min_isr=2, transaction_state_log_num_partitions=50),
    *_inert(INT, transaction_state_log_segment_bytes=104_857_600),
    *_inert(INT, transactional_id_expiration_ms=604_800_000, transaction_max_timeout_ms=900_000),
    *_inert(INT, zookeeper_connection_timeout_ms=None, controller_socket_timeout_ms=30_000),
    *_inert(STRING, inter_broker_protocol_version=None, log_message_format_version=None),
)


def _topic(name: str, *synonyms: str | Synonym) -> Key:
    """A topic key that is defined as the last of its broker keys is; several differ in their unit only."""
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
        "Replicas whose catching up is throttled, on the leader.",
        replicas("leader.replication.throttled.replicas"),
    ),
    _topic("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    _topic("max.message.bytes", "message.max.bytes"),
    _topic("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"),
    _topic("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms"),
    _topic("message.timestamp.type", "log.message.timestamp.type"),
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
"""Broker keys and those that give their value where they are not set."""

BROKER_PAIRS = (
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
)
TOPIC_PAIRS = (("min.compaction.lag.ms", "max.compaction.lag.ms"),)
"""Keys whose values depend on each other: the first may not exceed the second."""
