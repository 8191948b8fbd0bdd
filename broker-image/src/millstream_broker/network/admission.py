"""What one client may send, by the state of its authentication, and how long it may take to authenticate."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ..security.authentication import Authentication
from .handlers import CloseConnection
from .routes import OF_LOGIN
from .shared import AUTHENTICATION_S, MAX_UNAUTHENTICATED_BYTES, SMALL_BYTES, Shared


class Close(Protocol):
    """Closes a connection."""

    def __call__(self, reason: str, level: int) -> None: ...


class Admission:
    """That of one connection: `access` follows from its authentication."""

    __slots__ = ("_held", "_server", "_timer", "access", "authentication")

    def __init__(self, server: Shared, authentication: Authentication) -> None:
        self._server = server
        self.authentication = authentication
        self.access = server.before_authentication if authentication.is_required else server.full
        self._timer: asyncio.TimerHandle | None = None
        """Before authentication: its time limit; afterwards: the end of the session, if it has one."""
        self._held = 0
        """Bytes that count before authentication."""

    def begin(self, close: Close) -> None:
        """Start the time limit of authentication, if it is required."""
        if self.authentication.is_required:
            self._limit(close)

    def update(self, close: Close) -> None:
        """Follow the authentication, after a response of `login`."""
        server, authentication = self._server, self.authentication
        access = server.authenticated if authentication.is_complete else server.before_authentication
        if access is self.access and self._timer is not None:  # without a timer: after the end of a session
            return
        self.access = access
        self._cancel()
        if not authentication.is_complete:
            self._limit(close)
        elif (expires_at := authentication.session.expires_at) is not None:
            self._timer = server.loop.call_at(expires_at, self._expire)

    def is_of_login(self, frame: memoryview) -> bool:
        """Whether `login` handles a frame that has no route."""
        authentication = self.authentication
        if not authentication.is_required:
            return False
        if not authentication.is_complete or authentication.is_expired:
            return True
        return int.from_bytes(frame[:2], "big") in OF_LOGIN

    def hold(self, size: int) -> None:
        """Count an incomplete request of a client that has not authenticated. Raises CloseConnection."""
        if size > SMALL_BYTES and not self.authentication.is_complete:
            if self._server.unauthenticated_bytes + size > MAX_UNAUTHENTICATED_BYTES:
                raise CloseConnection("too many large requests before authentication")
            self._held = size
            self._server.unauthenticated_bytes += size

    def release(self) -> None:
        """The request is complete, or never will be."""
        self._server.unauthenticated_bytes -= self._held
        self._held = 0

    def end(self) -> None:
        """The connection is closed."""
        self.release()
        self._cancel()

    def _limit(self, close: Close) -> None:
        reason = f"not authenticated within {AUTHENTICATION_S:g} s"
        self._timer = self._server.loop.call_later(AUTHENTICATION_S, close, reason, logging.INFO)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """From now on, `login` handles each frame."""
        self._timer = None
        self.access = self._server.before_authentication
