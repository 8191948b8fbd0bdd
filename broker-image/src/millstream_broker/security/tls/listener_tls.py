"""What a listener with TLS has: the context of its handshakes, and the principals of its clients.

A reload replaces both contexts at once (`certificates`). Connections that exist keep what they began with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple


class CertificateState(NamedTuple):
    """A listener's certificate, for metrics."""

    listener: str
    days: float
    """Until it expires."""
    reloads: int
    refused: int


class ListenerTls:
    """One listener's TLS."""

    __slots__ = ("client", "name", "principal", "server")

    def __init__(
        self,
        name: str,
        server: ssl.SSLContext,
        client: ssl.SSLContext | None,
        principal: Callable[[bytes], str],
    ) -> None:
        self.name = name
        self.server = server
        self.client = client
        """For connections to other brokers; None if the listener is not for brokers."""
        self.principal = principal
        """The principal of a client, from its certificate in DER. Raises ValueError if it has none."""
