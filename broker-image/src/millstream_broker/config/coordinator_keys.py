"""The keys of the coordinators: groups and transactions, and the internal topics that keep them."""

from __future__ import annotations

from .config_types import HOUR_MS, INT_MAX, Key, Type, at_least, between

INT, SHORT, LONG = Type.INT, Type.SHORT, Type.LONG

COORDINATOR_KEYS = (
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
)
