"""One address of a cluster, and why a client with some settings cannot use it: name, port, TLS, protocol, versions,
SASL.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millstream import raw, sasl, tls, transactions
from millstream.addresses import host_port
from millstream.raw import TIMEOUT_S

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
NEEDS_TLS: Final = (
    "it speaks TLS, and the client does not; set security.protocol=SSL, or use a plaintext port"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A step: ``problem`` is "" if all is well; then ``fact`` has the finding."""

    step: str
    subject: str
    fact: str = ""
    problem: str = ""


def examine(host: str, port: int, config: Mapping[str, Any]) -> Iterator[Finding]:
    """The steps up to SASL, for a client with librdkafka's settings; steps after a problem are left out."""
    where = host_port(host, port)
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (socket.gaierror, UnicodeError) as error:
        yield Finding(
            "name", host, problem=f"unknown host ({error}); check its spelling and this machine's DNS"
        )
        return
    yield Finding("name", host, ", ".join(found))
    if reason := connects(host, port):
        yield Finding(
            "port", where, problem=f"{reason}; is the broker up, and does a firewall let you through?"
        )
        return
    yield Finding("port", where, "accepts connections")
    yield from (_tls if tls.is_used(config) else _plaintext)(host, port, config)


def connects(host: str, port: int) -> str:
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
            problem = NEEDS_TLS
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


def why_unusable(host: str, port: int, config: Mapping[str, Any]) -> str:
    """The problem of TLS or SASL that a client with these settings has at an address; "" if it has none of these."""
    for finding in examine(host, port, config):
        if finding.problem and (finding.step in ("tls", "sasl") or finding.problem == NEEDS_TLS):
            return finding.problem
    return ""
