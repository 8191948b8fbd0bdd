"""The keys of replication: followers, the ISR, and where leaders are."""

from __future__ import annotations

from .config_types import LONG_MAX, Key, Type, at_least

BOOLEAN, INT, LONG = Type.BOOLEAN, Type.INT, Type.LONG

REPLICATION_KEYS = (
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
)
