"""A Millstream broker as a real process, on ports that the system picks.

The broker starts with port 0 and reports its address in its ready line, so no two tests compete for a
port:

    ready: broker.id=1 listeners=PLAINTEXT://127.0.0.1:40123 http=127.0.0.1:40124 …
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .daemon import Daemon

# Below the system's range for port 0 and for outgoing connections, because a restarted broker needs its own port again;
# each of pytest-xdist's workers has its own ports.
FIXED_PORTS = range(
    18_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    30_000,
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
_given: set[int] = set()
READY = re.compile(r"ready: broker\.id=(?P<id>\d+) listeners=(?P<listeners>\S+) http=(?P<http>\S+)")


def fixed_port() -> int:
    """A free port for a server that must get the same port again after a restart; each call returns another one."""
    for port in random.sample(FIXED_PORTS, len(FIXED_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                _given.add(port)
                return port
    raise RuntimeError(f"no port is free in {FIXED_PORTS}")


class BrokerProcess(Daemon):
    """One broker over one data folder; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) any number of times."""

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
        """Start it and wait for its ready line; RuntimeError with its output if it ends first."""
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
        """Status and body of an HTTP response."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def keep_port(self) -> Self:
        """Before the first start: choose a fixed port, so that clients find the broker after restarts."""
        self.config["listeners"] = f"PLAINTEXT://127.0.0.1:{fixed_port()}"
        return self


class CopiedBroker(BrokerProcess):
    """A broker whose disk can be copied, and restored from the copy."""

    def copy(self) -> None:
        """It restarts."""
        self.stop()
        shutil.copytree(self.data, self.folder / "copy")
        self.start()

    def restore(self) -> None:
        """It does not run afterwards."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "copy", self.data)
