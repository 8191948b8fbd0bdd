"""A broker that checks access rules: at one address clients have all rights, at another those of their SCRAM user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .broker import fixed_port
from .in_process_broker import InProcessBroker


class Guarded(NamedTuple):
    """At ``bootstrap`` clients have all rights, at ``login`` those of a user."""

    bootstrap: str
    login: str


@contextmanager
def guarded_broker(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Guarded]:
    found = Guarded(*(f"127.0.0.1:{fixed_port()}" for _ in range(2)))
    config = {
        "listeners": f"PLAINTEXT://{found.bootstrap},CLEAR://{found.login}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        **(more or {}),
    }
    broker = InProcessBroker(folder, config).start()
    try:
        yield found
    finally:
        broker.discard()
