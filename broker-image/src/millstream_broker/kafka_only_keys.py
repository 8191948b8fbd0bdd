"""Kafka's broker keys for what this broker does not have, so that a server.properties copied from Kafka starts.

They change nothing, and the broker says so at its start, with the reason. By their beginnings: whatever is written
behind one of these, Kafka or one of its plugins may know it.
"""

from __future__ import annotations

_BEGINNINGS = {
    "there is no tiered storage": ("remote.", "log.local."),
    "ZooKeeper coordinates, not KRaft": (
        *("process.roles", "controller.", "metadata.", "internal.metadata.", "initial.broker.registration."),
        *("broker.heartbeat.", "broker.session.", "server.max.startup.", "early.start.", "unstable."),
    ),
    "nobody is asked who they are, and everybody may do everything": (
        *("authorizer.", "ssl.", "sasl.", "security.", "principal.", "delegation.token.", "super.users"),
        *("connections.max.reauth.", "connection.failed.authentication.", "allow.everyone."),
    ),
    "there are classic groups only": (
        "group.consumer.",
        "group.share.",
        "group.streams.",
        "group.coordinator.",
        "share.",
    ),
    "there are no transactions": ("transaction.", "add.partitions.to.txn."),
    "there are no quotas": (
        *("quota.", "replication.quota.", "alter.log.dirs.", "controller.quota.", "client.quota."),
        *("max.connection.creation.rate", "max.connections.per.ip.overrides"),
    ),
    "metrics are at http.listener": ("metric.", "metrics.", "kafka.metrics.", "telemetry."),
    "it loads no Java": ("create.topic.policy.", "alter.config.policy."),
    "there is nothing that it tunes": (
        *("delete.records.purgatory.", "fetch.purgatory.", "producer.purgatory.", "log.cleaner.io.buffer."),
        *("log.dir.failure.", "log.initial.task.", "max.request.partition."),
        *("num.replica.alter.", "producer.id.expiration.check.", "replica.socket.receive."),
        *("socket.connection.setup.", "unclean.leader.election.interval."),
    ),
}


def why_without_effect(name: str) -> str | None:
    """Why a key of Kafka's means nothing here; None if it is not known to be one."""
    for reason, beginnings in _BEGINNINGS.items():
        if name.startswith(beginnings):
            return reason
    return None
