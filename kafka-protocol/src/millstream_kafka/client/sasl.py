"""SASL on a connection (KIP-43, KIP-152): the client authenticates before it sends anything else.

Each mechanism is a generator: it yields the client's messages and receives the server's. Errors name no user and no
password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..protocol import sasl_authenticate, sasl_handshake
from ..protocol.errors import ErrorCode
from ..protocol.sasl_authenticate import SaslAuthenticateRequest
from ..protocol.sasl_handshake import SaslHandshakeRequest
from ..scram_mechanism import ScramMechanism
from .errors import AuthenticationFailed, one_line
from .scram import ScramClient, ScramError

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *(mechanism.label for mechanism in ScramMechanism))
"""Mechanisms of a user name and a password."""
OAUTHBEARER = "OAUTHBEARER"
"""The mechanism of a token (KIP-255)."""
HANDSHAKE_VERSION = 1
"""From this version on, messages travel in SaslAuthenticate requests."""
MIN_SESSION_MS = 10_000
"""With shorter sessions, clients would do little but connect and log in."""

Exchange = Generator[bytes, bytes, None]


class SaslConnection(Protocol):
    """The part of a connection that this module needs."""

    host: str
    port: int

    async def call(self, api: Any, version: int | None, request: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Login:
    """``password`` is the token of OAUTHBEARER, which has no user name."""

    mechanism: str
    username: str = field(repr=False)
    password: str = field(repr=False)

    def exchange(self) -> Exchange:
        if self.mechanism == OAUTHBEARER:
            return self._bearer()
        return self._plain() if self.mechanism == PLAIN else self._scram()

    @property
    def credential(self) -> str:
        """What a broker refuses, in words."""
        return "the token" if self.mechanism == OAUTHBEARER else "user name or password"

    def _bearer(self) -> Exchange:
        """RFC 7628: a server that refuses the token first says why, and closes after an empty answer."""
        problem = yield f"n,,\x01auth=Bearer {self.password}\x01\x01".encode()
        if problem:
            yield b"\x01"
            raise ScramError(f"it refused the token: {one_line(problem.decode(errors='replace'))}")

    def _plain(self) -> Exchange:
        """RFC 4616."""
        yield f"\0{self.username}\0{self.password}".encode()

    def _scram(self) -> Exchange:
        scram = ScramClient(self.mechanism, self.username, self.password)
        server = yield scram.first()
        server = yield scram.final(server)
        scram.verify(server)


async def authenticate(connection: SaslConnection, login: Login) -> float | None:
    """Log in; returns the seconds until the broker ends the session (KIP-368), None if it does not.

    Raises AuthenticationFailed, BrokerError.
    """

    def refused(why: str) -> AuthenticationFailed:
        return AuthenticationFailed(connection.host, connection.port, f"{login.mechanism}: {why}")

    shaken = await connection.call(
        sasl_handshake.API, HANDSHAKE_VERSION, SaslHandshakeRequest(login.mechanism)
    )
    if shaken.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        there = one_line(", ".join(shaken.mechanisms[:10])) or "none"
        raise refused(f"the broker does not serve this mechanism: it serves {there}")
    if shaken.error_code:
        raise refused(
            f"SaslHandshake was answered with {ErrorCode.of(shaken.error_code).name}: this listener needs no SASL"
        )
    exchange = login.exchange()
    message = next(exchange)
    while True:
        answer = await connection.call(sasl_authenticate.API, None, SaslAuthenticateRequest(message))
        if answer.error_code:
            why = answer.error_message or ErrorCode.of(answer.error_code).name
            raise refused(f"the broker refused {login.credential}: {one_line(why)}")
        try:
            message = await asyncio.to_thread(_step, exchange, bytes(answer.auth_bytes))
        except ScramError as error:
            raise refused(f"the broker's answer was refused: {error}") from None
        if not message:
            lifetime_ms = answer.session_lifetime_ms
            if 0 < lifetime_ms < MIN_SESSION_MS:
                or_token = ", or get a token that lasts longer" if login.mechanism == OAUTHBEARER else ""
                raise refused(
                    f"the broker ends sessions after {lifetime_ms} ms, which takes a new login each time: raise"
                    f" connections.max.reauth.ms there to {MIN_SESSION_MS} or more{or_token}"
                )
            return lifetime_ms / 1000 if lifetime_ms > 0 else None


def _step(exchange: Exchange, server: bytes) -> bytes:
    """The client's next message; empty at the end."""
    try:
        return exchange.send(server)
    except StopIteration:
        return b""
