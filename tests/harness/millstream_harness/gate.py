"""A proxy for TCP connections that a test can shut or stall.

A shut gate closes its connections and refuses new ones, as a rejecting firewall or an ended process does. A stalled
gate accepts and keeps connections but forwards nothing, as a cut cable does.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from millstream_harness.broker import fixed_port


class Gate:
    """``port`` forwards to ``behind``, on 127.0.0.1. Open at first."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.port = fixed_port()
        self._listening: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self.open()

    def open(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listening], daemon=True).start()

    def shut(self) -> None:
        with self._lock:
            listening, self._listening = self._listening, None
            if listening is not None:
                _end(listening)
            for one in self._sockets:
                _end(one)
            self._sockets.clear()

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        """After `stall`: forward all bytes that were sent meanwhile."""
        self._flows.set()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client = listening.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.behind))
            except OSError:
                client.close()
                continue
            with self._lock:
                is_open = self._listening is listening
                if is_open:
                    self._sockets |= {client, server}
            for there, back in ((client, server), (server, client)):
                if not is_open:
                    there.close()
                else:
                    threading.Thread(target=self._pass_on, args=[there, back], daemon=True).start()

    def _pass_on(self, there: socket.socket, back: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(65536):
                self._flows.wait()
                back.sendall(data)
        for one in (there, back):
            _end(one)
        with self._lock:
            self._sockets -= {there, back}


def _end(one: socket.socket) -> None:
    """End the connection, even for a thread that waits for it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
