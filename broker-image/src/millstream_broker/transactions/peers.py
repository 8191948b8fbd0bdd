"""Connections to the brokers of this cluster, kept open between calls; calls to this broker need none.

A connection belongs to a registration of a broker: after a restart it has another epoch, and gets a new one.
"""

from __future__ import annotations

import asyncio

from millstream_kafka.protocol.api import Api, Req, Res

from ..controller.reach import Caller, Reach
from ..coordination import BrokerRecord

CONNECT_S = 5.0


class Peers:
    """All calls are made on the loop."""

    def __init__(self, reach: Reach, client_id: str) -> None:
        self._reach = reach
        self._client_id = client_id
        self._open: dict[int, tuple[int, Caller]] = {}
        """By broker: its epoch, and the connection."""
        self._connecting: dict[int, asyncio.Lock] = {}

    async def call(self, broker: BrokerRecord, api: Api[Req, Res], version: int, request: Req) -> Res:
        """Raises BrokerError."""
        connection = await self._connection(broker)
        return await connection.call(api, version, request)

    async def _connection(self, broker: BrokerRecord) -> Caller:
        async with self._connecting.setdefault(broker.broker_id, asyncio.Lock()):
            epoch, connection = self._open.get(broker.broker_id, (broker.epoch, None))
            if connection is not None:
                if epoch == broker.epoch and not connection.is_closed:
                    return connection
                del self._open[broker.broker_id]
                await connection.close()
            connection = await self._reach(broker, self._client_id, timeout_s=CONNECT_S)
            self._open[broker.broker_id] = broker.epoch, connection
            return connection

    async def close(self) -> None:
        opened, self._open = self._open, {}
        for _, connection in opened.values():
            await connection.close()
