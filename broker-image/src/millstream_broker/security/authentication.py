"""How clients authenticate by SASL (KIP-43, KIP-152): mechanisms, and the state of a connection.

A listener has a table of mechanisms. `SaslHandshake` chooses one, and begins an exchange with it; each
`SaslAuthenticate` is one step of the exchange, until it returns an identity. Then the connection has a session of that
identity (`session`). A failed exchange leaves the session as it was.

A listener that requires authentication serves no other requests before (`network.routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes

from .session import ANONYMOUS, ClientSession, PeerBroker


class Identity(NamedTuple):
    """The result of an exchange."""

    principal: str
    peer_broker: PeerBroker | None = None
    expires_at: float | None = None


class Step(NamedTuple):
    """The response to one message of the client; the exchange ends with the one that has an identity."""

    auth_bytes: bytes
    identity: Identity | None = None


class Exchange(Protocol):
    """One run of a mechanism. A failure ends it."""

    async def step(self, auth_bytes: Bytes) -> Step:
        """Raises ApiError, with a message that is sent to the client. May wait, for a thread or another server."""


class Authenticator(Protocol):
    """One mechanism, for all connections."""

    def begin(self) -> Exchange: ...


Mechanisms = Mapping[str, Authenticator]
"""The mechanisms of a listener, by the names that SaslHandshake has."""


class Authentication:
    """How far one connection has authenticated."""

    __slots__ = ("_exchange", "_mechanisms", "is_complete", "is_required", "session")

    def __init__(
        self,
        listener: str,
        host: str,
        mechanisms: Mechanisms | None = None,
        *,
        is_required: bool = False,
        principal: str = ANONYMOUS,
    ) -> None:
        """`principal` is that of the client's certificate, for listeners without SASL."""
        self._mechanisms = mechanisms or {}
        self._exchange: Exchange | None = None
        self.session = ClientSession(principal, None, listener, host)
        self.is_required = is_required
        self.is_complete = not is_required
        """Whether the client may send any request."""

    def begin(self, mechanism: str) -> list[str]:
        """Begin an exchange; returns the mechanisms of the listener. Raises ApiError if this one is not among them."""
        authenticator = self._mechanisms.get(mechanism)
        if authenticator is None:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if self.is_required else ErrorCode.ILLEGAL_SASL_STATE
            raise ApiError(code)
        self._exchange = authenticator.begin()
        return list(self._mechanisms)

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms to name in a refusal: none if clients need not authenticate."""
        return list(self._mechanisms) if self.is_required else []

    async def step(self, auth_bytes: Bytes) -> bytes:
        """The response to a SaslAuthenticate. Raises ApiError, after which a new exchange may begin."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            raise ApiError(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        answer, identity = await exchange.step(auth_bytes)
        if identity is None:
            self._exchange = exchange
        else:
            self.session = ClientSession(
                identity.principal,
                identity.peer_broker,
                self.session.listener,
                self.session.host,
                identity.expires_at,
            )
            self.is_complete = True
        return answer
