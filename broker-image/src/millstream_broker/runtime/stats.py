"""The broker's counters: plain attributes, to which the hot path only adds."""

from __future__ import annotations

from collections import Counter

from millstream_process.histogram import Histogram


class Stats:
    """The broker's counters."""

    __slots__ = (
        "apis",
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "connections_throttled",
        "isr_expands",
        "isr_shrinks",
        "lines_suppressed",
        "muted",
        "records_in",
        "records_refused",
        "tls_failures",
        "tls_handshakes",
    )

    def __init__(self) -> None:
        self.apis: dict[str, Histogram] = {}
        """For each API, the time from receiving a request to its response."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_accepted = 0
        self.connections_throttled = 0
        """Those closed because of the rate of their address."""
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.lines_suppressed: Counter[str] = Counter()
        """Log lines about connections that were left out, by cause."""
        self.muted = 0
        """Connections that are not read because of a quota."""
        self.records_in = 0
        self.records_refused = 0
        self.tls_failures = 0
        """Handshakes that failed, took too long or never began."""
        self.tls_handshakes = 0

    def api(self, name: str) -> Histogram:
        return self.apis.setdefault(name, Histogram())
