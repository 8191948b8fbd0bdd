r"""The lines of the audit log: one JSON object each. Pure.

    {"time": "2026-11-30T08:00:00.000+00:00", "logger": "millstream.audit", "broker": 1, "event": "login",
     "outcome": "succeeded", "principal": "User:alice", "host": "10.0.0.7", "listener": "CLIENTS",
     "client_id": "app-1", "mechanism": "SCRAM-SHA-512"}

Clients choose names, of up to 32 KB, with any characters. A line has ASCII only, so nothing in a name ends it early or
controls a terminal, and no more than LONGEST characters of a name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

LOGGER = "millstream.audit"
LONGEST = 256
CUT = "…"
"""Ends a name that was cut."""


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + CUT


def line(broker_id: int, time_s: float, event: str, fields: Mapping[str, object]) -> bytes:
    """The line of an event, with its end; `fields` has names as they came, and those that are empty are left out."""
    found: dict[str, object] = {
        "time": datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds"),
        "logger": LOGGER,
        "broker": broker_id,
        "event": event,
    }
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            found[name] = _bounded(value)
    return json.dumps(found, ensure_ascii=True).encode("ascii") + b"\n"


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, list):
        return [_bounded(each) for each in value]
    if isinstance(value, dict):
        return {shortened(name): _bounded(each) for name, each in value.items()}
    return value
