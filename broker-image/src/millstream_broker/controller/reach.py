"""A controller's connections to brokers."""

from __future__ import annotations

from typing import Protocol

from millstream_kafka.protocol.api import Api, Req, Res

from ..coordination import BrokerRecord


class Caller(Protocol):
    """The part of a connection that the controller uses (`client.connection`)."""

    host: str
    port: int

    @property
    def is_closed(self) -> bool: ...

    async def call(self, api: Api[Req, Res], version: int, request: Req) -> Res:
        """Raises BrokerError."""

    async def close(self) -> None: ...


class Reach(Protocol):
    async def __call__(self, broker: BrokerRecord, client_id: str, *, timeout_s: float) -> Caller:
        """Raises BrokerError."""
