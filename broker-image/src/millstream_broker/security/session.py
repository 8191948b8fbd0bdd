"""Who sends the requests of a connection: what authorisation, quotas and an audit log of requests refer to."""

from __future__ import annotations

from typing import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
"""The principal of clients on listeners without authentication."""


class PeerBroker(NamedTuple):
    """The broker at the other end of a connection, in its incarnation at the time it connected."""

    broker_id: int
    broker_epoch: int

    @property
    def principal(self) -> str:
        """Of a type of its own: no mechanism for clients can return it."""
        return f"Broker:{self.broker_id}"


class ClientSession(NamedTuple):
    """One authentication of a connection. It never changes: another authentication or client id makes another one."""

    principal: str
    """`TYPE:NAME`, as in `User:alice`."""
    peer_broker: PeerBroker | None
    """The broker of this cluster at the other end; None for a client."""
    listener: str
    host: str
    expires_at: float | None = None
    """Time of the loop from which on the client must authenticate again; None: never."""
    client_id: str | None = None
    """The one in the client's latest request."""


def anonymous(listener: str, host: str) -> ClientSession:
    """The session of a client that has not authenticated."""
    return ClientSession(ANONYMOUS, None, listener, host)
