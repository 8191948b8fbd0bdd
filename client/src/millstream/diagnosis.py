"""Finds out why a cluster cannot be reached: names, ports, TLS, protocol, versions, SASL, advertised addresses, strays,
topics, clocks.

`diagnose` tests each step separately and yields findings in order; a failed step says what to do, and steps that need
it are left out.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millstream import raw, sasl, subscriptions, tls, transactions
from millstream.addresses import host_port
from millstream.clocks import clocks
from millstream.connection import Cluster
from millstream.errors import MillstreamError
from millstream.raw import TIMEOUT_S
from millstream.words import count

SPOKEN: Final = {
    "ApiVersions": (raw.API_VERSIONS, 0, 3),
    "Produce": (0, 3, 10),
    "Fetch": (1, 4, 16),
    "Metadata": (3, 4, 13),
    "OffsetCommit": (8, 2, 9),
    "JoinGroup": (11, 1, 5),
}
"""API keys, with the oldest and newest versions that librdkafka speaks, from today's record format on.

From "Supported protocol versions" in its INTRODUCTION.md.
"""
DESCRIBE_LOG_DIRS: Final = 35
ALL_TOPICS: Final = struct.pack(">i", -1)
MAX_LOG_DIRS: Final = 64 << 20
STRAY: Final = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-stray")
"""The folder of a log that fits no topic, and that nobody deleted."""
SHOWN: Final = 5
CLOCK_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A step: ``problem`` is "" if all is well; then ``fact`` has the finding."""

    step: str
    subject: str
    fact: str = ""
    problem: str = ""


def diagnose(cluster: Cluster, *, clock: bool = False, topics: Sequence[str] = ()) -> Iterator[Finding]:
    """All findings. ``clock``: also compare clocks, by commits to new groups, which are deleted again.

    ``topics``: what consumers subscribe to, names or patterns (^…).
    """
    usable = False
    for host, port in cluster.addresses:
        for finding in _address(host, port, cluster.config):
            yield finding
        usable = usable or finding.step == "transactions"
        usable = usable or (finding.step in ("versions", "sasl") and not finding.problem)
    if not usable:
        return
    try:
        metadata = cluster.first_metadata
    except MillstreamError as error:
        yield Finding("metadata", cluster.bootstrap, problem=str(error))
        return
    yield Finding(
        "metadata",
        cluster.bootstrap,
        f"cluster {metadata.cluster_id}, {count(len(metadata.brokers), 'broker')}",
    )
    for broker in sorted(metadata.brokers.values(), key=lambda one: one.id):
        where = host_port(broker.host, broker.port)
        reason = _connects(broker.host, broker.port)
        problem = (
            f"broker {broker.id} advertises it: {reason}; set advertised.listeners to what clients reach"
        )
        yield Finding("advertised", where, f"broker {broker.id}", problem if reason else "")
        if not reason and not sasl.is_used(cluster.config):
            yield from _strays(broker.id, broker.host, broker.port, cluster.config)
    for subscribed in topics:
        fact, problem = subscriptions.check(subscribed, metadata.topics)
        yield Finding("topic", subscribed, fact, problem)
    if clock:
        yield from _clocks(cluster, metadata)


