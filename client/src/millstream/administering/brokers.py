"""Requests to single brokers of a cluster, with its settings of TLS and SASL, by the client of millstream_kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Final, TypeVar

from millstream import sasl, tls
from millstream.addresses import host_port
from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.errors import Failed
from millstream_kafka.client import (
    MECHANISMS,
    BrokerError,
    ClusterClient,
    CredentialsMissing,
    MalformedResponse,
    SecurityFailed,
    UnsupportedApi,
)
from millstream_kafka.client.sasl import Login
from millstream_kafka.client.security import CredentialsError
from millstream_kafka.protocol.api import Api, Req, Res

MAX_RESPONSE_BYTES: Final = 256 << 20
T = TypeVar("T")


async def call(
    client: ClusterClient,
    broker: int,
    api: Api[Req, Res],
    request: Req,
    *,
    since: int = 0,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Res:
    """Send a request, in version ``since`` or a newer one. Failed names the broker; UnsupportedApi."""
    if (address := client.brokers.get(broker)) is None:
        raise Failed(f"broker {broker} is not running", "start it, and try again")
    name = f"broker {broker} at {host_port(*address)}"
    try:
        if (await client.connection(broker)).version(api) < since:
            raise UnsupportedApi(*address, f"the broker does not serve {api.name} in version {since}")
        return await client.call_node(broker, api, request, timeout=timeout_s)
    except UnsupportedApi:
        raise
    except MalformedResponse:
        raise Failed(
            f"the answer of {name} cannot be read", "use the version of millstream that it has"
        ) from None
    except BrokerError as error:
        is_refused = isinstance(error, SecurityFailed) and not isinstance(error, CredentialsMissing)
        outcome = "cannot be used" if is_refused else "does not answer"
        raise Failed(f"{name} {outcome} ({error.problem})", "see what millstream doctor says") from None


def run(cluster: Cluster, work: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
    """Let ``work`` send requests to the brokers of a cluster. Unreachable, and what it raises."""
    return run_at(
        {broker.id: (broker.host, broker.port) for broker in cluster.first_metadata.brokers.values()},
        cluster.config,
        work,
    )


def run_at(
    addresses: Mapping[int, tuple[str, int]],
    config: Mapping[str, Any],
    work: Callable[[ClusterClient], Coroutine[Any, Any, T]],
) -> T:
    """The same for brokers at these addresses, by their ids. ``config`` has librdkafka's settings."""

    async def session() -> T:
        async with ClusterClient(
            addresses,
            timeout=REQUEST_TIMEOUT_S,
            connect_timeout=REQUEST_TIMEOUT_S,
            retry_timeout=0,
            max_response_bytes=MAX_RESPONSE_BYTES,
            security=_Settings(config),
        ) as client:
            return await work(client)

    return asyncio.run(session())


@dataclass(frozen=True, slots=True)
class _Settings:
    """The credentials that librdkafka's settings name."""

    config: Mapping[str, Any]

    def load(self) -> tuple[SSLContext | None, Login | None]:
        config = self.config
        try:
            context = tls.context(config) if tls.is_used(config) else None
        except (OSError, ValueError) as error:
            raise CredentialsError(str(error)) from None
        if not sasl.is_used(config):
            return context, None
        mechanism = sasl.mechanism(config).upper()
        if mechanism not in MECHANISMS:
            raise CredentialsError(
                f"this command cannot log in with sasl.mechanism={mechanism}, only with {', '.join(MECHANISMS)}"
            )
        username, password = (str(config.get(f"sasl.{key}", "")) for key in ("username", "password"))
        return context, Login(mechanism, username, password)
