"""TLS handshakes of accepted connections, before they become connections of the server.

OpenSSL works in threads of its own, so a burst of handshakes takes turns there and not on the loop. A handshake has
HANDSHAKE_S and MAX_BYTES, and of MOST_AT_ONCE at the same time those make room for new ones whose clients have sent
nothing, or not the next message within PATIENCE_S. So clients that connect and stay silent, or send slowly, hold
bounded memory and keep nobody out.

A client that begins with something else than TLS is closed at once, without an alert: Kafka's clients would read an
alert as the size of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf

from millstream_process.listening import host_port

from ..config.config import Listener
from ..runtime.stats import Stats
from ..security.session import ANONYMOUS
from ..security.tls.listener_tls import ListenerTls
from .channel import ClientChannel
from .connection_lines import ConnectionLines, LineCause, LineKind
from .other_protocols import recognise_plaintext
from .tls_channel import TlsChannel

HANDSHAKE_S = 10.0
"""Longest time of a handshake."""
PATIENCE_S = 1.0
"""How long a client that owes a message keeps its place while others wait for one."""
MAX_BYTES = 256 * 1024
"""Most bytes that a client may send for it; OpenSSL takes 100 KB of certificates."""
MOST_AT_ONCE = 1000
"""Most handshakes at the same time."""
THREADS = 2
_RECEIVE_BYTES = 16 * 1024

Done = Callable[[ClientChannel, Listener, str, int, str], None]
"""Receives the channel, the listener, the client's host and port, and its principal."""


