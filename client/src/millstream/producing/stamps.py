"""The audit's side of a producer: stamps each record, and reports acknowledged ones by windows.

    audit = Audit(topic="audits", server="web-1")
    with Producer("localhost:9092", audit=audit) as producer: …

Headers of a record: ``server``, and ``audit``, as PRODUCER:NUMBER:TIME; numbers count up from 0 in each topic, TIME is
in milliseconds since 1970. Reports are those of `counts`, which `millstream-audit` and `millstream audit report` read.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millstream.counts import WINDOW_S, Counts
from millstream.errors import BadInput

SERVER_HEADER: Final = "server"
STAMP_HEADER: Final = "audit"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """``topic`` gets the reports; ``server`` names the machine; ``window_s`` is the length of a window in seconds."""

    topic: str
    server: str
    window_s: int = WINDOW_S

    def __post_init__(self) -> None:
        if not self.topic or not self.server:
            raise BadInput(
                "audit: topic and server are required", 'write Audit(topic="audits", server="web-1")'
            )


class Stamps:
    """One producer's stamps and counts; for any number of threads."""

    def __init__(self, audit: Audit, send: Callable[[bytes], object]) -> None:
        self.audit = audit
        self.counts = Counts(send, server=audit.server, window_s=audit.window_s)
        self.producer = uuid.uuid4().hex[:12]
        self._numbers: dict[str, itertools.count[int]] = {}
        self._server = audit.server.encode()

    def stamped(self, topic: str, headers: Any, timestamp: int | None) -> tuple[list[tuple[str, Any]], int]:
        """A record's headers with the stamp, and its time."""
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers.setdefault(topic, itertools.count())
        at = int(time.time() * 1000) if timestamp is None else timestamp
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())
        pairs.append((SERVER_HEADER, self._server))
        pairs.append((STAMP_HEADER, b"%s:%d:%d" % (self.producer.encode(), next(number), at)))
        return pairs, at

    def delivered(self, message: Any) -> None:
        """Count an acknowledged record; reports are not counted."""
        if message.topic() != self.audit.topic:
            with contextlib.suppress(BufferError):  # no room for the report: the next record tries again
                self.counts.delivered(None, message)
