"""Requests to single brokers of a cluster, with its settings of TLS and SASL, by the client of millstream_kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from ssl import SSLContext
from typing import Any, Final, TypeVar

from millstream import sasl, tls
from millstream.addresses import host_port
from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.errors import Failed
from millstream_kafka.client import (
    MECHANISMS,
    BrokerError,
    Connection,
    MalformedResponse,
    SecurityFailed,
    UnsupportedApi,
)
from millstream_kafka.client.sasl import Login
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.schema import Struct

MAX_RESPONSE_BYTES: Final = 256 << 20
Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)
T = TypeVar("T")


class Brokers:
    """The brokers of ``addresses``; a connection to each is opened on first use."""

    def __init__(self, addresses: Mapping[int, tuple[str, int]], config: Mapping[str, Any]) -> None:
        """``config`` has librdkafka's settings."""
        self.addresses = addresses
        self._config = config
        self._connections: dict[int, Connection] = {}

    async def call(
        self,
        broker: int,
        api: Api[Req, Res],
        request: Req,
        *,
        since: int = 0,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Res:
        """Send a request, in version ``since`` or a newer one. Failed names the broker; UnsupportedApi."""
        if (address := self.addresses.get(broker)) is None:
            raise Failed(f"broker {broker} is not running", "start it, and try again")
        where = f"broker {broker} at {host_port(*address)}"
        try:
            connection = await self._connection(broker, address)
            if (version := connection.version(api)) < since:
                raise UnsupportedApi(*address, f"the broker does not serve {api.name} in version {since}")
            return await connection.call(api, version, request, timeout=timeout_s)
        except UnsupportedApi:
            raise
        except MalformedResponse:
            raise Failed(
                f"the answer of {where} cannot be read", "use the version of millstream that it has"
            ) from None
        except SecurityFailed as error:
            raise Failed(
                f"{where} cannot be used ({error.problem})", "see what millstream doctor says"
            ) from None
        except (OSError, ValueError) as error:
            why = error.problem if isinstance(error, BrokerError) else error
            raise Failed(f"{where} does not answer ({why})", "see what millstream doctor says") from None

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()

    async def _connection(self, broker: int, address: tuple[str, int]) -> Connection:
        found = self._connections.get(broker)
        if found is None or found.is_closed:
            context, login = await asyncio.to_thread(_credentials, self._config)
            found = self._connections[broker] = await Connection.open(
                *address,
                timeout=REQUEST_TIMEOUT_S,
                max_response_bytes=MAX_RESPONSE_BYTES,
                ssl=context,
                login=login,
            )
        return found


def run(cluster: Cluster, work: Callable[[Brokers], Coroutine[Any, Any, T]]) -> T:
    """Let ``work`` send requests to the brokers of a cluster. Unreachable, and what it raises."""
    return run_at(
        {broker.id: (broker.host, broker.port) for broker in cluster.first_metadata.brokers.values()},
        cluster.config,
        work,
    )


def run_at(
    addresses: Mapping[int, tuple[str, int]],
    config: Mapping[str, Any],
    work: Callable[[Brokers], Coroutine[Any, Any, T]],
) -> T:
    """The same for brokers at these addresses, by their ids."""

    async def session() -> T:
        brokers = Brokers(addresses, config)
        try:
            return await work(brokers)
        finally:
            await brokers.close()

    return asyncio.run(session())


def _credentials(config: Mapping[str, Any]) -> tuple[SSLContext | None, Login | None]:
    """From librdkafka's settings. OSError or ValueError."""
    context = tls.context(config) if tls.is_used(config) else None
    if not sasl.is_used(config):
        return context, None
    mechanism = sasl.mechanism(config).upper()
    if mechanism not in MECHANISMS:
        allowed = ", ".join(MECHANISMS)
        raise ValueError(f"this command cannot log in with sasl.mechanism={mechanism}, only with {allowed}")
    return context, Login(
        mechanism, *(str(config.get(f"sasl.{key}", "")) for key in ("username", "password"))
    )
