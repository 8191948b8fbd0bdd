"""A proxy to the API server on which watches fall behind: the server itself responds with 410 Gone.

The API server keeps the changes of the last minutes. A watch from an older version gets an ERROR event with code
410. ``fall_behind`` ends the watches of this proxy, keeps new ones waiting, and then lets each start once from
resource version 1, as if it had been away for long. Everything else passes unchanged.

    OperatorProcess -> FallingBehind -> kubectl proxy (which has the credentials) -> API server
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

OWN = "/apis/millstream.dev/"
DROPPED = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding")


class FallingBehind:
    """``gone``: paths of the watches that got 410 from the API server, in order; ``listed``: paths listed since."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.listed: list[str] = []
        self._behind: set[str] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._upstream = ""
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._port = 0
        self._cuts = 0

    @contextlib.contextmanager
    def running(self, kubeconfig: Path) -> Iterator[None]:
        """Serve, and write a kubeconfig for this proxy."""
        command = ["kubectl", "proxy", "--port=0", "--address=127.0.0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            try:
                found = re.search(r"127\.0\.0\.1:\d+", proxy.stdout.readline())
                assert found is not None
                self._upstream = f"http://{found[0]}"
                thread = threading.Thread(target=self._loop.run_forever, name="falling-behind")
                thread.start()
                try:
                    asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
                    kubeconfig.write_text(json.dumps(self._kubeconfig()))
                    yield
                finally:
                    asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
                    self._loop.call_soon_threadsafe(self._loop.stop)
                    thread.join()
                    self._loop.close()
            finally:
                proxy.terminate()

    @contextlib.contextmanager
    def fall_behind(self) -> Iterator[None]:
        """In the block, no watch of our kinds shows anything; after it, each has fallen behind."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(30)
        yield
        self._loop.call_soon_threadsafe(self._open.set)

    async def _start(self) -> None:
        self._open.set()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._cut()
        await self._runner.cleanup()
        await self._session.close()

    async def _cut(self) -> None:
        self._cuts += 1
        self._open.clear()
        self._behind.clear()
        for watch in list(self._watches):
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    def _kubeconfig(self) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "here", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        }

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        ours, watches = request.path.startswith(OWN), query.get("watch") == "true"
        if ours and watches:
            await self._open.wait()
            if self._behind_now(request.path):
                query["resourceVersion"] = "1"
        elif ours and request.method == "GET" and self.gone:
            self.listed.append(request.path)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        answer = self._session.request(
            request.method,
            f"{self._upstream}{request.path}",
            params=query,
            headers=headers,
            data=await request.read() or None,
        )
        async with answer as upstream:
            passed = {name: value for name, value in upstream.headers.items() if name.lower() not in DROPPED}
            response = web.StreamResponse(status=upstream.status, headers=passed)
            await response.prepare(request)
            going = asyncio.ensure_future(self._stream(request.path, upstream, response, watches))
            if ours and watches:
                self._watches.add(going)
                going.add_done_callback(self._watches.discard)
            await asyncio.wait([going])
            if going.cancelled():
                assert request.transport is not None
                request.transport.abort()
            else:
                going.result()
        return response

    def _behind_now(self, path: str) -> bool:
        """Whether this is the first watch of the path since all watches fell behind."""
        if path in self._behind or not self._cuts:
            return False
        self._behind.add(path)
        return True

    async def _stream(
        self, path: str, upstream: aiohttp.ClientResponse, response: web.StreamResponse, watches: bool
    ) -> None:
        async for piece in upstream.content.iter_any():
            if watches and b'"type":"ERROR"' in piece and b'"code":410' in piece:
                self.gone.append(path)
                self.listed.clear()
            await response.write(piece)
        await response.write_eof()
