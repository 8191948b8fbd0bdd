"""JSON logs: one line per event, from every process."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.mirror import MirrorProcess
from millstream_operator.serving import logs as operator_logs
from millstream_process import logs

pytestmark = pytest.mark.process

FORMATTERS = [logs.JsonFormatter(), operator_logs.JsonFormatter()]


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("the.logger").makeRecord(
        "the.logger", logging.WARNING, "file.py", 1, message, args, None, extra=extra
    )


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["broker", "operator"])
def test_an_event_is_one_line_with_its_fields(formatter: logging.Formatter) -> None:
    text = formatter.format(record("lost %s\nand found", "ü", topic="flights", path=Path("/data"), level="x"))
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "the.logger",
        "message": "lost ü\nand found",
        "topic": "flights",
        "path": "/data",
    }


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["broker", "operator"])
def test_a_stack_is_a_field(formatter: logging.Formatter) -> None:
    event = record("failed")
    try:
        raise LookupError("nobody")
    except LookupError as error:
        event.exc_info = (LookupError, error, error.__traceback__)
    line = json.loads(formatter.format(event))
    assert line["exception"].splitlines()[-1] == "LookupError: nobody"


def test_an_event_in_plain_text_is_one_line_whatever_a_client_sends() -> None:
    event = record("closed %s", "x\n2026-11-30 ERROR forged\r\x1b[2J\u2028\ud800 ü\t")
    assert logs.PlainFormatter("%(message)s").format(event) == (
        r"closed x\n2026-11-30 ERROR forged\r\x1b[2J\u2028\ud800 ü" + "\t"
    )


def test_fields_of_the_process_are_on_each_line() -> None:
    assert json.loads(logs.JsonFormatter(broker=3).format(record("x")))["broker"] == 3


def lines(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if not line.startswith("ready: ")]


def test_a_broker_and_a_mirror_worker_log_json(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker", {"log.format": "json", "broker.id": "3"}) as broker:
        sources = {"north": broker.bootstrap}
        config = {"logFormat": "json", "naming": "Prefixed"}  # with naming Same it refuses its own target
        with MirrorProcess(tmp_path / "mirror", sources, broker.bootstrap, **config) as mirror:
            assert mirror.stop() == 0
        assert broker.stop() == 0
    said = lines(broker.said())
    assert "stopping" in [line["message"] for line in said]
    assert all({"time", "level", "logger", "message"} < line.keys() and line["broker"] == 3 for line in said)
    assert all(line["mirror"] == "test" for line in lines(mirror.said()))
