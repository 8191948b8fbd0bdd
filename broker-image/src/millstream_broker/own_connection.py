"""How a controller reaches brokers: by a connection, or, where the broker is its own, by the handlers themselves."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .api import HANDLERS, RequestContext, error_response
from .client.errors import BrokerError
from .coordination import BrokerRecord
from .inter_broker import Authenticator, Peer
from .protocol.api import Api
from .protocol.errors import ApiError
from .protocol.schema import Struct

if TYPE_CHECKING:
    from .broker import Broker

log = logging.getLogger(__name__)

Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)


class Caller(Protocol):
    """What is used of a connection (`client.connection`)."""

    host: str
    port: int

    @property
    def is_closed(self) -> bool: ...

    async def call(self, api: Api[Req, Res], version: int, request: Req) -> Res:
        """Raises BrokerError."""
        ...

    async def close(self) -> None: ...


class Reach(Protocol):
    async def __call__(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        """Raises BrokerError."""
        ...


class OwnConnection:
    """`Caller` to this broker, in the incarnation of that epoch."""

    host, port = "this broker", -1
    is_closed = False

    def __init__(self, broker: Broker, epoch: int) -> None:
        self._broker = broker
        self._authenticator = Authenticator()
        self._authenticator.peer = Peer(broker.broker_id, epoch)

    async def call(self, api: Api[Req, Res], version: int, request: Req) -> Res:
        context = RequestContext(
            version,
            "controller",
            self.host,
            self._broker.inter_broker_listener,
            self._authenticator,
        )
        try:
            answer: Any = HANDLERS[api.key].handle(self._broker, context, request)
            response: Res = await answer if inspect.isawaitable(answer) else answer
        except ApiError as error:
            return error_response(api, error)
        except Exception:  # a connection would end by it: then a controller asks again
            log.exception("%s version %d failed", api.name, version)
            raise BrokerError(self.host, self.port, f"{api.name} failed in the broker") from None
        return response

    async def close(self) -> None:
        pass
