"""The worker: all sources in parallel, and HTTP: /healthz, /readyz, /metrics, /status, /instance."""

from __future__ import annotations

import asyncio
import json

from millstream_process.http import HttpServer, Response
from millstream_process.listening import host_port
from millstream_process.loop import stalls

from .config.config import MirrorConfig
from .membership.ownership import Owner
from .membership.peer_liveness import WorkerEndpoint
from .partitions.metrics import page
from .partitions.stats import status_json
from .source import SourceMirror


class MirrorWorker:
    def __init__(self, config: MirrorConfig, owner: Owner | None = None) -> None:
        self.config = config
        self.endpoint = WorkerEndpoint(config.http_host, config.http_port, config.target, owner)
        self.sources = [SourceMirror(config, source, self.endpoint) for source in config.sources]
        self._http = HttpServer(
            {
                "/healthz": self._healthz,
                "/readyz": self._readyz,
                "/metrics": self._metrics,
                "/status": self._status,
                "/instance": lambda: Response(self.endpoint.instance.encode()),
            }
        )

    async def start(self) -> str:
        """Listen; return the ready line. Raises OSError."""
        host, port = self.config.http_host, self.config.http_port
        port = self.endpoint.port = await self._http.start(host, port)
        return f"ready: mirror={self.config.name} http={host_port(host, port)}"

    async def run(self) -> None:
        """Run until cancelled. Raises MirrorRefused."""
        try:
            async with asyncio.TaskGroup() as running:
                for source in self.sources:
                    running.create_task(source.run())
        finally:
            await self._http.close()

    def _healthz(self) -> Response:
        return Response(b"ok\n")

    def _readyz(self) -> Response:
        """Ready once the worker is a member of every group, even if a source is unreachable."""
        if all(source.member.is_stable for source in self.sources):
            return Response(b"ready\n")
        return Response(b"joining\n", 503)

    async def _metrics(self) -> Response:
        found = page([source.status for source in self.sources], stalls())
        text = await asyncio.to_thread(found.text)
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    def _status(self) -> Response:
        members = (source.member.member_id for source in self.sources)
        status = status_json(
            [source.status for source in self.sources], next((member for member in members if member), "")
        )
        return Response(json.dumps(status).encode(), content_type="application/json")
