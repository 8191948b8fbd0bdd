"""Clients without connections, for tests that call handlers and fetch sessions directly."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from millstream_broker.network.handlers import RequestContext
from millstream_broker.security.authentication import Authentication
from millstream_broker.security.session import ClientSession, PeerBroker, anonymous

LISTENER, HOST = "PLAINTEXT", "127.0.0.1"
_connection_ids = itertools.count(1)


class FetchingClient(NamedTuple):
    """The client of a fetch session, over a connection of its own."""

    session: ClientSession
    connection_id: int


def consumer() -> FetchingClient:
    return FetchingClient(anonymous(LISTENER, HOST), next(_connection_ids))


def broker(broker_id: int, broker_epoch: int = 0) -> FetchingClient:
    """A client that has authenticated as this broker."""
    peer = PeerBroker(broker_id, broker_epoch)
    return FetchingClient(ClientSession(peer.principal, peer, LISTENER, HOST), next(_connection_ids))


def request_context(version: int, client_id: str | None = "test") -> RequestContext:
    """The context of an anonymous client's request."""
    authentication = Authentication(LISTENER, HOST)
    return RequestContext(version, client_id, authentication.session, authentication, next(_connection_ids))
