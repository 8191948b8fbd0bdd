"""One connection to a cluster's brokers, by kafka-python's admin client: opened on demand, dropped on failure.

Calls block, with explicit timeouts, and are thread-safe. If a whole call fails, it raises ``AdminError`` and drops the
client, and the next call reconnects. For a moment after a failure to connect, further calls fail at once instead of
each waiting for its own timeout.

Each request that may change something first calls the fence, which raises if this process may not write (see
manager/leadership.py). The fence is where kafka-python hands requests to connections, so no request bypasses it. A
request handed over earlier is still sent, and a broker carries it out.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import (
    BrokerResponseError,
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    ListGroupsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from ..models import addresses
from .records import AdminError, NotSupported

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 15.0
# After a failure to connect, further calls fail at once for this long; longer if the failure itself took long, so an
# address that does not respond takes only a fraction of the time.
RETRY_AFTER_S, RETRY_FACTOR, RETRY_LIMIT_S = 2.0, 5.0, 30.0

# All other requests count as writes.
READS = frozenset(
    request.API_KEY
    for request in (
        ApiVersionsRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeLogDirsRequest,
        FindCoordinatorRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        ListPartitionReassignmentsRequest,
        MetadataRequest,
        OffsetFetchRequest,
        OffsetForLeaderEpochRequest,
    )
)

NOWHERE = "127.0.0.1:0"
"""The address of a cluster none of whose brokers runs on this machine."""
Result = TypeVar("Result")
Fence = Callable[[], None]


def no_fence() -> None:
    """The fence of a process that acts alone."""


class _TidySocket(KafkaNetSocket):  # type: ignore[misc]
    """kafka-python's own way to connect, except that a socket which does not connect is closed."""

    SCHEMES = ("millstream",)  # kafka-python picks the class by the scheme of proxy_url

    async def connect(
        self, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None
    ) -> socket.socket:
        family, kind, protocol, _, address = addrinfo
        sock: socket.socket = self.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in socket_options:
                sock.setsockopt(*option)
            await self.sock_connect(net, sock, address, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
        return sock


class _FencedManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's own way to send requests, behind the fence."""

    def __init__(self, net: NetworkSelector, fence: Fence, **config: Any) -> None:
        super().__init__(net, **config)
        self._fence = fence
        self.writes = 0
        self._sockets: list[socket.socket] = []

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        self._sockets = [one for one in self._sockets if one.fileno() >= 0] + [transport._sock]
        return transport

    def close_sockets(self) -> None:
        """After the loop has ended: kafka-python leaves open those that still had bytes to send."""
        for one in self._sockets:
            one.close()

    def send(self, request: Any, node_id: Any = None, request_timeout_ms: int | None = None) -> Any:
        if request.API_KEY not in READS:
            self._fence()
            self.writes += 1
        return super().send(request, node_id, request_timeout_ms)


class KafkaConnection:
    """The brokers at one bootstrap address."""

    def __init__(
        self, bootstrap: str, client_id: str = "millstream-operator", fence: Fence = no_fence
    ) -> None:
        self.bootstrap = bootstrap
        self._fence = fence
        self._client_id = client_id
        self._lock, self._pauses = threading.Lock(), threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._closed = False
        self._failed_until = 0.0
        self._failure = ""
        self._retried_at = -math.inf

    def close(self) -> None:
        """Close for good: later calls raise AdminError."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            _close(client)

    def retry(self) -> None:
        """Let the next call connect again: a broker has just become ready.

        Attempts that have begun count no more, and for a while all pauses are short: Kubernetes may need a moment to
        route connections to the broker.
        """
        with self._pauses:
            self._failed_until, self._retried_at = 0.0, time.monotonic()

    def call(self, operation: Callable[[KafkaAdminClient], Result]) -> Result:
        for wait in (0.2, 0.5, None):
            known, client = self._client, self._connected()
            begun, writes = time.monotonic(), client._manager.writes
            try:
                return operation(client)
            except IncompatibleBrokerVersion as error:
                raise NotSupported(
                    f"the brokers at {self.bootstrap} do not know a request: {error}"
                ) from error
            except (KafkaError, OSError) as error:
                self._drop(client)  # its leaders and coordinators may be stale
                answered = isinstance(error, BrokerResponseError)
                if answered and isinstance(error, RetriableError) and wait is not None:
                    time.sleep(wait)
                    continue
                # Its brokers may have moved since it connected. A request that may have changed something is not
                # repeated.
                is_lost = client is known and not answered and not isinstance(error, KafkaTimeoutError)
                is_soon = time.monotonic() - begun < CONNECT_TIMEOUT_S
                if is_lost and is_soon and client._manager.writes == writes and wait is not None:
                    continue
                says = "answer" if answered else "do not answer"
                failure = f"the brokers at {self.bootstrap} {says}: {_words(error)}"
                if not answered and time.monotonic() - begun > RETRY_AFTER_S:
                    self._refuse_for_a_while(failure, begun, error)
                raise AdminError(failure) from error
        raise AssertionError("unreachable")

    def send(self, request: Any) -> Any:
        """Send a request of kafka-python's protocol to any broker, if its admin client does not support it."""
        return self.call(lambda client: client._manager.run(client._manager.send, request))

    def _connected(self) -> KafkaAdminClient:
        with self._lock:
            if self._client is not None:
                return self._client
            if self._closed:
                raise AdminError(f"the connection to {self.bootstrap} is closed: its cluster is gone")
            if time.monotonic() < self._failed_until:
                raise AdminError(self._failure)
            # Fail at once: kafka-python would retry until its timeout, and leak sockets.
            begun = time.monotonic()
            failure = (
                "no broker of the cluster runs"
                if self.bootstrap == NOWHERE
                else f"no broker answers at {self.bootstrap}"
            )
            if not _listens(self.bootstrap):
                self._refuse_for_a_while(failure, begun)
            # When the admin client's constructor fails, it leaves its network client with a thread and sockets.
            networks: list[KafkaNetClient] = []

            def network(**config: Any) -> KafkaNetClient:
                net = NetworkSelector(**config)
                manager = _FencedManager(net, self._fence, **config)
                networks.append(KafkaNetClient(net, manager, **config))
                return networks[-1]

            try:
                self._client = KafkaAdminClient(
                    kafka_client=network,
                    proxy_url=f"{_TidySocket.SCHEMES[0]}://",
                    bootstrap_servers=self.bootstrap,
                    client_id=self._client_id,
                    bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                    request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
                    reconnect_backoff_max_ms=1000,
                )
            except (KafkaError, OSError, ValueError) as error:
                for client in networks:
                    _close(client)
                self._refuse_for_a_while(failure, begun, error)
            assert self._client is not None
            return self._client

    def _refuse_for_a_while(self, failure: str, begun: float, cause: Exception | None = None) -> NoReturn:
        with self._pauses:
            now = time.monotonic()
            if begun >= self._retried_at:
                is_new = now - self._retried_at < RETRY_LIMIT_S
                pause = RETRY_AFTER_S if is_new else max(RETRY_AFTER_S, RETRY_FACTOR * (now - begun))
                self._failed_until = now + min(RETRY_LIMIT_S, pause)
            self._failure = failure
        raise AdminError(failure) from cause

    def _drop(self, client: KafkaAdminClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        _close(client)


def _close(client: KafkaAdminClient | KafkaNetClient) -> None:
    client.close()
    client._manager.close_sockets()


def _listens(bootstrap: str) -> bool:
    """Whether any of the addresses accepts a connection."""
    for address in bootstrap.split(","):
        with contextlib.suppress(OSError, ValueError):
            socket.create_connection(addresses.split(address), CONNECT_TIMEOUT_S).close()
            return True
    return False


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
