"""Serves the operator's metrics to Prometheus and its health to Kubernetes, on the event loop that owns the queue."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from ..models import addresses
from ..state.metrics import Metrics

PATH = "/metrics"
BACKLOG = 128
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Unhealthy(Exception):
    """The operator is stuck; its words say where."""


async def serve(address: tuple[str, int], metrics: Metrics, measure: Callable[[], None]) -> web.AppRunner:
    """Serve on HOST, PORT until the runner's ``cleanup``. ``measure`` updates the metrics that only the event loop may
    read. Raises OSError."""

    async def answer(_: web.Request) -> web.Response:
        measure()
        return web.Response(
            body=await asyncio.to_thread(metrics.text), headers={"Content-Type": CONTENT_TYPE}
        )

    return await _serve(address, PATH, answer)


async def serve_health(url: str, health: Callable[[], dict[str, Any]]) -> web.AppRunner:
    """Serve ``health`` as JSON; status 500 while it raises Unhealthy. Raises OSError; ValueError for a wrong URL."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.port is None or not parts.path:
        raise ValueError(f"{url!r} is not allowed; allowed: http://HOST:PORT/PATH, also without a host")

    async def answer(_: web.Request) -> web.Response:
        try:
            return web.json_response({"work": health()})
        except Unhealthy as error:
            return web.json_response({"error": str(error)}, status=500)

    return await _serve((parts.hostname or "", parts.port), parts.path, answer)


async def _serve(
    address: tuple[str, int], path: str, answer: Callable[[web.Request], Awaitable[web.Response]]
) -> web.AppRunner:
    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, _listen(*address)).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; a wildcard host is every address, in both families. Raises OSError."""
    if not addresses.is_wildcard(host):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)


def parse_address(text: str) -> tuple[str, int] | None:
    """HOST:PORT; None for an empty text. Raises ValueError."""
    try:
        return addresses.split(text) if text else None
    except ValueError:
        raise ValueError(f"{text!r} is not allowed; allowed: HOST:PORT, or nothing to serve none") from None
