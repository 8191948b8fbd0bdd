"""Why can I not connect? Checks each step to a cluster separately: names, ports, TLS, protocol, versions, advertised
addresses, clocks.

`diagnose` yields findings in order; a failed step says what to do, and steps that need it are left out.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from millstream import tls
from millstream.connection import Cluster
from millstream.errors import Failed, MillstreamError
from millstream.groups import commit_offsets, delete_groups
from millstream.topics import watermarks

TIMEOUT_S: Final = 3.0
MAX_ANSWER: Final = 1 << 20
NEEDED: Final = {
    "Produce": (0, 3),
    "Fetch": (1, 4),
    "Metadata": (3, 4),
    "OffsetCommit": (8, 2),
    "JoinGroup": (11, 1),
}
"""API keys and the oldest version that this client needs."""
CLOCK_LIMIT_S: Final = 1.0
POSITIONS: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Finding:
    """A step: ``problem`` is "" if all is well; then ``fact`` has the finding."""

    step: str
    subject: str
    fact: str = ""
    problem: str = ""


def diagnose(cluster: Cluster, *, clock: bool = False) -> Iterator[Finding]:
    """All findings. ``clock`` commits an offset of a new group, which is deleted again, to learn a broker's time."""
    usable = False
    for host, port in cluster.addresses:
        for finding in _address(host, port, cluster.config):
            yield finding
            usable = usable or (finding.step == "versions" and not finding.problem)
    if not usable:
        return
    try:
        metadata = cluster.metadata()
    except MillstreamError as error:
        yield Finding("metadata", cluster.bootstrap, problem=str(error))
        return
    yield Finding(
        "metadata", cluster.bootstrap, f"cluster {metadata.cluster_id}, {len(metadata.brokers)} brokers"
    )
    for broker in sorted(metadata.brokers.values(), key=lambda one: one.id):
        where = f"{broker.host}:{broker.port}"
        reason = _connects(broker.host, broker.port)
        problem = (
            f"broker {broker.id} advertises it: {reason}; set advertised.listeners to what clients reach"
        )
        yield Finding("advertised", where, f"broker {broker.id}", problem if reason else "")
    if clock:
        yield _clock(cluster, metadata)


