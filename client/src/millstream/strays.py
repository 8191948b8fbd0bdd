"""Strays of the brokers: logs that fit no topic of the cluster, and that nobody deleted. Brokers keep them, unserved.

DescribeStrays (key 31002) and RemoveStrays (31003) are Millstream's own requests; each broker responds for its logs.
"""

from __future__ import annotations

import base64
import struct
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from millstream import raw, sasl_login
from millstream.addresses import host_port
from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.errors import Failed

DESCRIBE_STRAYS: Final = 31002
REMOVE_STRAYS: Final = 31003
MAX_STRAYS_ANSWER: Final = 64 << 20
AT_ONCE: Final = 100
"""Strays in one request: the broker removes their files before it responds."""
REMOVAL_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Stray:
    """A stray of a broker, in the folder ``folder`` of ``log_dir``.

    A long ``topic`` is shortened. ``topic_id`` is "" if the log has none. ``since_ms``: when it became a stray, by the
    broker's clock.
    """

    broker: int
    topic: str
    partition: int
    topic_id: str
    size: int
    since_ms: int
    log_dir: str
    folder: str


def list_strays(cluster: Cluster) -> list[Stray]:
    """The strays of all running brokers, by topic, partition and broker. Unreachable; Failed names a broker."""
    found = [one for broker in _addresses(cluster) for one in _strays_of(cluster, broker)]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.broker, one.folder))


def remove_strays(cluster: Cluster, strays: Collection[Stray]) -> dict[Stray, str]:
    """Remove strays for good; returns the reason why each was not, "" if it was. Unreachable; Failed names a broker.

    One that has been in use since it was listed is not removed.
    """
    by_broker: dict[int, list[Stray]] = defaultdict(list)
    for stray in strays:
        by_broker[stray.broker].append(stray)
    outcomes: dict[Stray, str] = {}
    for broker, of_broker in sorted(by_broker.items()):
        for start in range(0, len(of_broker), AT_ONCE):
            outcomes |= _remove(cluster, broker, of_broker[start : start + AT_ONCE])
    return outcomes


def _addresses(cluster: Cluster) -> dict[int, tuple[str, int]]:
    return {one.id: (one.host, one.port) for one in cluster.first_metadata.brokers.values()}


def _strays_of(cluster: Cluster, broker: int) -> list[Stray]:
    reader = _ask(cluster, broker, DESCRIBE_STRAYS, b"", REQUEST_TIMEOUT_S)
    try:
        code, number = reader.take(">hi")
        if code:
            raise Failed(f"broker {broker} cannot list its strays", f"Kafka's error {code}")
        return [_stray(broker, reader) for _ in range(number)]
    except struct.error:
        raise _not_readable(broker) from None


def _stray(broker: int, reader: raw.Reader) -> Stray:
    log_dir, folder, topic = reader.text(), reader.text(), reader.text()
    partition, topic_id, size, since_ms = reader.take(">i16sqq")
    shown = base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""
    return Stray(broker, topic, partition, shown, size, since_ms, log_dir, folder)


def _remove(cluster: Cluster, broker: int, strays: Sequence[Stray]) -> dict[Stray, str]:
    named = (raw.text(one.log_dir) + raw.text(one.folder) + struct.pack(">q", one.since_ms) for one in strays)
    body = struct.pack(">i", len(strays)) + b"".join(named)
    reader = _ask(cluster, broker, REMOVE_STRAYS, body, REMOVAL_TIMEOUT_S)
    outcomes = {}
    try:
        (number,) = reader.take(">i")
        for stray, _ in zip(strays, range(number), strict=True):
            reader.text(), reader.text()
            (code,) = reader.take(">h")
            why = reader.text()
            outcomes[stray] = (why or f"Kafka's error {code}") if code else ""
    except (struct.error, ValueError):
        raise _not_readable(broker) from None
    return outcomes


def _ask(cluster: Cluster, broker: int, api: int, body: bytes, timeout_s: float) -> raw.Reader:
    if (address := _addresses(cluster).get(broker)) is None:
        raise Failed(f"broker {broker} is not running", "start it, and try again")
    try:
        with raw.connected(*address, cluster.config, timeout_s) as sock:
            if api not in raw.api_versions(sock):
                raise Failed(
                    f"broker {broker} cannot list or remove strays",
                    "it is Apache Kafka, or an older Millstream: upgrade it",
                )
            sasl_login.log_in(sock, cluster.config)
            return raw.Reader(raw.call(sock, api, body, 0, MAX_STRAYS_ANSWER))
    except (OSError, ValueError, struct.error) as error:
        where = f"broker {broker} at {host_port(*address)}"
        raise Failed(f"{where} does not answer ({error})", "see what millstream doctor says") from None


def _not_readable(broker: int) -> Failed:
    return Failed(
        f"the answer of broker {broker} cannot be read", "use the version of millstream that it has"
    )
