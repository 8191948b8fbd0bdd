"""A Millstream broker as a real process, on ports that the system picks, for tests of what only a process has: signals,
memory, limits, standard output, a disk that fails under it. Other tests take ``in_process_broker``.

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


def settings(data: Path, config: Mapping[str, str] | None) -> dict[str, str]:
    """A broker's configuration: this one, with free ports unless it names others."""
    return {
        "log.dirs": str(data),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "http.listener": "127.0.0.1:0",
        **(config or {}),
    }


EXECUTABLE = "MILLSTREAM_BROKER"
"""The environment variable with the broker's command, for benchmarks: by default that beside the tests' interpreter."""


class AnyBroker:
    """What a test sees of a broker over one data folder, however the broker runs."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.config = settings(self.data, config)
        self.bootstrap = ""
        self.http = ""

    @property
    def is_running(self) -> bool:
        raise NotImplementedError

    def start(self) -> Self:
        """Start it, and return when it is ready; RuntimeError with its output if it cannot start."""
        raise NotImplementedError

    def stop(self, timeout: float | None = None) -> int:
        """A clean stop; returns the exit status."""
        raise NotImplementedError

    def kill(self) -> int:
        raise NotImplementedError

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def said(self) -> str:
        """Its output so far."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def is_ready(self, said: str) -> bool:
        """Take the addresses from its ready line, if there is one."""
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


class BrokerProcess(Daemon, AnyBroker):
    """One broker over one data folder; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) any number of times."""

    name = "the broker"

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        Daemon.__init__(self, folder, "broker.log")
        AnyBroker.__init__(self, folder, config)

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def command(self) -> list[str]:
        executable = os.environ.get(EXECUTABLE) or str(Path(sys.executable).parent / "millstream-broker")
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
