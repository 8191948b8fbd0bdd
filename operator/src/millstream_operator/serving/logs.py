"""Log lines: one JSON object a line for machines, plain lines for people."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_OF_EVERY_RECORD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"}``, the fields given as ``extra``, and ``"exception"`` if there is
    one. Brokers and mirror workers use the same format (docs/observability.md)."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _OF_EVERY_RECORD:
                line.setdefault(key, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(log_format: str, level: str) -> None:
    """Send all log lines to stderr in one format."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("kopf", "aiohttp", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
