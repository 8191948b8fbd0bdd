"""The keys of a topic's configuration. Most have the definition of a broker's key, which is also their default.

Our own are `millstream.mirror.source`, `millstream.mirror.rejoined`, `millstream.mirror.promoted` and
`millstream.topic.owner`.
"""

from __future__ import annotations

from millstream_kafka.mirror_source import KEY as MIRROR_SOURCE
from millstream_kafka.mirror_source import PROMOTED as MIRROR_PROMOTED
from millstream_kafka.mirror_source import REJOINED as MIRROR_REJOINED
from millstream_kafka.topic_owner import KEY as TOPIC_OWNER

from .config_keys import BROKER_KEYS
from .config_types import (
    HOUR_MS,
    Key,
    Synonym,
    Type,
    keys_by_name,
    mirror_requests,
    mirror_source,
    replicas,
    topic_owner,
)

STRING, LONG, LIST = Type.STRING, Type.LONG, Type.LIST


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


TOPIC_KEYS = keys_by_name(
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

TOPIC_PAIRS = (("min.compaction.lag.ms", "max.compaction.lag.ms"),)
"""As `BROKER_PAIRS`."""
