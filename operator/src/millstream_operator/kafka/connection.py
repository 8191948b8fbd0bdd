"""One connection to a cluster's brokers, by `millstream_kafka`'s client: opened on demand, dropped on failure.

Calls block, with explicit timeouts, and are thread-safe. If a whole call fails, it raises ``AdminError`` and drops the
client, and the next call reconnects. For a moment after a failure to connect, further calls fail at once instead of
each waiting for its own timeout.

Each request that may change something first calls the fence, which raises if this process may not write (see
manager/leadership.py). The fence is where the client hands requests to connections, so no request bypasses it. A
request handed over earlier is still sent, and a broker carries it out.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from millstream_kafka.admin.client import AdminClient
from millstream_kafka.client import BrokerError, ClusterClient, RequestTimedOut, UnsupportedApi
from millstream_kafka.client.errors import SecurityFailed
from millstream_kafka.client.security import Security
from millstream_kafka.protocol import (
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_user_scram_credentials,
    find_coordinator,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_fetch,
    offset_for_leader_epoch,
)
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .loop_thread import KAFKA
from .records import AdminError, NotAuthorized, NotSupported

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 15.0
# After a failure to connect, further calls fail at once for this long; longer if the failure itself took long, so an
# address that does not respond takes only a fraction of the time.
RETRY_AFTER_S, RETRY_FACTOR, RETRY_LIMIT_S = 2.0, 5.0, 30.0

# All other requests count as writes.
READS = frozenset(
    module.API.key
    for module in (
        describe_acls,
        describe_client_quotas,
        describe_configs,
        describe_groups,
        describe_log_dirs,
        describe_user_scram_credentials,
        find_coordinator,
        list_offsets,
        list_partition_reassignments,
        metadata,
        offset_fetch,
        offset_for_leader_epoch,
    )
)

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NOWHERE = "127.0.0.1:0"
"""The address of a cluster none of whose brokers runs on this machine."""
Result = TypeVar("Result")
Fence = Callable[[], None]


def no_fence() -> None:
    """The fence of a process that acts alone."""


class KafkaConnection:
    """The brokers at one bootstrap address."""

    def __init__(
        self, bootstrap: str, client_id: str = "millstream-operator", fence: Fence = no_fence
    ) -> None:
        self.bootstrap = bootstrap
        self.security: Security | None = None
        """Of new connections; None for plain text without a login."""
        self._fence = fence
        self._client_id = client_id
        self._lock, self._pauses = threading.Lock(), threading.Lock()
        self._client: ClusterClient | None = None
        self._uses: dict[ClusterClient, int] = {}
        """Calls on each client that is open."""
        self._writes = 0
        self._closed = False
        self._failed_until = 0.0
        self._failure = ""
        self._retried_at = -math.inf

    def close(self) -> None:
        """Close for good: later calls raise AdminError."""
        with self._lock:
            self._closed = True
            client = self._client
        if client is not None:
            self._drop(client)

    def leave(self) -> None:
        """Close the connection; whoever still has this object connects again."""
        if (client := self._client) is not None:
            self._drop(client)

    def retry(self) -> None:
        """Let the next call connect again: a broker has just become ready.

        Attempts that have begun count no more, and for a while all pauses are short: Kubernetes may need a moment to
        route connections to the broker.
        """
        with self._pauses:
            self._failed_until, self._retried_at = 0.0, time.monotonic()

    def call(self, operation: Callable[[AdminClient], Coroutine[Any, Any, Result]]) -> Result:
        """Run requests on the event loop of the connections. Raises AdminError."""
        for wait in (0.2, 0.5, None):
            known, client = self._client, self._connected()
            begun, writes = time.monotonic(), self._writes
            try:
                return KAFKA.run(operation(AdminClient(client, REQUEST_TIMEOUT_S)))
            except UnsupportedApi as error:
                raise NotSupported(
                    f"the brokers at {self.bootstrap} do not know a request: {error}"
                ) from error
            except (ApiError, BrokerError) as error:
                self._drop(client)  # its leaders and coordinators may be stale
                if isinstance(error, ApiError):
                    if error.code.retriable and wait is not None:
                        time.sleep(wait)
                        continue
                    refused = NotAuthorized if error.code is DENIED else AdminError
                    raise refused(f"the brokers at {self.bootstrap} answer: {error}") from error
                # Its brokers may have moved since it connected. A request that may have changed something is not
                # repeated.
                is_lost = client is known and not isinstance(error, RequestTimedOut)
                is_soon = time.monotonic() - begun < CONNECT_TIMEOUT_S
                if is_lost and is_soon and self._writes == writes and wait is not None:
                    continue
                failure = f"the brokers at {self.bootstrap} do not answer: {error}"
                if time.monotonic() - begun > RETRY_AFTER_S:
                    self._refuse_for_a_while(failure, begun, error)
                raise AdminError(failure) from error
            finally:
                self._release(client)
        raise AssertionError("unreachable")

    def _connected(self) -> ClusterClient:
        """A client, for one call, which releases it."""
        with self._lock:
            if self._client is not None:
                self._uses[self._client] += 1
                return self._client
            if self._closed:
                raise AdminError(f"the connection to {self.bootstrap} is closed: its cluster is gone")
            if time.monotonic() < self._failed_until:
                raise AdminError(self._failure)
            begun = time.monotonic()
            try:
                self._client = self._open()
            except (ApiError, BrokerError, ValueError) as error:
                failure = f"no broker answers at {self.bootstrap}"
                if self.bootstrap == NOWHERE:
                    failure = "no broker of the cluster runs"
                elif isinstance(error, SecurityFailed):
                    failure = f"no connection to {self.bootstrap}: {error}"
                self._refuse_for_a_while(failure, begun, error)
            self._uses[self._client] = 1
            return self._client

    def _open(self) -> ClusterClient:
        """A client that has a connection. Raises ValueError for an address that is none."""
        client = ClusterClient(
            self.bootstrap,
            self._client_id,
            timeout=REQUEST_TIMEOUT_S,
            connect_timeout=CONNECT_TIMEOUT_S,
            lookup_timeout=REQUEST_TIMEOUT_S,  # may have to wait for another thread's request
            retry_timeout=0,
            before_request=self._before,
            security=self.security,
        )
        try:
            KAFKA.run(client.metadata([]))
        except BaseException:
            KAFKA.run(client.close())
            raise
        return client

    def _before(self, api: Api[Any, Any]) -> None:
        if api.key not in READS:
            self._fence()
            self._writes += 1

    def _refuse_for_a_while(self, failure: str, begun: float, cause: Exception | None = None) -> NoReturn:
        with self._pauses:
            now = time.monotonic()
            if begun >= self._retried_at:
                is_new = now - self._retried_at < RETRY_LIMIT_S
                pause = RETRY_AFTER_S if is_new else max(RETRY_AFTER_S, RETRY_FACTOR * (now - begun))
                self._failed_until = now + min(RETRY_LIMIT_S, pause)
            self._failure = failure
        raise AdminError(failure) from cause

    def _drop(self, client: ClusterClient) -> None:
        """Use it no more. Other threads' requests on it are answered before it is closed."""
        with self._lock:
            if self._client is client:
                self._client = None
            is_free = self._uses.get(client) == 0
            if is_free:
                del self._uses[client]
        if is_free:
            KAFKA.run(client.close())

    def _release(self, client: ClusterClient) -> None:
        with self._lock:
            self._uses[client] -= 1
            is_over = self._uses[client] == 0 and self._client is not client
            if is_over:
                del self._uses[client]
        if is_over:
            KAFKA.run(client.close())
