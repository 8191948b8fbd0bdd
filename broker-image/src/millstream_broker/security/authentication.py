"""How clients authenticate by SASL (KIP-43, KIP-152, KIP-368): mechanisms, and the state of a connection.

A listener has a table of mechanisms. `SaslHandshake` chooses one, and begins an exchange with it; each
`SaslAuthenticate` is one step of the exchange, until it returns an identity. Then the connection has a session of that
identity (`session`). A failed exchange leaves the session as it was.

On a listener that requires authentication, `network.login` handles the frames of a client until then, in the order of
these states:

    INITIAL        nothing received: a frame that is no request is a token of a mechanism that is not served
    VERSIONS       ApiVersions in a version that is not served, or a refused one: ApiVersions or SaslHandshake follows
    HANDSHAKE      ApiVersions was answered: SaslHandshake follows
    EXCHANGE       tokens, in SaslAuthenticate requests, or bare after version 0 of SaslHandshake (`is_bare`)
    WRONG          another mechanism than before was chosen to authenticate again: the next frame fails
    COMPLETE       any request

A session may expire. From then on, only a SaslHandshake is accepted: authenticating again, as the same principal by
the same mechanism, begins another session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Bytes

from .brake import Brake, brake_key
from .session import ANONYMOUS, ClientSession, PeerBroker

LEAST_BETWEEN_S = 1.0
"""A client may authenticate again once a second, as in Kafka."""


AFTER_THE_END = "SaslAuthenticate request received after successful authentication"
"""Kafka's words."""


class Identity(NamedTuple):
    """The result of an exchange."""

    principal: str
    peer_broker: PeerBroker | None = None
    expires_at: float | None = None
    """Time of the loop at which the credential ends."""


class Step(NamedTuple):
    """The response to one message of the client; the exchange ends with the one that has an identity."""

    auth_bytes: bytes
    identity: Identity | None = None
    problem: str = ""
    """Why the client is refused, which the response tells it: the next step fails."""


class Answer(NamedTuple):
    """The response to one message, and how long the session lives (0: for ever, or not yet authenticated)."""

    auth_bytes: bytes
    lifetime_ms: int = 0


class Exchange(Protocol):
    """One run of a mechanism. A failure ends it."""

    def guesses(self, auth_bytes: Bytes) -> str:
        """The user whose password this message may guess; empty if it does not."""

    async def step(self, auth_bytes: Bytes) -> Step:
        """Raises ApiError, with a message that is sent to the client. May wait, for a thread or another server."""


class Authenticator(Protocol):
    """One mechanism, for all connections."""

    def begin(self) -> Exchange: ...


Mechanisms = Mapping[str, Authenticator]
"""The mechanisms of a listener, by the names that SaslHandshake has."""


class Logins(Protocol):
    """Records how clients authenticate. `mechanism` is one of the listener's, or empty."""

    def logged_in(self, session: ClientSession, mechanism: str) -> None: ...

    def login_failed(
        self, session: ClientSession, mechanism: str, reason: str, user: str, detail: str
    ) -> None: ...

    def login_delayed(self) -> None: ...


class _Unrecorded:
    def logged_in(self, session: ClientSession, mechanism: str) -> None: ...

    def login_failed(
        self, session: ClientSession, mechanism: str, reason: str, user: str, detail: str
    ) -> None: ...

    def login_delayed(self) -> None: ...


CREDENTIALS, TOO_MANY_FAILURES = "credentials", "too_many_failures"
UNKNOWN_MECHANISM, PROTOCOL, CHANGED = "mechanism", "protocol", "changed"
REASONS = (CREDENTIALS, TOO_MANY_FAILURES, UNKNOWN_MECHANISM, PROTOCOL, CHANGED)
"""Why a login failed: `changed`: another principal or mechanism than that of the session which it replaces."""


class LoginState(Enum):
    INITIAL = auto()
    VERSIONS = auto()
    HANDSHAKE = auto()
    EXCHANGE = auto()
    WRONG = auto()
    COMPLETE = auto()


