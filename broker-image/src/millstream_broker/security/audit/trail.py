"""Counts logins and denied requests, and writes the audit log, if there is one. All calls are made on the loop.

Events of the brokers among themselves are no administration: the broker that a client spoke to has recorded it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.schema import Struct
from millstream_process.listening import network_of

from ..session import ClientSession
from .administration import Changes, described, failures
from .limits import ADMINISTRATIVE, DENIED, LOGIN, AuditLimits, EventSource
from .lines import line
from .writer import Writer

SUMMARY_S = 10.0
"""Interval of the lines that say how many events were left out."""
UNKNOWN = "other"
"""Stands for a mechanism whose name a client invented."""


class AuditLog:
    """The lines of one broker."""

    def __init__(self, broker_id: int, limits: AuditLimits, writer: Writer) -> None:
        self._broker_id = broker_id
        self._limits = limits
        self._writer = writer
        self._summary: asyncio.TimerHandle | None = None
        self.suppressed: Counter[str] = Counter()
        """Events without a line, by kind."""

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._writer.lost

    def record(
        self, kind: str, source: EventSource, event: str, fields: Callable[[], Mapping[str, object]]
    ) -> None:
        """Write a line, unless there are too many; `fields` is called only then."""
        loop = asyncio.get_running_loop()
        if self._limits.admits(kind, source, loop.time()):
            self._write(event, fields())
            return
        self.suppressed[kind] += 1
        if self._summary is None:
            self._summary = loop.call_later(SUMMARY_S, self.summarise)

    def summarise(self) -> None:
        """Write how many events have been left out."""
        self._summary = None
        for (kind, source), count in self._limits.take_suppressed().items():
            named = {} if source is None else source._asdict()
            self._write("suppressed", {"kind": kind, "count": count, **named})

    def _write(self, event: str, fields: Mapping[str, object]) -> None:
        self._writer.put(line(self._broker_id, time.time(), event, fields))

    async def close(self) -> None:
        if self._summary is not None:
            self._summary.cancel()
        self.summarise()
        await asyncio.to_thread(self._writer.close)


class AuditTrail:
    """Who logs in, administers, and is refused."""

    def __init__(self, log: AuditLog | None = None) -> None:
        self.log = log
        self.logins: Counter[str] = Counter()
        """Successful ones, by mechanism."""
        self.login_failures: Counter[tuple[str, str]] = Counter()
        """By mechanism and reason."""
        self.delayed = 0
        """Attempts that had to wait, because others had failed."""
        self.denials: Counter[str] = Counter()
        """Denied operations, by API."""

    def logged_in(self, session: ClientSession, mechanism: str) -> None:
        self.logins[mechanism] += 1
        if self.log is not None:
            source = EventSource(session.principal, session.host)
            fields = {"outcome": "succeeded", **_who(session), "mechanism": mechanism}
            self.log.record(LOGIN, source, LOGIN, lambda: fields)

    def login_failed(
        self, session: ClientSession, mechanism: str, reason: str, user: str, detail: str
    ) -> None:
        """`user` is the name that the client gave, if any; `mechanism` is a known one, or empty."""
        self.login_failures[mechanism or UNKNOWN, reason] += 1
        if self.log is not None:
            fields = {
                "outcome": "failed",
                **_who(session),
                "user": user,
                "mechanism": mechanism,
                "reason": reason,
                "detail": detail,
            }
            self.log.record(LOGIN, EventSource("", network_of(session.host)), LOGIN, lambda: fields)

    def login_delayed(self) -> None:
        self.delayed += 1

    def denied(
        self,
        api: str,
        session: ClientSession,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        self.denials[api] += 1
        if self.log is not None:
            self.log.record(
                DENIED,
                EventSource(session.principal, session.host),
                DENIED,
                lambda: {
                    **_who(session),
                    "api": api,
                    "operation": operation.title,
                    "resource_type": resource_type.title,
                    "resource": name,
                },
            )

    def administered(
        self,
        api: str,
        changes: Changes,
        session: ClientSession,
        request: Any,
        outcome: Struct | Exception | None,
    ) -> None:
        """An administrative request has ended, with this response or error."""
        if self.log is None or session.peer_broker is not None:
            return

        def fields() -> Mapping[str, object]:
            if isinstance(outcome, Struct):
                errors = failures(outcome)
            elif isinstance(outcome, ApiError):
                errors = {outcome.code.name: [""]}
            else:
                errors = {"UNKNOWN_SERVER_ERROR": [""]}
            return {
                "outcome": "failed" if errors else "succeeded",
                **_who(session),
                "api": api,
                **described(changes, request),
                "errors": errors,
            }

        self.log.record(ADMINISTRATIVE, EventSource(session.principal, session.host), ADMINISTRATIVE, fields)


def _who(session: ClientSession) -> dict[str, object]:
    return {
        "principal": session.principal,
        "host": session.host,
        "listener": session.listener,
        "client_id": session.client_id,
    }