class Handshakes:
    """All handshakes of a server. Calls are made on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stats: Stats, lines: ConnectionLines, done: Done
    ) -> None:
        self.loop = loop
        self.stats = stats
        self.lines = lines
        self.done = done
        self.running: dict[Handshake, None] = {}
        """In the order of their begin."""
        self._threads: ThreadPoolExecutor | None = None

    def begin(self, sock: socket.socket, tls: ListenerTls, listener: Listener, host: str, port: int) -> None:
        if len(self.running) >= MOST_AT_ONCE and not self._make_room():
            self.lines.write(
                LineKind(listener.name, LineCause.TLS),
                host,
                logging.WARNING,
                "closed the connection of %s on listener %s: %d TLS handshakes are under way",
                host_port(host, port),
                listener.name,
                MOST_AT_ONCE,
            )
            self.stats.tls_failures += 1
            sock.close()
            return
        self.running[Handshake(self, sock, tls, listener, host, port)] = None

    def _make_room(self) -> bool:
        """Close the oldest handshake in which the client has sent nothing, or else the oldest that waits too long."""
        slow = next((each for each in self.running if not each.received), None)
        if slow is None:
            before = self.loop.time() - PATIENCE_S
            slow = next((each for each in self.running if each.waits_since <= before), None)
        if slow is not None:
            sent = "nothing" if not slow.received else "too little"
            slow.fail(f"it sent {sent}, and {MOST_AT_ONCE} TLS handshakes are under way")
        return slow is not None

    def of_host(self, host: str) -> int:
        return sum(each.host == host for each in self.running)

    def of_listener(self, name: str) -> int:
        return sum(each.listener.name == name for each in self.running)

    @property
    def threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "tls-handshake")
        return self._threads

    def close(self) -> None:
        """Close all connections. A second call changes nothing."""
        for each in list(self.running):
            each.fail("")
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class Handshake:
    """One handshake: receives and sends on the loop, computes in a thread, in turns."""

    def __init__(
        self,
        owner: Handshakes,
        sock: socket.socket,
        tls: ListenerTls,
        listener: Listener,
        host: str,
        port: int,
    ) -> None:
        sock.setblocking(False)
        self.listener = listener
        self.host = host
        self.received = 0
        """Bytes of the client."""
        self.waits_since = owner.loop.time()
        """Since when the client owes a message; parts of it change nothing. Infinite: it owes none."""
        self._owner = owner
        self._sock = sock
        self._port = port
        self._listener_tls = tls
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.server.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._principal: str | None = None
        """Known once the handshake is complete."""
        self._encrypted = b""
        self._is_computing = False
        self._waited_since = 0.0
        self._is_closed = False
        self._deadline = owner.loop.call_later(
            HANDSHAKE_S, self.fail, f"no complete TLS handshake within {HANDSHAKE_S:g} s"
        )
        owner.loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            return self.fail(error.strerror or "", logging.INFO)
        if not data:
            return self.fail("it ended the connection in the TLS handshake", logging.INFO)
        if not self.received and (problem := recognise_plaintext(data, self.listener)):
            return self.fail(problem)
        self.received += len(data)
        if self.received > MAX_BYTES:
            return self.fail(f"its TLS handshake exceeds {MAX_BYTES} bytes")
        self._owner.loop.remove_reader(self._sock)
        self._is_computing, self._waited_since = True, self.waits_since
        self.waits_since = inf
        computing = self._owner.loop.run_in_executor(self._owner.threads, self._compute, data)
        computing.add_done_callback(self._computed)
        return None

    def _compute(self, data: bytes) -> str | None:
        """One step of OpenSSL, in a thread; returns the problem, if any."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            certificate = self._tls.getpeercert(binary_form=True)
            self._principal = ANONYMOUS if certificate is None else self._listener_tls.principal(certificate)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            return f"the TLS handshake failed: {_reason(error)}"
        except ValueError as error:
            return f"its certificate gives no principal: {error}"
        return None

    def _computed(self, computing: asyncio.Future[str | None]) -> None:
        self._is_computing = False
        if self._is_closed or computing.cancelled():
            self._sock.close()
            return None
        if (error := computing.exception()) is not None:
            kind = LineKind(self.listener.name, LineCause.FAILURE)
            self._owner.lines.write(kind, self.host, logging.ERROR, "a TLS handshake failed", error=error)
            return self.fail("the broker failed")
        self._encrypted += (answer := self._outgoing.read())
        self.waits_since = self._owner.loop.time() if answer else self._waited_since
        if problem := computing.result():
            with contextlib.suppress(OSError):  # the alert is a courtesy
                self._sock.send(self._encrypted)
            return self.fail(problem)
        self._send()
        return None

    def _send(self) -> None:
        """Send OpenSSL's answer, then continue."""
        try:
            self._encrypted = self._encrypted[self._sock.send(self._encrypted) :] if self._encrypted else b""
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            return self.fail(error.strerror or "", logging.INFO)
        if self._encrypted:
            self._owner.loop.add_writer(self._sock, self._writable)
        elif self._principal is None:
            self._owner.loop.add_reader(self._sock, self._readable)
        else:
            self._complete(self._principal)
        return None

    def _writable(self) -> None:
        self._owner.loop.remove_writer(self._sock)
        self._send()

    def _complete(self, principal: str) -> None:
        owner = self._owner
        self._end()
        owner.stats.tls_handshakes += 1
        channel = TlsChannel(self._sock, owner.loop, self._tls, self._incoming, self._outgoing)
        owner.done(channel, self.listener, self.host, self._port, principal)

    def _end(self) -> None:
        self._is_closed = True
        self._deadline.cancel()
        self._owner.running.pop(self, None)

    def fail(self, problem: str, level: int = logging.WARNING) -> None:
        """Close the connection, with one line that names the listener and the problem."""
        if self._is_closed:
            return
        self._end()
        self._owner.stats.tls_failures += 1
        if problem:
            self._owner.lines.write(
                LineKind(self.listener.name, LineCause.TLS),
                self.host,
                level,
                "closed the connection of %s on listener %s: %s",
                host_port(self.host, self._port),
                self.listener.name,
                problem,
            )
        self._owner.loop.remove_reader(self._sock)
        self._owner.loop.remove_writer(self._sock)
        if not self._is_computing:  # otherwise the thread's result closes it
            self._sock.close()


def _reason(error: ssl.SSLError) -> str:
    verification = getattr(error, "verify_message", "")
    reason = (error.reason or str(error)).replace("_", " ").lower()
    return f"{reason}: {verification}" if verification else reason
