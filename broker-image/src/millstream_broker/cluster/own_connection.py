"""A controller's connection to its own broker, which calls the handlers directly."""

from __future__ import annotations

import logging
from typing import Any

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.api import Api, Req, Res
from millstream_kafka.protocol.errors import ApiError

from ..network.handlers import Handlers, RequestContext, answered, error_response
from ..security.authentication import Authentication
from ..security.session import ClientSession, PeerBroker

log = logging.getLogger(__name__)

CONNECTION_ID = 0
"""The server counts its connections from 1 on."""


class OwnConnection:
    """`Caller` to this broker, in the incarnation of that epoch."""

    host, port = "this broker", -1
    is_closed = False

    def __init__(self, handlers: Handlers, listener_name: str, broker_id: int, epoch: int) -> None:
        self._handlers = handlers
        peer = PeerBroker(broker_id, epoch)
        self._session = ClientSession(peer.principal, peer, listener_name, self.host)
        self._authentication = Authentication(listener_name, self.host)

    async def call(self, api: Api[Req, Res], version: int, request: Req) -> Res:
        context = RequestContext(version, "controller", self._session, self._authentication, CONNECTION_ID)
        try:
            response: Any = await answered(self._handlers[api.key].handle(context, request))
        except ApiError as error:
            return error_response(api, error)
        except Exception:  # over a network it would end a connection, and the controller would retry
            log.exception("%s version %d failed", api.name, version)
            raise BrokerError(self.host, self.port, f"{api.name} failed in the broker") from None
        found: Res = response
        return found

    async def close(self) -> None:
        pass
