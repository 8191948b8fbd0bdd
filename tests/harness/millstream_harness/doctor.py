"""`millstream doctor` as a process, and servers for it to examine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream_harness.broker import BrokerProcess
from millstream_harness.command import millstream


def all_findings(
    bootstrap: str, *arguments: str, status: int = 1, **client_config: object
) -> list[dict[str, Any]]:
    """Findings in order; ``client_config``: librdkafka's settings, with "_" for "."."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.writelines(f"{key.replace('_', '.')}={value}\n" for key, value in client_config.items())
        file.flush()
        ended = millstream("doctor", "-o", "json", "--config", file.name, *arguments, bootstrap=bootstrap)
    assert ended.returncode == status, (ended.stdout, ended.stderr)
    assert b"Traceback" not in ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def findings(bootstrap: str, status: int = 1, **client_config: object) -> dict[str, dict[str, Any]]:
    """Findings by step."""
    return {one["step"]: one for one in all_findings(bootstrap, status=status, **client_config)}


@contextlib.contextmanager
def served(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a server that answers each connection in a thread of its own."""
    server = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer_one, args=[connection], daemon=True).start()

    def answer_one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)

    threading.Thread(target=loop, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


CLOCK = """import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {ahead_s}
time.time_ns = lambda: _time_ns() + {ahead_s} * 1_000_000_000
"""


class SkewedBroker(BrokerProcess):
    """A broker whose clock is some seconds ahead: its interpreter changes `time` before it imports anything."""

    def __init__(self, folder: Path, ahead_s: int, config: dict[str, str] | None = None) -> None:
        super().__init__(folder, config)
        self.ahead_s = ahead_s

    @property
    def command(self) -> list[str]:
        modules = self.folder / "clock"
        modules.mkdir(parents=True, exist_ok=True)
        (modules / "sitecustomize.py").write_text(CLOCK.format(ahead_s=self.ahead_s))
        path = os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH", "")]))
        return ["env", f"PYTHONPATH={path}", *super().command]
