"""How to connect to a cluster: the first address, credentials, and whom to trust, as in a client's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_kafka.client.security import Security


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """``security``: None for plain text without a login. It is read again for each new connection."""

    bootstrap: str
    security: Security | None = None
