"""Forwards requests to the controller: directly if this broker is the controller, otherwise over the network.

A forwarded request is not forwarded again: a broker that is not the controller responds with NOT_CONTROLLER, and the
client retries.
"""

from __future__ import annotations

from typing import Any

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.api import Api, Res
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..network.handlers import RequestContext
from ..replication.replicas import Replicas
from ..security.mechanisms.inter_broker import InterBroker

FORWARDED = "millstream-forwarded-by-"
"""Prefix of the client id of a forwarded request."""
CONNECT_S = 5.0


class Forwarding:
    """Forwards one broker's requests."""

    def __init__(self, replicas: Replicas, peers: InterBroker) -> None:
        self._replicas = replicas
        self._peers = peers

    async def forward(
        self, context: RequestContext, api: Api[Any, Res], request: Any, timeout_s: float
    ) -> Res:
        """The controller's response; raises ApiError NOT_CONTROLLER if no controller can be reached."""
        if (context.client_id or "").startswith(FORWARDED):
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return await self.ask_controller(api, context.version, request, timeout_s)

    async def ask_controller(self, api: Api[Any, Res], version: int, request: Any, timeout_s: float) -> Res:
        """The same, for a request that this broker itself makes."""
        metadata, broker_id = self._replicas.metadata, self._replicas.broker_id
        controller = metadata.brokers.get(metadata.controller_id)
        if controller is None or controller.broker_id == broker_id:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "no controller is known at the moment")
        try:
            connection = await self._peers.connect(controller, f"{FORWARDED}{broker_id}", timeout_s=CONNECT_S)
            try:
                return await connection.call(api, version, request, timeout=timeout_s)
            finally:
                await connection.close()
        except BrokerError as error:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"the controller cannot be reached: {error}") from None
