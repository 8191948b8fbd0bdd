"""Log lines on stderr: plain ones for people, or one JSON object a line for machines.

    {"time": "2026-11-22T08:00:00.000+00:00", "level": "info", "logger": "…", "message": "…", "broker": 1}

`level` is debug, info, warning, error or critical; `exception` has the stack, if there is one. Other fields are those
of the process and those passed as `extra` to the call.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

FORMATS = ("plain", "json")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that begin a line, or steer a terminal; and those that no file can take."""
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OF_EVERY_RECORD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))


class JsonFormatter(logging.Formatter):
    """One line for each event; `fields` are on every line."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        for key, value in vars(record).items():
            if key not in _OF_EVERY_RECORD:
                line.setdefault(key, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    """One line for each event, and the stack, if there is one: no text of a client can look like another event."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(_escaped, super().formatMessage(record))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def configure(log_format: str = "plain", **fields: object) -> None:
    """Log everything from INFO on to stderr. `fields`: the process's fields on JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(**fields) if log_format == "json" else PlainFormatter(PLAIN))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
