"""A REST catalog as a service with sign-in: OAuth2 tokens for one client, one scope and one warehouse."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CLIENT, SECRET, SCOPE, WAREHOUSE = "load", "s3cret", "PRINCIPAL_ROLE:ALL", "lake"
TOKEN = "a-token-of-load"
TOKENS = "/login/token"


class _Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    catalog: str

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(size)
        url = urllib.parse.urlsplit(self.path)
        if url.path == TOKENS:
            self._sign_in(dict(urllib.parse.parse_qsl(body.decode())))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "NotAuthorizedException", "no valid token")
        elif url.path == "/v1/config" and f"warehouse={WAREHOUSE}" not in url.query:
            self._refuse(404, "NoSuchWarehouseException", f"no such warehouse: {url.query}")
        else:
            self._forward(body)

    do_GET = do_POST = do_DELETE = do_HEAD = _answer

    def _sign_in(self, form: dict[str, str]) -> None:
        given = (form.get("client_id"), form.get("client_secret"), form.get("scope"))
        if given != (CLIENT, SECRET, SCOPE):
            self._write(
                401, {"error": "invalid_client", "error_description": "wrong client, secret or scope"}
            )
            return
        self._write(200, {"access_token": TOKEN, "token_type": "bearer", "expires_in": 3600})

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._write(status, {"error": {"code": status, "type": kind, "message": message}})

    def _write(self, status: int, answer: object) -> None:
        self._send(status, "application/json", json.dumps(answer).encode())

    def _forward(self, body: bytes) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.catalog, timeout=60)) as there:
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            there.request(self.command, self.path, body or None, headers)
            answer = there.getresponse()
            content_type = answer.getheader("Content-Type", "application/json")
            self._send(answer.status, content_type, answer.read())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def signed_in(uri: str) -> Iterator[str]:
    """The URL of a proxy for the catalog at ``uri`` that rejects requests without a token."""
    service = type("Service", (_Service,), {"catalog": urllib.parse.urlsplit(uri).netloc})
    with ThreadingHTTPServer(("127.0.0.1", 0), service) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
