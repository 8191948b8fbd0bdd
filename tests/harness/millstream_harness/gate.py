"""A proxy for TCP connections that a test can shut or stall.

A shut gate closes its connections and refuses new ones, as a rejecting firewall or an ended process does. A stalled
gate accepts and keeps connections but forwards nothing, as a cut cable does. One that holds answers forwards requests
alone.
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
        self._requests_flow, self._answers_flow = threading.Event(), threading.Event()
        self.flow()
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
        self._requests_flow.clear()
        self._answers_flow.clear()

    def hold_answers(self) -> None:
        self._answers_flow.clear()

    def flow(self) -> None:
        """Forward all bytes that were sent since `stall` or `hold_answers`."""
        self._requests_flow.set()
        self._answers_flow.set()

    def mend(self) -> None:
        """Open the gate and forward, whatever its state was."""
        self.flow()
        if self._listening is None:
            self.open()

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
            for there, back, flows in (
                (client, server, self._requests_flow),
                (server, client, self._answers_flow),
            ):
                if not is_open:
                    there.close()
                else:
                    threading.Thread(target=self._pass_on, args=[there, back, flows], daemon=True).start()

    def _pass_on(self, there: socket.socket, back: socket.socket, flows: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(65536):
                flows.wait()
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
