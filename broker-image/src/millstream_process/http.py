"""A small HTTP/1.1 server for probes and metrics: GET of a few paths, nothing else.

    await HttpServer({"/healthz": healthz}).start("127.0.0.1", 9404)

A path's function returns a Response, or an awaitable of one. Requests are bounded in size and time, and each
connection serves one. A busy process gets longer for a response than a client for its request: metrics are wanted most
when they take long. Of MOST_AT_ONCE connections, those that have not sent their request make room for new ones: a probe
sends its own at once. A client that does not take its response is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from . import listening, supervision

MAX_HEAD_BYTES = 8192
TIMEOUT_S = 5.0
"""For a client, to send its request, and again to take the response."""
ANSWER_S = 60.0
"""For this process, to make the response."""
MOST_AT_ONCE = 100
"""Most connections: they take file descriptors that the process needs for other things."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], Response | Awaitable[Response]]


class HttpServer:
    """Serves `routes` by exact path; GET and HEAD only."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._reading: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """Those that wait for a request, in the order of their begin."""

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, sock=listening.bind(host, port), limit=MAX_HEAD_BYTES
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await supervision.cancel(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= MOST_AT_ONCE and not self._make_room():
            writer.transport.abort()
            return
        self._serving.add(task)
        self._reading[task] = writer.transport
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            self._reading.pop(task, None)
            async with asyncio.timeout(ANSWER_S):
                with_body, response = await self._answer(head)
            lines = (
                f"HTTP/1.1 {response.status} {REASONS[response.status]}",
                f"Content-Type: {response.content_type}",
                f"Content-Length: {len(response.body)}",
                "Connection: close",
            )
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(
                    "\r\n".join(lines).encode() + b"\r\n\r\n" + (response.body if with_body else b"")
                )
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()  # closing would wait until the client takes the rest
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._serving.discard(task)
            self._reading.pop(task, None)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _make_room(self) -> bool:
        """Cut off the oldest client that has not sent its request."""
        task = next(iter(self._reading), None)
        if task is None:
            return False
        self._reading.pop(task).abort()
        self._serving.discard(task)
        return True

    async def _answer(self, head: bytes) -> tuple[bool, Response]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if len(words) != 3:
            return True, Response(b"expected GET PATH HTTP/1.1\n", 400)
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return True, Response(b"only GET and HEAD are allowed\n", 405)
        if (route := self._routes.get(path)) is None:
            return True, Response(f"expected one of {', '.join(self._routes)}\n".encode(), 404)
        answer = route()
        return method == "GET", (await answer if inspect.isawaitable(answer) else answer)
