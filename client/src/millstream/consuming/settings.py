"""A connector's options, validated before it connects, and translated to librdkafka's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from millstream import transactions
from millstream.connection import Cluster
from millstream.consuming.message import Partition
from millstream.errors import BadInput

Coordination: TypeAlias = Literal["group", "zookeeper"]
Strategy: TypeAlias = Literal["cooperative-sticky", "range", "roundrobin"]
Commit: TypeAlias = Literal["processed", "manual"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime
Target: TypeAlias = int | Start
"""An offset, the start or the end of a partition, or a time."""
Positions: TypeAlias = Callable[[Sequence[Partition]], Mapping[Partition, int]]
"""Start positions for a stream's new partitions; omitted partitions start at their commits."""

OURS: Final = {
    "bootstrap.servers": "bootstrap",
    "group.id": "group",
    "partition.assignment.strategy": "strategy",
    "session.timeout.ms": "session_timeout_s",
    "max.poll.interval.ms": "processing_timeout_s",
    "auto.commit.interval.ms": "commit_interval_s",
    "enable.auto.commit": "commit",
    "auto.offset.reset": "start",
    "queued.max.messages.kbytes": "max_buffered_bytes",
    "client.id": "client_id",
    "enable.auto.offset.store": "commit",
    "enable.partition.eof": "",
    "group.protocol": "",
}
HEARTBEAT_S: Final = 1.0
"""Longest time between heartbeats, from which a member learns of rebalances."""
LONGEST_REBALANCE_S: Final = 86_400
"""The maximum that librdkafka allows."""
ZOOKEEPER_OPTIONS: Final = (
    *("use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname"),
    "sasl_options",
)
QUEUE_BACKOFF_MS: Final = 50
"""How long fetches pause when a stream's queue is full; librdkafka's default is a second."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "coordination": ("group", "zookeeper"),
    "strategy": ("cooperative-sticky", "range", "roundrobin"),
    "commit": ("processed", "manual"),
}


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """Every option of a connector. Times end in ``_s`` (seconds), sizes in ``_bytes``."""

    coordination: Coordination = "group"
    """The way to divide partitions among consumers: the brokers' group protocol, or by the consumers in ZooKeeper."""
    strategy: Strategy = "cooperative-sticky"
    """With "group": the assignor. "range" and "roundrobin" are eager: each rebalance revokes everything first."""
    zookeeper: str = ""
    """With "zookeeper": HOST:PORT,…/CHROOT of the brokers' ensemble."""
    zookeeper_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """With "zookeeper": options of kazoo's client for TLS and SASL (``use_ssl``, ``ca``, ``certfile``, ``keyfile``,
    ``keyfile_password``, ``verify_certs``, ``check_hostname``, ``sasl_options``). Hosts are verified by default."""
    commit: Commit = "processed"
    """"processed": positions are committed in the background, once the next message was taken.

    "manual": only `Connector.commit` commits, or nothing does.
    """
    commit_interval_s: float = 5
    start: Start = "earliest"
    """Start in a partition without a commit, or whose committed offset is no longer in the log.

    With a time, a stream that falls behind retention while it reads continues at the start of the log.
    """
    positions: Positions | None = None
    """Called with a stream's new partitions; returned positions take precedence over commits."""
    session_timeout_s: float = 45
    """How long a consumer may be silent before others take over its partitions."""
    processing_timeout_s: float = 300
    """With "group": how long the processing of one message may take; others take over at most twice
    ``session_timeout_s`` later."""
    max_buffered_bytes: int = 32 * 1024 * 1024
    """Limit of the messages that a stream fetches ahead; one fetch may exceed it by ``fetch.max.bytes``."""
    unreachable_timeout_s: float = 60
    """How long a stream waits while no broker responds before it raises Unreachable."""
    client_id: str = "millstream"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of librdkafka, such as those of TLS and SASL."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(
                    f"{name}: {getattr(self, name)!r} is not allowed", f"write {', '.join(choices)}"
                )
        check_target("start", self.start, offsets=False)
        for name, low, high in (
            ("commit_interval_s", 0.01, 86_400),
            ("session_timeout_s", 0.1, 1800),
            ("processing_timeout_s", 1, 86_400),
            ("max_buffered_bytes", 1024, 2_097_151 * 1024),
            ("unreachable_timeout_s", 1, 2_147_483),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise BadInput(
                    f"{name}: {value!r} is not allowed", f"write a number from {low:,} to {high:,}"
                )
        if self.coordination == "group" and self.processing_timeout_s < self.session_timeout_s:
            raise BadInput(
                f"processing_timeout_s: {self.processing_timeout_s:g} is not allowed",
                f"write at least session_timeout_s ({self.session_timeout_s:g})",
            )
        if bool(self.zookeeper) != (self.coordination == "zookeeper"):
            raise BadInput(
                f"zookeeper: {self.zookeeper!r} is not allowed with coordination={self.coordination!r}",
                'give the ensemble with coordination="zookeeper", and only then',
            )
        if self.zookeeper_config and not self.zookeeper:
            raise BadInput("zookeeper_config: not allowed without zookeeper", "leave it out")
        for key in self.zookeeper_config:
            if key not in ZOOKEEPER_OPTIONS:
                raise BadInput(
                    f"zookeeper_config: {key} is not allowed", f"write {', '.join(ZOOKEEPER_OPTIONS)}"
                )
        transactions.refuse(self.config)
        for key in self.config:
            if key in OURS:
                raise BadInput(
                    f"config: {key} is not allowed there", f"use the option {OURS[key]}" * bool(OURS[key])
                )

    @property
    def rebalance_timeout_s(self) -> float:
        """How long a group waits in a rebalance for a member to join, and librdkafka for its caller."""
        session = self.session_timeout_s
        return min(max(self.processing_timeout_s + session, 3 * session), LONGEST_REBALANCE_S)

    def client_config(self, cluster: Cluster, group: str) -> dict[str, Any]:
        """The settings for librdkafka, for one stream. BadInput for those of the cluster that no stream may have."""
        transactions.refuse(cluster.config)
        return cluster.client_config() | {
            "client.id": self.client_id,
            "group.id": group,
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": int(self.session_timeout_s * 1000),
            "heartbeat.interval.ms": max(int(min(self.session_timeout_s / 6, HEARTBEAT_S) * 1000), 1),
            "max.poll.interval.ms": int(self.rebalance_timeout_s * 1000),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # If the log loses records while it is read; a time then means the first remaining record, to skip none.
            "auto.offset.reset": "latest" if self.start == "latest" else "earliest",
            "queued.max.messages.kbytes": self.max_buffered_bytes // 1024,
            "fetch.message.max.bytes": 1_048_576,
            "fetch.wait.max.ms": 100,
            # By default librdkafka checks a full queue after a second; a fast reader empties it sooner.
            "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
            **self.config,
        }


def check_target(option: str, target: object, *, offsets: bool = True) -> None:
    """BadInput for an invalid start."""
    if isinstance(target, datetime):
        if target.tzinfo is None:
            raise BadInput(f"{option}: {target} has no time zone", "give one, such as tzinfo=datetime.UTC")
        return
    if target in ("earliest", "latest"):
        return
    if offsets and type(target) is int and target >= 0:
        return
    allowed = '"earliest", "latest" or a datetime' + ", or an offset from 0" * offsets
    raise BadInput(f"{option}: {target!r} is not allowed", f"write {allowed}")
