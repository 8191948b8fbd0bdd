"""Connections to ZooKeeper's servers: kazoo's, with TLS, SASL, and the reason why one fails.

kazoo reports a connection before it authenticates it by SASL, and ends its thread for good if that fails, also when the
server has only stopped meanwhile: here a connection counts once it is authenticated, and the next attempt follows after
kazoo's pause. Of a server that ends a connection kazoo knows only that it has ended. `probe` then finds out whether the
server expects TLS, or none.

All of this happens in kazoo's thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from millstream_kafka.client.connection import CONNECT_S

PROBE_S = 2.0
REPEAT_S = 60.0
"""The same problem is reported again after this."""
_CERTIFICATE_ALERTS = (
    "CERTIFICATE_REQUIRED",
    "HANDSHAKE_FAILURE",
    "CERTIFICATE",
    "UNKNOWN_CA",
    "ACCESS_DENIED",
)


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How to connect to the servers, and who may use the nodes that the broker creates."""

    context: Callable[[], ssl.SSLContext] | None = None
    """For TLS: called for each connection, in kazoo's thread."""
    has_certificate: bool = False
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    """For SASL: user and password."""
    sets_acls: bool = False


OPEN = ZooKeeperAccess()
"""Without TLS and SASL; everybody may use the nodes."""


class Result(AsyncResult):  # type: ignore[misc]
    """kazoo's future, without the detour through its thread for completions."""

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def __init__(self, access: ZooKeeperAccess) -> None:
        super().__init__()
        self._access = access

    def async_result(self) -> Result:
        return Result(self)

    def create_connection(self, address: tuple[str, int], hostname: str = "", **options: Any) -> Any:
        """A connected socket; `address` is resolved, `hostname` is the name of the server."""
        end = time.monotonic() + min(CONNECT_S, options["timeout"])
        connected = socket.create_connection(address, end - time.monotonic())
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._access.context is None:
                return connected
            connected.settimeout(max(0.1, end - time.monotonic()))
            return self._access.context().wrap_socket(connected, server_hostname=hostname.strip("[]"))
        except BaseException:
            connected.close()
            raise

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        """Decrypted responses may wait in the socket, of which the kernel does not know."""
        waiting = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not waiting:
            return super().select(readers, writers, errors, timeout)
        others, *rest = super().select([each for each in readers if each not in waiting], writers, errors, 0)
        return [*waiting, *others], *rest


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """kazoo's client over `ZooKeeperConnection`; `on_problem` is called with the reason why a connection failed."""

    def __init__(
        self,
        hosts: str,
        timeout: float,
        access: ZooKeeperAccess,
        on_problem: Callable[[str], None],
        logger: Any,
    ) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0)
        super().__init__(
            hosts=hosts, timeout=timeout, handler=Handler(access), connection_retry=retry, logger=logger
        )
        self._connection = ZooKeeperConnection(self, retry.copy(), access, on_problem, logger)
        self._holds = False
        self._held: KeeperState | None = None

    def _session_callback(self, state: KeeperState) -> None:
        if self._holds and state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
            self._held = state
        else:
            super()._session_callback(state)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Report a connection that is made in this block at its end, unless the block fails."""
        self._holds = True
        try:
            yield
        finally:
            self._holds, held, self._held = False, self._held, None
        if held is not None:
            self._session_callback(held)


class ZooKeeperConnection(ConnectionHandler):  # type: ignore[misc]
    def __init__(
        self,
        client: ZooKeeperClient,
        retry: KazooRetry,
        access: ZooKeeperAccess,
        on_problem: Callable[[str], None],
        logger: Any,
    ) -> None:
        options = None
        if access.credentials is not None:
            user, password = access.credentials
            options = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
        super().__init__(client, retry, logger, options)
        self._access = access
        self._on_problem = on_problem
        self._unanswered_since: float | None = None
        """When the server first closed a connection in place of answering a login, since the last answer."""

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        server = f"{host}:{port}"
        try:
            with self.client.holding():
                timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except (kazoo.AuthFailedError, kazoo.SessionClosedRequireSaslError) as error:
            if isinstance(error.__cause__, kazoo.ConnectionDropped) and not self._is_refusal():
                raise kazoo.ConnectionDropped("closed during the login") from None
            self._unanswered_since = None
            self._on_problem(
                f"{server} refuses user {self._user}: the password is wrong, or the server has no such user, or no"
                " SASL: correct zookeeper.sasl.jaas.config, or the JAAS file in KAFKA_OPTS"
            )
            # The session ends with its ephemeral nodes, so that another broker takes over.
            self.client._session_callback(KeeperState.EXPIRED_SESSION)
            raise kazoo.ConnectionDropped("not authenticated") from None
        except (kazoo.ConnectionDropped, KazooTimeoutError) as error:
            if problem := self._problem(error.__context__ or error, hostip, port):
                self._on_problem(f"{server} {problem}")
            raise
        self._unanswered_since = None
        return timeouts

    def _is_refusal(self) -> bool:
        """Whether a connection that was closed during the login means a refusal.

        A server that stops closes it, too, and the next login succeeds. Old releases of ZooKeeper refuse a login so,
        at each attempt: after a session's timeout without an answer, it is a refusal.
        """
        now = time.monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = now
        timeout_s: float = self.client._session_timeout / 1000
        return now - self._unanswered_since >= timeout_s

    @property
    def _user(self) -> str:
        return self._access.credentials[0] if self._access.credentials else "(none)"

    def _problem(self, error: BaseException, host: str, port: int) -> str:
        """What is wrong with the connection, and what to do; empty if the server is just away."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"has a certificate that the broker does not trust: {error.verify_message.rstrip('.')}: correct"
                " zookeeper.ssl.truststore.location, or the server's certificate"
            )
        if isinstance(error, ssl.SSLError) and (reason := str(error.reason or "")) and "ALERT" in reason:
            return self._refused(reason)
        if isinstance(error, KazooTimeoutError | TimeoutError | ConnectionRefusedError):
            return ""
        if self._access.context is None:
            return "expects TLS: set zookeeper.ssl.client.enable=true" if probe_tls(host, port) else ""
        if probe_plain(host, port):
            return (
                "does not serve TLS on this port: correct the port, or set zookeeper.ssl.client.enable=false"
            )
        if isinstance(error, ssl.SSLError | ConnectionResetError) or "broken" in str(error):
            return f"ended the connection by TLS: {error}"
        return ""

    def _refused(self, reason: str) -> str:
        alert = reason.replace("_", " ").lower()
        if not any(each in reason for each in _CERTIFICATE_ALERTS):
            return f"refuses the TLS handshake: {alert}: compare versions and cipher suites in zookeeper.ssl"
        if self._access.has_certificate:
            return f"refuses the broker's certificate ({alert}): correct zookeeper.ssl.keystore.location"
        return f"requires a client certificate ({alert}): set zookeeper.ssl.keystore.location"


def probe_tls(host: str, port: int) -> bool:
    """Whether a server answers a TLS handshake, be it by an alert."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=host).do_handshake()
    answer = _exchange(host, port, outgoing.read())
    return answer[:1] in (b"\x15", b"\x16") and answer[1:2] == b"\x03"


def probe_plain(host: str, port: int) -> bool:
    """Whether a server answers ZooKeeper's word srvr without TLS: with its state, or that the word is not allowed."""
    answer = _exchange(host, port, b"srvr")
    return answer.startswith((b"Zookeeper", b"srvr is not", b"This ZooKeeper"))


def _exchange(host: str, port: int, message: bytes) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection((host, port), PROBE_S) as probe:
        probe.sendall(message)
        return probe.recv(64)
    return b""