def _address(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"{host}:{port}"
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (socket.gaierror, UnicodeError) as error:
        yield Finding(
            "name", host, problem=f"unknown host ({error}); check its spelling and this machine's DNS"
        )
        return
    yield Finding("name", host, ", ".join(found))
    if reason := _connects(host, port):
        yield Finding(
            "port", where, problem=f"{reason}; is the broker up, and does a firewall let you through?"
        )
        return
    yield Finding("port", where, "accepts connections")
    yield from (_tls if tls.is_used(config) else _plaintext)(host, port, config)


def _connects(host: str, port: int) -> str:
    """Why the address does not connect; "" if it does."""
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except (socket.gaierror, UnicodeError):
        return "unknown host"
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _plaintext(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"{host}:{port}"
    try:
        versions = _plaintext_versions(host, port)
    except (OSError, ValueError, struct.error) as error:
        if tls.speaks_tls(host, port, TIMEOUT_S):
            problem = (
                "it speaks TLS, and the client does not; set security.protocol=SSL, or use a plaintext port"
            )
        else:
            problem = f"it does not answer as a Kafka broker ({error}); is it another service's port?"
        yield Finding("protocol", where, problem=problem)
        return
    yield Finding("protocol", where, "Kafka, plaintext")
    yield _versions(where, versions)


def _tls(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"{host}:{port}"
    try:
        context = tls.context(config)
    except (OSError, ValueError) as error:
        yield Finding("tls", where, problem=f"the client's certificates cannot be used: {error}")
        return
    said = ""
    try:
        with (
            socket.create_connection((host, port), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            said = f"{secured.version()}, {secured.cipher()[0]}"  # type: ignore[index]
            versions = _api_versions(secured)
    except (OSError, ValueError, struct.error) as error:
        if _speaks_kafka(host, port):
            problem = (
                "it speaks plaintext, and the client TLS; set security.protocol=PLAINTEXT, or use a TLS port"
            )
            yield Finding("tls", where, problem=problem)
        elif problem := tls.why_refused(error) or (said and tls.why_refused_later(host, port, context)):
            yield Finding("tls", where, problem=problem)
        elif said:
            yield Finding("tls", where, said)
            problem = f"it does not answer as a Kafka broker ({error}); is it another service's port?"
            yield Finding("protocol", where, problem=problem)
        else:
            yield Finding(
                "tls", where, problem=f"it does not speak TLS ({error}); is it another service's port?"
            )
        return
    yield Finding("tls", where, said)
    yield Finding("protocol", where, "Kafka, TLS")
    yield _versions(where, versions)


def _versions(where: str, versions: dict[int, tuple[int, int]]) -> Finding:
    lacking = [
        f"{name} {oldest}"
        for name, (key, oldest) in NEEDED.items()
        if not (key in versions and versions[key][1] >= oldest)
    ]
    problem = f"it is too old: it lacks {', '.join(lacking)}; upgrade it" if lacking else ""
    return Finding("versions", where, f"{len(versions)} APIs, Fetch to {versions.get(1, (0, 0))[1]}", problem)


def _speaks_kafka(host: str, port: int) -> bool:
    """Whether it speaks Kafka's protocol in plain text."""
    try:
        return bool(_plaintext_versions(host, port))
    except (OSError, ValueError, struct.error):
        return False


def _plaintext_versions(host: str, port: int) -> dict[int, tuple[int, int]]:
    with socket.create_connection((host, port), TIMEOUT_S) as sock:
        return _api_versions(sock)


def _api_versions(sock: socket.socket) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key, from ApiVersions v0."""
    client = b"millstream-doctor"
    request = struct.pack(">hhih", 18, 0, 1, len(client)) + client
    sock.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(sock, 4))
    if not 10 <= size <= MAX_ANSWER:
        raise ValueError("its answer is no Kafka response")
    correlation, error, count = struct.unpack_from(">ihi", answer := _receive(sock, size))
    if correlation != 1 or error or count < 0 or count * 6 > size - 10:
        raise ValueError("its answer is no ApiVersions response")
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", answer[10 : 10 + count * 6])}


def _receive(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := sock.recv(size - len(found))):
            raise ValueError("it closed the connection")
        found += part
    return found


def _clock(cluster: Cluster, metadata: Any) -> Finding:
    """The coordinator's time, from its stamp on a group's record, beside ours."""
    topic = next((name for name in sorted(metadata.topics) if not name.startswith("__")), "")
    if not topic:
        return Finding(
            "clock", cluster.bootstrap, problem="there is no topic to commit an offset of; create one"
        )
    group = f"millstream-doctor-{uuid.uuid4().hex[:8]}"
    try:
        before = _ends(cluster)
        asked = time.time()
        commit_offsets(cluster, group, {(topic, 0): 0})
        answered = time.time()
        try:
            stamped = _stamp_of(cluster, group, before)
        finally:
            delete_groups(cluster, [group])
    except MillstreamError as error:
        return Finding("clock", cluster.bootstrap, problem=f"a broker's time cannot be read: {error}")
    off = max(asked - stamped, stamped - answered, 0.0)
    said = f"within {max(off, 0.001):.3f} s of this machine's"
    problem = f"it is {off:.1f} s off this machine's; synchronise both (NTP)" if off > CLOCK_LIMIT_S else ""
    return Finding("clock", cluster.bootstrap, said, problem)


def _ends(cluster: Cluster) -> dict[tuple[str, int], int]:
    if POSITIONS not in cluster.metadata().topics:
        return {}
    partitions = [(POSITIONS, number) for number in cluster.led_partitions(POSITIONS)]
    return {at: latest for at, (_, latest) in watermarks(cluster, partitions).items()}


def _stamp_of(cluster: Cluster, group: str, before: dict[tuple[str, int], int]) -> float:
    """When the coordinator wrote the group's commit, in seconds since 1970."""
    consumer = Consumer(cluster.client_config(group_id=group, enable_auto_commit=False))
    try:
        grown = [(at, before.get(at, 0)) for at, end in _ends(cluster).items() if end > before.get(at, 0)]
        consumer.assign([TopicPartition(*at, offset) for at, offset in grown])
        deadline = time.monotonic() + TIMEOUT_S
        while grown and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.1):
                if message.error() is None and group.encode() in (message.key() or b""):
                    return message.timestamp()[1] / 1000
    finally:
        consumer.close()
    raise Failed(f"{POSITIONS} does not show the commit")