def _address(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = host_port(host, port)
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
    where = host_port(host, port)
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as sock:
            versions, mechanisms = _asked(sock)
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
    yield from _usable(where, config, versions, mechanisms)


def _tls(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = host_port(host, port)
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
            versions, mechanisms = _asked(secured)
    except (OSError, ValueError, struct.error) as error:
        if _speaks_kafka(host, port):
            problem = (
                "it speaks plaintext, and the client TLS; set security.protocol=PLAINTEXT, or use a TLS port"
            )
            yield Finding("tls", where, problem=problem)
        elif problem := tls.why_refused(error) or (said and tls.why_refused_later(host, port, context)):
            has_none = problem.startswith(tls.OUR_CERTIFICATE) and not tls.has_certificate(config)
            yield Finding("tls", where, problem=tls.NO_CERTIFICATE if has_none else problem)
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
    yield from _usable(where, config, versions, mechanisms)


def _usable(
    where: str,
    config: Mapping[str, Any],
    versions: dict[int, tuple[int, int]],
    mechanisms: tuple[str, ...],
) -> Iterator[Finding]:
    finding = _versions(where, versions)
    yield finding
    if finding.problem:
        return
    if said := transactions.problem(config, versions):
        yield Finding("transactions", where, problem=said)
    if mechanisms or sasl.is_used(config):
        yield Finding("sasl", where, ", ".join(mechanisms), sasl.problem(config, mechanisms))


def _versions(where: str, versions: dict[int, tuple[int, int]]) -> Finding:
    new, old = [], []
    for name, (key, oldest, newest) in SPOKEN.items():
        low, high = versions.get(key, (-1, -1))
        if low > newest:
            new.append(f"{name} from {low}, this client to {newest}")
        elif high < oldest:
            old.append(f"{name} {oldest}")
    if new:
        problem = f"it is too new for this client: it speaks {', '.join(new)}; upgrade confluent-kafka"
    elif old:
        problem = f"it is too old: it lacks {', '.join(old)}; upgrade it"
    else:
        problem = ""
    return Finding("versions", where, f"{len(versions)} APIs, Fetch to {versions.get(1, (0, 0))[1]}", problem)


def _speaks_kafka(host: str, port: int) -> bool:
    """Whether it speaks Kafka's protocol in plain text."""
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as sock:
            return bool(raw.api_versions(sock))
    except (OSError, ValueError, struct.error):
        return False


def _asked(sock: socket.socket) -> tuple[dict[int, tuple[int, int]], tuple[str, ...]]:
    """A listener's API versions and SASL mechanisms; without SASL, no mechanisms."""
    versions = raw.api_versions(sock)
    if sasl.SASL_HANDSHAKE not in versions:
        return versions, ()
    return versions, sasl.mechanisms(raw.call(sock, sasl.SASL_HANDSHAKE, sasl.handshake()))


def _strays(broker: int, host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Logs that the broker keeps although no topic has them; nothing if there are none, or it does not list them."""
    where = host_port(host, port)
    try:
        with raw.connected(host, port, config) as sock:
            answer = raw.call(sock, DESCRIBE_LOG_DIRS, ALL_TOPICS, 1, MAX_LOG_DIRS)
        strays = [name for name in _topics_in_log_dirs(answer) if STRAY.fullmatch(name)]
    except (OSError, ValueError, struct.error):
        return
    if not strays:
        return
    topics = sorted({name.rpartition(".")[0].rpartition("-")[0] for name in strays})
    more = f" and {len(topics) - SHOWN} more" if len(topics) > SHOWN else ""
    problem = (
        f"broker {broker} keeps {count(len(strays), 'log')} of topics that the cluster does not know:"
        f" {', '.join(topics[:SHOWN])}{more}; restore the cluster's ZooKeeper to have them back, or remove them"
        " (millstream stray list, millstream stray remove)"
    )
    yield Finding("strays", where, problem=problem)


def _topics_in_log_dirs(answer: bytes) -> Iterator[str]:
    """The names in a DescribeLogDirs response, version 1."""
    reader = raw.Reader(answer)
    _, directories = reader.take(">ii")
    for _ in range(directories):
        reader.take(">h")
        reader.text()
        (topics,) = reader.take(">i")
        for _ in range(topics):
            yield reader.text()
            (partitions,) = reader.take(">i")
            for _ in range(partitions):
                reader.take(">iqq?")


def _clocks(cluster: Cluster, metadata: Any) -> Iterator[Finding]:
    try:
        for clock in clocks(cluster):
            broker = metadata.brokers.get(clock.broker)
            where = cluster.bootstrap if broker is None else host_port(broker.host, broker.port)
            if clock.unknown:
                problem = f"the time of broker {clock.broker} cannot be read: {clock.unknown}"
            elif abs(clock.ahead_s) > CLOCK_LIMIT_S:
                direction = "ahead of" if clock.ahead_s > 0 else "behind"
                problem = (
                    f"the clock of broker {clock.broker} is {abs(clock.ahead_s):.1f} s {direction} this machine's; "
                    "synchronise both (NTP)"
                )
            else:
                problem = ""
            said = f"broker {clock.broker}, within {max(abs(clock.ahead_s), 0.001):.3f} s of this machine's"
            yield Finding("clock", where, "" if problem else said, problem)
    except MillstreamError as error:
        yield Finding("clock", cluster.bootstrap, problem=f"no broker's time can be read: {error}")
