"""The Kubernetes client and a busy API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes.client.configuration import Configuration

from millstream_operator.kubernetes.client import Kube, KubeError

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "x"}}


class Busy(ThreadingHTTPServer):
    """Refuses the first ``refusals`` requests."""

    refusals = 0
    asked = 0


class Handler(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        assert isinstance(self.server, Busy)
        self.server.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = self.server.asked <= self.server.refusals
        body = b'{"reason": "TooManyRequests", "message": "later"}' if busy else b'{"kind": "Service"}'
        self.send_response(429 if busy else 200)
        if busy:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Busy]:
    with Busy(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def kube(server: Busy) -> Kube:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.server_address[1]}"
    return Kube(configuration)


def test_a_server_that_is_busy_is_asked_again(server: Busy) -> None:
    server.refusals = 2
    assert kube(server).apply(SERVICE) == {"kind": "Service"}
    assert server.asked == 3


def test_a_server_that_stays_busy_is_not_taken_for_one_that_does_not_answer(server: Busy) -> None:
    server.refusals = 1000
    with pytest.raises(KubeError, match="later") as refused:
        kube(server).apply(SERVICE)
    assert (refused.value.status, refused.value.reason) == (429, "TooManyRequests")
