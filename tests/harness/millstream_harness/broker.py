"""A Millstream broker as a real process, on ports that the system picks.

The broker is started with port 0 and says where it listens in its ready line, so that no two tests can
ask for the same port:

    ready: broker.id=1 listeners=PLAINTEXT://127.0.0.1:40123 http=127.0.0.1:40124 …
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .daemon import Daemon

# Below what the system hands out for port 0 and for outgoing connections, as a restarted broker must get its own again;
# each of pytest-xdist's workers has ports of its own.
FIXED_PORTS = range(
    18_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    30_000,
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
_given: set[int] = set()
READY = re.compile(r"ready: broker\.id=(?P<id>\d+) listeners=(?P<listeners>\S+) http=(?P<http>\S+)")


def fixed_port() -> int:
    """A free port for somebody who must listen on the same one again; another one each time."""
    for port in random.sample(FIXED_PORTS, len(FIXED_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                _given.add(port)
                return port
    raise RuntimeError(f"no port is free in {FIXED_PORTS}")


class BrokerProcess(Daemon):
    """One broker over one data folder; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) as often as wanted."""

    name = "the broker"

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, "broker.log")
        self.data = folder / "data"
        self.config = {
            "log.dirs": str(self.data),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
            **(config or {}),
        }
        self.bootstrap = ""
        self.http = ""

    @property
    def command(self) -> list[str]:
        executable = str(Path(sys.executable).parent / "millstream-broker")
        return [
            executable,
            *(arg for key, value in self.config.items() for arg in ("--override", f"{key}={value}")),
        ]

    def start(self) -> Self:
        """Start it and wait for its ready line; raises RuntimeError with its output when it ends before."""
        begun = self.printed()
        self.launch(self.command)
        self.await_ready(self.is_ready, begun)
        return self

    def is_ready(self, said: str) -> bool:
        if found := READY.search(said):
            self.bootstrap = found["listeners"].split("://")[1].split(",")[0]
            self.http = f"http://{found['http']}"
        return found is not None

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of what it answers over HTTP."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def keep_port(self) -> Self:
        """Before the first start: listen on one port, across restarts, so that clients find it again."""
        self.config["listeners"] = f"PLAINTEXT://127.0.0.1:{fixed_port()}"
        return self
