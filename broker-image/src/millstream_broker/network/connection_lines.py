"""Log lines about single connections: why one was refused or closed.

Anybody who reaches a listener causes them, with or without a credential. So they are limited by their cause and by the
listener, and each address has a quarter of that: who connects in a loop fills no disk, and hides no line about other
listeners, causes and clients. One line a minute counts what was left out, for each listener and cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from enum import Enum
from typing import NamedTuple

from millstream_process.listening import network_of

from ..runtime.line_limits import LineLimits
from ..runtime.stats import Stats

PER_MINUTE, BURST = 20, 120
"""Lines of one cause on one listener: BURST at once, and PER_MINUTE from then on."""
SHARE_OF_ADDRESS = 0.25
SUMMARY_S = 60.0
"""Interval of the lines that count what was left out."""

log = logging.getLogger(__name__)


class LineCause(Enum):
    """What a line is about; the values are labels of a metric."""

    LIMIT = "limit"
    """Too many connections."""
    TLS = "tls"
    """The handshake failed."""
    LOGIN = "login"
    """The client failed to authenticate."""
    REQUEST = "request"
    """Another end of a connection."""
    FAILURE = "failure"
    """The broker failed, which is logged with its stack."""


class LineKind(NamedTuple):
    listener: str
    cause: LineCause
    detail: str = ""
    """The API of a failure, or the mechanism of a login: many clients may share an address, and one whose password is
    wrong hides none that uses another mechanism."""


class ConnectionLines:
    """Writes the lines of one broker. Calls are made on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self._loop = loop
        self._stats = stats
        self._limits = LineLimits[LineKind, str](PER_MINUTE / 60, BURST, lambda kind: SHARE_OF_ADDRESS)
        self._summary: asyncio.TimerHandle | None = None

    def write(
        self,
        kind: LineKind,
        host: str,
        level: int,
        message: str,
        *details: object,
        error: BaseException | None = None,
    ) -> None:
        """Write a line about a client of that address, unless there are too many."""
        if not log.isEnabledFor(level):
            return
        if self._limits.admits(kind, network_of(host), self._loop.time()):
            log.log(level, message, *details, exc_info=error)
            return
        self._stats.lines_suppressed[kind.cause.value] += 1
        if self._summary is None:
            self._summary = self._loop.call_later(SUMMARY_S, self.summarise)

    def summarise(self) -> None:
        """Count what has been left out since the last time."""
        if self._summary is not None:
            self._summary.cancel()
            self._summary = None
        of_kind: dict[LineKind, Counter[str | None]] = defaultdict(Counter)
        for (kind, network), count in self._limits.take_suppressed().items():
            of_kind[kind][network] += count
        for kind, counts in of_kind.items():
            named = [
                f"{count} of {network}" for network, count in counts.most_common() if network is not None
            ]
            log.warning(
                "listener %s: %d lines about connections were left out (cause: %s)%s",
                kind.listener,
                counts.total(),
                kind.cause.value,
                f", most of them: {', '.join(named[:3])}" if named else "",
            )
