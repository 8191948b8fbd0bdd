"""The listeners of a broker, and the shared state of its connections.

Sockets are non-blocking and watched by the loop directly, without a transport between, so that one buffer can receive
for all connections and responses can go out by sendfile, with asyncio's loop and with uvloop alike.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from millstream_kafka.protocol import sasl_authenticate
from millstream_process import listening

from ..config.config import BrokerConfig, Listener
from ..config.config_keys import PER_ADDRESS
from ..config.config_types import limits_of_addresses
from ..config.listener_keys import prefix
from ..runtime.request_memory import RequestMemory
from ..runtime.stats import Stats
from ..security.audit.trail import AuditTrail
from ..security.authentication import Authentication, Mechanisms
from ..security.brake import Brake
from ..security.quotas.connection_rates import ConnectionRates
from ..security.quotas.quotas import Quotas
from ..security.session import ANONYMOUS
from ..security.tls.listener_tls import ListenerTls
from .channel import ClientChannel, PlainChannel, accept
from .connection import ClientConnection
from .connection_lines import LineCause, LineKind
from .handlers import Handlers
from .handshakes import Handshakes
from .login import LoginFrames
from .routes import OF_LOGIN, Routes, routes_of
from .shared import Shared

MOST_HELD = 1000
"""Connections beyond the rate of their address that are kept open to be closed later; others are closed at once."""

FILES_SHARE = 8
"""Divisor: of the file descriptors that the process may have, three in this many are for logs and other brokers."""

log = logging.getLogger(__name__)


Listening = tuple[Listener, socket.socket]
"""A listener with the port that it got, and its socket."""


def most_descriptors() -> int:
    """Most file descriptors for connections of clients."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if allowed == resource.RLIM_INFINITY else allowed - 3 * allowed // FILES_SHARE


def bind(listener: Listener) -> Listening:
    """Take the port. Nothing is accepted yet. Raises OSError."""
    sock = listening.bind(listener.host, listener.port)
    return replace(listener, port=sock.getsockname()[1]), sock


