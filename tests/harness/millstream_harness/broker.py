"""A Millstream broker as a real process, on ports that the system picks.

The broker is started with port 0 and says where it listens in its ready line, so that no two tests can
ask for the same port:

    ready: broker.id=1 listeners=PLAINTEXT://127.0.0.1:40123 http=127.0.0.1:40124 …
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

# Below what the system hands out for port 0 and for outgoing connections, as a restarted broker must get its own again.
FIXED_PORTS = range(18_000, 30_000)
READY = re.compile(r"ready: broker\.id=(?P<id>\d+) listeners=(?P<listeners>\S+) http=(?P<http>\S+)")
START_TIMEOUT_S = 20.0


def fixed_port() -> int:
    """A free port for somebody who must listen on the same one again."""
    for port in random.sample(FIXED_PORTS, len(FIXED_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port is free in {FIXED_PORTS}")


class BrokerProcess:
    """One broker over one data folder; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) as often as wanted."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.output = folder / "broker.log"
        self.config = {
            "log.dirs": str(self.data),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
            **(config or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        self.http = ""

    @property
    def command(self) -> list[str]:
        executable = str(Path(sys.executable).parent / "millstream-broker")
        return [
            executable,
            *(arg for key, value in self.config.items() for arg in ("--override", f"{key}={value}")),
        ]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start it and wait for its ready line; raises RuntimeError with its output when it ends before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            said = self.output.read_bytes()[begun:].decode(errors="replace")
            if found := READY.search(said):
                self.bootstrap = found["listeners"].split("://", 1)[1]
                self.http = f"http://{found['http']}"
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"the broker ended with status {self.process.returncode}:\n{said}")
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"the broker was not ready in {START_TIMEOUT_S} s:\n{said}")

    def keep_port(self) -> Self:
        """Before the first start: listen on one port, across restarts, so that clients find it again."""
        self.config["listeners"] = f"PLAINTEXT://127.0.0.1:{fixed_port()}"
        return self

    def stop(self, timeout: float = 10.0) -> int:
        """SIGTERM, then wait; returns the exit status."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> int:
        """SIGKILL, as a machine that loses the process."""
        return self._end(signal.SIGKILL, 10.0)

    def _end(self, sign: signal.Signals, timeout: float) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sign)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def said(self) -> str:
        """All it has printed so far."""
        return self.output.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
