"""Kafka's broker keys for features this broker does not have, so that it starts with a server.properties from Kafka.

They have no effect, and the broker logs this at start, with the reason. The keys are listed by prefix, as Kafka or its
plugins may know any key with such a prefix.
"""

from __future__ import annotations

_BEGINNINGS = {
    "there is no tiered storage": ("remote.", "log.local.", "log.remote.", "follower.fetch.last.tiered."),
    "ZooKeeper coordinates, not KRaft": (
        *("process.roles", "metadata.", "internal.metadata.", "initial.broker.registration."),
        *("controller.listener.", "controller.performance.", "controller.quorum.", "controller.socket."),
        *("broker.heartbeat.", "broker.session.", "server.max.startup.", "early.start.", "unstable."),
        "zookeeper.metadata.migration.",
    ),
    "there are no delegation tokens, and no Kerberos": (
        *("delegation.token.", "sasl.kerberos.", "sasl.login.", "sasl.client."),
    ),
    "this broker has no such setting of OAUTHBEARER": (
        *("sasl.oauthbearer.header.", "sasl.oauthbearer.scope="),
        *("sasl.oauthbearer.token.", "sasl.oauthbearer.client.", "sasl.oauthbearer.assertion."),
        *("sasl.oauthbearer.jwt.", "sasl.oauthbearer.iat."),
    ),
    "brokers authenticate each other by the secret of their cluster": ("sasl.mechanism.",),
    "only classic groups are supported": (
        "group.consumer.",
        "group.share.",
        "group.streams.",
        "group.coordinator.",
        "share.",
        "errors.deadletterqueue.",
    ),
    "new replicas may go to every log directory": ("cordoned.log.dirs",),
    "partitions of transactions are always verified": ("transaction.partition.verification.",),
    "there is no two-phase commit": ("transaction.two.phase.commit.",),
    "there are no quotas for replication": ("replication.quota.", "alter.log.dirs."),
    "quotas are those stored in coordination": ("client.quota.",),
    "metrics are at http.listener": ("metric.", "metrics.", "kafka.metrics.", "telemetry."),
    "brokers load no Java classes": (
        *("create.topic.policy.", "alter.config.policy.", "principal.builder.", "security.providers"),
        *("ssl.engine.factory.", "ssl.provider"),
    ),
    "OpenSSL decides this": (
        *("ssl.keymanager.algorithm", "ssl.trustmanager.algorithm", "ssl.secure.random."),
    ),
    "this broker has nothing for it to tune": (
        *("add.partitions.to.txn.", "transaction.state.log.load.buffer."),
        *("delete.records.purgatory.", "fetch.purgatory.", "producer.purgatory.", "log.cleaner.io.buffer."),
        *("log.dir.failure.", "log.initial.task.", "max.request.partition."),
        *("num.replica.alter.", "producer.id.expiration.check.", "replica.socket.receive."),
        *("socket.connection.setup.", "unclean.leader.election.interval."),
    ),
}


def why_without_effect(name: str) -> str | None:
    """The reason why one of Kafka's keys has no effect here; None for a key that is not listed."""
    for reason, beginnings in _BEGINNINGS.items():
        if f"{name}=".startswith(beginnings):  # with "=", a beginning is a whole name
            return reason
    return None
