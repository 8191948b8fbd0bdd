"""Requests that are being handled: a connection keeps them in order, and so their responses."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.schema import Struct

from .charge import Charge
from .fetch_shortcut import KnownFetch
from .handlers import CloseConnection, error_response
from .large_requests import Parts
from .login import LoginReply
from .produce_shortcut import Known as KnownProduce
from .routes import Route

Known = KnownProduce | KnownFetch
"""An earlier request like this one."""


class Pending:
    """A request that is being handled, in the order of its connection."""

    __slots__ = ("charge", "correlation_id", "is_alone", "known", "response", "route", "started")

    def __init__(
        self,
        route: Route,
        correlation_id: int,
        started: float,
        response: asyncio.Future[Any],
        known: Known | None = None,
        charge: Charge | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self.route = route
        self.correlation_id = correlation_id
        self.started = started
        self.response = response
        """Resolves to the response, its encoded parts, or a `login.LoginReply`; None if there is no response."""
        self.known = known
        self.charge = charge
        self.is_alone = is_alone
        """Whether no other request may follow while this one waits."""

    def outcome(self) -> Struct | Parts | LoginReply | None:
        """The result, once `response` is done. Raises CloseConnection, or the handler's error."""
        try:
            answer: Struct | Parts | LoginReply | None = self.response.result()
            return answer
        except ApiError as error:
            error.__traceback__ = None  # its frames hold the request, and this object
            failed: Struct = error_response(self.route.registration.api, error)
            return failed
        except asyncio.CancelledError:
            raise CloseConnection from None