class Server(Shared):
    """All connections of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Sequence[Listening],
        handlers: Handlers,
        stats: Stats,
        memory: RequestMemory,
        unreadable: Callable[[OSError], None],
        mechanisms: Mapping[str, Mechanisms],
        quotas: Quotas,
        rates: ConnectionRates,
        encrypted: Mapping[str, ListenerTls],
        trail: AuditTrail,
    ) -> None:
        """`mechanisms` are those of each listener that has any; `encrypted` has the listeners with TLS."""
        super().__init__(
            handlers,
            stats,
            memory,
            config.integer("socket.request.max.bytes"),
            unreadable,
            quotas,
            config.integer("sasl.server.max.receive.size"),
            LoginFrames(handlers, lambda: config.integer("connection.failed.authentication.delay.ms") / 1000),
        )
        self._most_descriptors = most_descriptors()
        self.max_idle_s = config.integer("connections.max.idle.ms") / 1000
        self._config = config
        self._listeners = listeners
        self._mechanisms = mechanisms
        self._brake = Brake()
        self._trail = trail
        self._encrypted = encrypted
        self.handshakes = Handshakes(self.loop, stats, self.lines, self._serve)
        self._sweep: asyncio.TimerHandle | None = None
        self._rates = rates
        self.held: dict[socket.socket, asyncio.TimerHandle] = {}
        """Accepted connections that wait, to be served or closed, because of a rate."""

    def start(self, first_update: asyncio.Event) -> None:
        """Accept connections; requests that need the cluster's state wait for ``first_update`` and `open`."""
        self._route(routes_of(self.handlers, self.stats, None if first_update.is_set() else first_update))
        backlog = self._config.integer("socket.listen.backlog.size")
        for listener, sock in self._listeners:
            sock.listen(backlog)
            self.loop.add_reader(sock, self._accept, sock, listener)
        self._sweep = self.loop.call_later(min(self.max_idle_s, 60) / 2, self._close_idle)

    def open(self) -> None:
        """From now on, handle all requests without waiting."""
        self._route(routes_of(self.handlers, self.stats))

    def _route(self, routes: Routes) -> None:
        self.full.routes = routes
        self.of_login = routes[sasl_authenticate.API.key, 0]
        self.authenticated.routes = {key: route for key, route in routes.items() if key[0] not in OF_LOGIN}

    def _accept(self, sock: socket.socket, listener: Listener) -> None:
        for _ in range(64):
            try:
                accepted, address, port = accept(sock)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a connection: %s", error.strerror)
                self.loop.remove_reader(sock)
                self.loop.call_later(1, self.loop.add_reader, sock, self._accept, sock, listener)
                return
            host = listening.plain_host(address)
            if wait_ms := self._rates.wait_ms(listener.name, self.quotas.now_ms()):
                self.loop.remove_reader(sock)
                resume = partial(self._resume, sock, listener, accepted, host, port)
                self.held[accepted] = self.loop.call_later(wait_ms / 1000, resume)
                return
            self._admit(accepted, listener, host, port)

    def _resume(
        self, sock: socket.socket, listener: Listener, accepted: socket.socket, host: str, port: int
    ) -> None:
        """Serve a connection that waited for the rate of its listener, and accept others again."""
        self.held.pop(accepted)
        self.loop.add_reader(sock, self._accept, sock, listener)
        self._admit(accepted, listener, host, port)

    def _admit(self, accepted: socket.socket, listener: Listener, host: str, port: int) -> None:
        """Serve a connection, unless it exceeds a limit."""
        if throttle_ms := self._rates.refused_ms(listener.name, host, self.quotas.now_ms()):
            self._hold(accepted, throttle_ms)
            return
        if refusal := self._refusal(host, listener):
            kind = LineKind(listener.name, LineCause.LIMIT)
            self.lines.write(kind, host, logging.WARNING, "refused a connection from %s: %s", host, refusal)
            accepted.close()
            return
        self.stats.connections_accepted += 1
        if listener.is_encrypted:
            self.handshakes.begin(accepted, self._encrypted[listener.name], listener, host, port)
        else:
            self._serve(PlainChannel(accepted, self.loop), listener, host, port)

    def _hold(self, accepted: socket.socket, throttle_ms: int) -> None:
        """Close a connection beyond the rate of its address, later: a client that is closed comes again at once."""
        self.stats.connections_throttled += 1

        def close() -> None:
            self.held.pop(accepted, None)
            accepted.close()

        if len(self.held) >= MOST_HELD:
            close()
        else:
            self.held[accepted] = self.loop.call_later(throttle_ms / 1000, close)

    def _serve(
        self, channel: ClientChannel, listener: Listener, host: str, port: int, principal: str = ANONYMOUS
    ) -> None:
        """Serve a client whose channel is ready for requests: after its handshake, if it has one.

        `principal` is that of its certificate.
        """
        mechanisms = self._mechanisms.get(listener.name)
        authentication = Authentication(
            listener.name,
            host,
            mechanisms,
            is_required=listener.has_sasl,
            principal=principal,
            max_reauth_ms=partial(self._max_reauth_ms, listener.name),
            brake=self._brake,
            logins=self._trail,
        )
        if principal != ANONYMOUS and not listener.has_sasl:
            self._trail.logged_in(authentication.session, "SSL")
        self.connections.add(ClientConnection(self, channel, authentication, port))

    def _max_reauth_ms(self, listener: str, mechanism: str) -> int:
        return self._config.of_listener(listener, mechanism).integer("connections.max.reauth.ms")

    def _refusal(self, host: str, listener: Listener) -> str | None:
        """Why a new connection exceeds a limit. Handshakes that are under way count.

        Limits of the broker as a whole do not count on a listener for brokers alone: clients must not keep them apart.
        """
        config, handshakes, connections = self._config, self.handshakes, self.connections
        count = len(connections) + len(handshakes.running)
        if listener.name != self._rates.protected:
            if count >= (most := config.integer("max.connections")):
                return f"max.connections={most} is reached"
            if count + len(self.held) >= self._most_descriptors:
                return (
                    f"{count} connections leave too few file descriptors for logs and brokers: raise the limit of open"
                    " files (ulimit -n), or set max.connections"
                )
        of_host = limits_of_addresses(config.text(PER_ADDRESS)).get(host)
        most = config.integer("max.connections.per.ip") if of_host is None else of_host
        if count >= most and connections.of_host[host] + handshakes.of_host(host) >= most:
            key = f"max.connections.per.ip={most}" if of_host is None else f"{PER_ADDRESS}={host}:{most}"
            return f"{key} is reached"
        key = f"{prefix(listener.name)}max.connections"
        if config.is_set(key) and count >= (most := config.integer(key)):
            name = listener.name
            if connections.of_listener[name] + handshakes.of_listener(name) >= most:
                return f"{key}={most} is reached"
        return None

    def _close_idle(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            if now - connection.active_at > self.max_idle_s and not connection.pending:
                connection.close(f"silent for {self.max_idle_s:g} s", logging.DEBUG)
        self._sweep = self.loop.call_later(min(self.max_idle_s, 60) / 2, self._close_idle)

    async def finish(self) -> None:
        """After `close`: return once no request received over a connection can still change a log."""
        await self.large.close()
        await self.large_of_brokers.close()

    def close(self) -> None:
        """Stop listening and close every connection. A second call changes nothing."""
        if self._sweep is not None:
            self._sweep.cancel()
        for _, sock in self._listeners:
            if sock.fileno() >= 0:
                self.loop.remove_reader(sock)
                sock.close()
        for accepted, timer in self.held.items():
            timer.cancel()
            accepted.close()
        self.held.clear()
        self.handshakes.close()
        for connection in list(self.connections):
            connection.close()
        self.lines.summarise()
