"""The HTTP responses on `http.listener`: /healthz, /readyz and /metrics, while the broker starts and afterwards."""

from __future__ import annotations

from millstream_process.http import HttpServer, Response

from .metrics import Metrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """Not ready until `ready`, nor from `stopping` on."""

    def __init__(self) -> None:
        self._metrics: Metrics | None = None
        self._not_ready = b"starting\n"
        self.server = HttpServer(
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._serve_metrics}
        )

    def ready(self, metrics: Metrics) -> None:
        self._metrics, self._not_ready = metrics, b""

    def stopping(self) -> None:
        """Report not ready. The broker may still serve; metrics stay until the server closes."""
        self._not_ready = b"stopping\n"

    def _healthz(self) -> Response:
        return Response(b"ok\n")

    def _readyz(self) -> Response:
        return Response(self._not_ready, 503) if self._not_ready else Response(b"ready\n")

    async def _serve_metrics(self) -> Response:
        if self._metrics is None:
            return Response(b"starting\n", 503)
        return Response(await self._metrics.text(), content_type=TEXT)
