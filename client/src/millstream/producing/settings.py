"""Options of a producer: validated before it connects, and translated to librdkafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from millstream.connection import Cluster
from millstream.errors import BadInput
from millstream.producing.partitioners import Murmur2, Partitioner
from millstream.producing.stamps import Audit

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Acks: TypeAlias = Literal[0, 1, "all"]

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
OURS: Final = {
    "bootstrap.servers": "bootstrap",
    "acks": "acks",
    "request.required.acks": "acks",
    "compression.type": "compression",
    "compression.codec": "compression",
    "partitioner": "partitioner",
    "linger.ms": "linger_ms",
    "queue.buffering.max.ms": "linger_ms",
    "delivery.timeout.ms": "delivery_timeout_s",
    "message.timeout.ms": "delivery_timeout_s",
    "queue.buffering.max.messages": "max_buffered_messages",
    "queue.buffering.max.kbytes": "max_buffered_bytes",
    "client.id": "client_id",
    "enable.idempotence": "acks",
    "message.max.bytes": "max_record_bytes",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout_s",
}


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """Options of a producer. Names of times end in ``_s`` (seconds) or ``_ms``, names of sizes in ``_bytes``.

    Raises BadInput for a value out of range.
    """

    acks: Acks = "all"
    """Replicas that must have a record before it counts as delivered: "all" in-sync ones, the leader (1), or none (0).
    With "all" the producer is idempotent: each record is in the log once and in order."""
    compression: Compression = "none"
    linger_ms: float = 5
    """Time for which a batch waits for more records."""
    delivery_timeout_s: float = 30
    """Time limit for the acknowledgement of a record; after it, delivery has failed."""
    max_buffered_messages: int = 100_000
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Limits on records without an acknowledgement, in number and bytes; at a limit, `send` waits."""
    buffer_timeout_s: float = 60
    """Time for which `send` waits at a limit before it raises BufferFull."""
    max_record_bytes: int = 1_000_000
    partitioner: Partitioner = field(default_factory=Murmur2)
    audit: Audit | None = None
    """Stamp each record and report counts to a topic; see `Audit`. It adds a delivery callback to each record."""
    transactional_id: str | None = None
    """Send records in transactions only: see `Producer.transaction`. A producer that begins with the same id fences the
    one before. Give each of a program's processes an id of its own, and the same one after a restart."""
    transaction_timeout_s: float = 60
    """Time limit of a transaction: the brokers abort it then. At most their transaction.max.timeout.ms (15 minutes)."""
    client_id: str = "millstream"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of librdkafka, such as those of TLS and SASL."""

    def __post_init__(self) -> None:
        if self.acks not in (0, 1, "all") or isinstance(self.acks, bool):
            raise BadInput(f"acks: {self.acks!r} is not allowed", 'write 0, 1 or "all"')
        if self.compression not in COMPRESSIONS:
            raise BadInput(
                f"compression: {self.compression!r} is not allowed", f"write {', '.join(COMPRESSIONS)}"
            )
        if not callable(self.partitioner):
            raise BadInput(
                f"partitioner: {self.partitioner!r} is not allowed", "give a callable (see Partitioner)"
            )
        for name, low, high in (
            ("linger_ms", 0, 900_000),
            ("delivery_timeout_s", 0.01, 2_147_483),
            ("max_buffered_messages", 1, 2**31 - 1),
            ("max_buffered_bytes", 1024, 2**31 * 1024 - 1),
            ("buffer_timeout_s", 0, 2_147_483),
            ("max_record_bytes", 1000, 1_000_000_000),
            ("transaction_timeout_s", 1, 2_147_483),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise BadInput(
                    f"{name}: {value!r} is not allowed", f"write a number from {low:,} to {high:,}"
                )
        if self.transactional_id is not None:
            if not isinstance(self.transactional_id, str) or not self.transactional_id:
                raise BadInput(f"transactional_id: {self.transactional_id!r} is not allowed", "write a text")
            if self.acks != "all":
                raise BadInput(f"acks: {self.acks!r} is not allowed with transactions", 'write "all"')
            if self.audit is not None:
                raise BadInput("audit: not allowed with transactions", "leave it out")
        for key in self.config:
            if name := OURS.get(key, ""):
                raise BadInput(f"config: {key} is not allowed there", f"use the option {name}")

    def client_config(self, cluster: Cluster) -> dict[str, Any]:
        """The settings for librdkafka. BadInput for those of the cluster that no producer may have."""
        if self.transactional_id is None and "transactional.id" in cluster.config:
            raise BadInput("config: transactional.id is not allowed there", "use the option transactional_id")
        longest_s = self.delivery_timeout_s
        in_transactions: dict[str, Any] = {}
        if self.transactional_id is not None:
            longest_s = min(longest_s, self.transaction_timeout_s)
            in_transactions = {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": int(self.transaction_timeout_s * 1000),
            }
        return cluster.client_config() | {
            "client.id": self.client_id,
            "acks": self.acks,
            "enable.idempotence": self.acks == "all",
            "compression.type": self.compression,
            # A batch waits no longer than its records may.
            "linger.ms": min(self.linger_ms, longest_s * 1000 / 2),
            "message.timeout.ms": int(longest_s * 1000),
            "queue.buffering.max.messages": self.max_buffered_messages,
            "queue.buffering.max.kbytes": self.max_buffered_bytes // 1024,
            "message.max.bytes": self.max_record_bytes,
            "partitioner": getattr(self.partitioner, "librdkafka", "murmur2_random"),
            **in_transactions,
            **self.config,
        }
