"""Serves the operator's metrics to Prometheus: GET /metrics, on the event loop that owns the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from .metrics import Metrics

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def serve(address: tuple[str, int], metrics: Metrics, measure: Callable[[], None]) -> web.AppRunner:
    """Serve on HOST, PORT until the runner's ``cleanup``. ``measure`` updates the metrics that only the event loop may
    read. Raises OSError."""

    async def answer(_: web.Request) -> web.Response:
        measure()
        return web.Response(
            body=await asyncio.to_thread(metrics.text), headers={"Content-Type": CONTENT_TYPE}
        )

    app = web.Application()
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, *address).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner


def parse_address(text: str) -> tuple[str, int] | None:
    """HOST:PORT; None for an empty text. Raises ValueError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not allowed; allowed: HOST:PORT, or nothing to serve none")
    return host.removeprefix("[").removesuffix("]"), int(port)