class Authentication:
    """How far one connection has authenticated."""

    __slots__ = (
        "_again_at",
        "_brake",
        "_exchange",
        "_logins",
        "_max_reauth_ms",
        "_mechanism",
        "_mechanisms",
        "_previous",
        "is_bare",
        "is_required",
        "refusal",
        "session",
        "state",
    )

    def __init__(
        self,
        listener: str,
        host: str,
        mechanisms: Mechanisms | None = None,
        *,
        is_required: bool = False,
        principal: str = ANONYMOUS,
        max_reauth_ms: Callable[[str], int] = lambda mechanism: 0,
        brake: Brake | None = None,
        logins: Logins | None = None,
    ) -> None:
        """`principal` is that of the client's certificate, for listeners without SASL.

        `max_reauth_ms` is the life of a session by its mechanism; 0: no limit.
        """
        self._mechanisms = {} if mechanisms is None else mechanisms
        self._max_reauth_ms = max_reauth_ms
        self._brake = brake or Brake()
        self._logins: Logins = logins or _Unrecorded()
        self._exchange: Exchange | None = None
        self._mechanism = ""
        """The mechanism of the present exchange or session."""
        self._previous: str | None = None
        """The mechanism of the session that is being replaced."""
        self.refusal = ""
        """Why this exchange fails, once that is recorded: with more detail than the client gets."""
        self._again_at = 0.0
        self.session = ClientSession(principal, None, listener, host)
        self.is_required = is_required
        self.state = LoginState.INITIAL if is_required else LoginState.COMPLETE
        self.is_bare = False
        """Whether the client's next frames are tokens without a request around them."""

    @property
    def is_complete(self) -> bool:
        """Whether the client may send any request, unless its session has expired."""
        return self.state is LoginState.COMPLETE

    @property
    def mechanism(self) -> str:
        """That of the present exchange or session, one of the listener's; empty before any."""
        return self._mechanism

    @property
    def is_expired(self) -> bool:
        expires_at = self.session.expires_at
        return expires_at is not None and asyncio.get_running_loop().time() >= expires_at

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms to name in a refusal: none if clients need not authenticate."""
        return list(self._mechanisms) if self.is_required else []

    def identify(self, client_id: str | None) -> ClientSession:
        """The session, of a client with this id."""
        if self.session.client_id != client_id:
            self.session = self.session._replace(client_id=client_id)
        return self.session

    def refused(self, reason: str, detail: str, user: str = "") -> None:
        """The client failed to authenticate."""
        self._logins.login_failed(self.session, self._mechanism, reason, user, detail)

    def may_begin_again(self) -> bool:
        """Whether a SaslHandshake begins to replace the session. Call it once for each."""
        now = asyncio.get_running_loop().time()
        if self.session.expires_at is None or now < self._again_at:
            return False
        self._again_at = now + LEAST_BETWEEN_S
        return True

    def begin(self, mechanism: str, *, is_bare: bool = False) -> list[str]:
        """Begin an exchange; returns the mechanisms of the listener. Raises ApiError if this one is not among them."""
        authenticator = self._mechanisms.get(mechanism)
        if authenticator is None:
            self._logins.login_failed(
                self.session, "", UNKNOWN_MECHANISM, "", f"mechanism {mechanism[:50]!r} is not enabled"
            )
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM if self.is_required else ErrorCode.ILLEGAL_SASL_STATE
            raise ApiError(code)
        if self.is_required:
            if self.is_complete:
                self._previous = self._mechanism
            self.is_bare = is_bare
            self.state = LoginState.EXCHANGE
            if self._previous not in (None, mechanism):
                self.state = LoginState.WRONG
                self.refused(CHANGED, f"a session of {self._previous} cannot go on by {mechanism}")
                return list(self._mechanisms)
        self._mechanism = mechanism
        self.refusal = ""
        self._exchange = authenticator.begin()
        return list(self._mechanisms)

    async def step(self, auth_bytes: Bytes) -> Answer:
        """The response to one token. Raises ApiError, after which a new exchange may begin."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            self.refused(PROTOCOL, "SaslAuthenticate without SaslHandshake")
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, AFTER_THE_END)
        answer, identity, _ = await self._verified(exchange, auth_bytes)
        if identity is None:
            self._exchange = exchange
            return Answer(answer)
        if self._previous is not None and identity.principal != self.session.principal:
            before, after = (
                name.replace(":", ".", 1) for name in (self.session.principal, identity.principal)
            )
            problem = f"Cannot change principals during re-authentication from {before}: {after}"
            self.refused(CHANGED, problem)
            raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, problem)
        lifetime_ms, expires_at = self._lifetime(identity)
        self.session = ClientSession(
            identity.principal,
            identity.peer_broker,
            self.session.listener,
            self.session.host,
            expires_at,
            self.session.client_id,
        )
        self.state = LoginState.COMPLETE
        self.is_bare = False
        self._logins.logged_in(self.session, self._mechanism)
        return Answer(answer, lifetime_ms)

    async def _verified(self, exchange: Exchange, auth_bytes: Bytes) -> Step:
        """One step of the exchange; guesses of a password wait for their turn."""
        user = exchange.guesses(auth_bytes)
        if not user:
            try:
                step = await exchange.step(auth_bytes)
            except ApiError as error:
                if not self.refusal:
                    self.refused(CREDENTIALS, error.message)
                raise
            if step.problem:
                self.refusal = step.problem
                self.refused(CREDENTIALS, step.problem)
            return step
        key, loop = brake_key(self.session.host, user), asyncio.get_running_loop()
        wait_s = self._brake.wait_s(key, loop.time())
        if wait_s is None:
            self.refused(TOO_MANY_FAILURES, "not verified, after too many failures", user)
            raise ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: too many failures")
        if wait_s:
            self._logins.login_delayed()
            await asyncio.sleep(wait_s)
        try:
            step = await exchange.step(auth_bytes)
        except ApiError as error:
            self._brake.failed(key, loop.time())
            self.refused(CREDENTIALS, error.message, user)
            raise
        self._brake.succeeded(key)
        return step

    def _lifetime(self, identity: Identity) -> tuple[int, float | None]:
        """In milliseconds, and when it ends. Brokers need not authenticate again."""
        if identity.peer_broker is not None:
            return 0, None
        now = asyncio.get_running_loop().time()
        limit = self._max_reauth_ms(self._mechanism)
        lifetimes = [limit] if limit > 0 else []
        if identity.expires_at is not None:
            lifetimes.append(max(0, int((identity.expires_at - now) * 1000)))
        if not lifetimes:
            return 0, None
        return min(lifetimes), now + min(lifetimes) / 1000


def loop_time(epoch_s: float) -> float:
    """The loop's time of a time since the epoch."""
    return asyncio.get_running_loop().time() + epoch_s - time.time()
