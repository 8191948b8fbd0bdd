"""Queries of workers' progress: no response, however odd, blocks the operator."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from millstream_operator.reconcile.mirror import workers as mirror_workers
from millstream_operator.reconcile.mirror.workers import ask, ask_all

pytestmark = pytest.mark.process


@contextmanager
def a_worker(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/status"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def set_patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """How long the operator waits for an answer."""
    monkeypatch.setattr(mirror_workers, "CONNECT_S", 60.0)
    monkeypatch.setattr(mirror_workers, "WHOLE_S", seconds)


def test_workers_are_asked_and_those_that_do_not_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    set_patience(monkeypatch, 60.0)  # a busy machine answers late
    said = {
        "topics": 2,
        "lag": {"records": 4, "seconds": 0.013},
        "member": "m",
        "sources": [{"name": "west"}],
    }
    with (
        a_worker(json.dumps(said).encode()) as good,
        a_worker(b"nonsense") as bad,
        a_worker(b"{}", 503) as starting,
    ):
        (report,) = ask_all([good, bad, starting])
        closed = good
    assert (report.topics, report.lag.records) == (2, 4)
    assert report.sources[0].reachable is False
    assert ask(closed) is None


@contextmanager
def a_flood(head: bytes, part: bytes, pause_s: float) -> Iterator[str]:
    """A pod with a worker's labels and an endless response."""

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            connection.sendall(head)
            while not ended.wait(pause_s):
                connection.sendall(part)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("head", "part", "pause_s", "patience_s"),
    [
        (HEAD, b"a", 0.1, 0.5),
        (HEAD + b"\r\n", b" ", 0.1, 0.5),
        (HEAD + b"\r\n", b" " * (1 << 20), 0.0, 3600.0),
    ],
    ids=["slow head", "slow", "long"],
)
def test_an_answer_without_end_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes, pause_s: float, patience_s: float
) -> None:
    """The slow ones end at a time, the long one at a size."""
    set_patience(monkeypatch, patience_s)
    with a_flood(head, part, pause_s) as address:
        assert ask(address) is None
