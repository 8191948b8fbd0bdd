"""A server as a real process: started until it is ready, stopped, killed, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self


class Daemon:
    """``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) any number of times; its output goes to one file.

    A subclass defines in ``start`` the command and the condition for ready.
    """

    name = "the daemon"
    start_timeout_s = 180.0
    stop_timeout_s = 60.0
    """Both longer than a busy machine needs: limits for what hangs, no promises."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder = folder
        self.output = folder / output
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        raise AssertionError(f"{type(self).__name__} does not say how it starts")

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the process without waiting for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def await_ready(self, is_ready: Callable[[str], object], begun: int = 0) -> None:
        """Wait until ``is_ready`` accepts the output after byte ``begun``; RuntimeError with it at the deadline."""
        assert self.process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            ended = self.process.poll()  # before the output, which is then complete
            said = self.output.read_bytes()[begun:].decode(errors="replace")
            if is_ready(said):
                return
            if ended is not None:
                raise RuntimeError(f"{self.name} ended with status {ended}:\n{said}")
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"{self.name} was not ready in {self.start_timeout_s} s:\n{said}")

    def printed(self) -> int:
        """Length of its output so far, in bytes."""
        return self.output.stat().st_size if self.output.exists() else 0

    def said(self) -> str:
        """Its output so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def stop(self, timeout: float | None = None) -> int:
        """SIGTERM, then wait; returns the exit status."""
        return self._end(signal.SIGTERM, self.stop_timeout_s if timeout is None else timeout)

    def launch_stop(self) -> None:
        """SIGTERM without waiting; ``wait`` does."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL."""
        return self._end(signal.SIGKILL, self.stop_timeout_s)

    def wait(self, timeout: float) -> int:
        """Wait until it ends by itself; return the exit status."""
        assert self.process is not None
        status = self.process.wait(timeout)
        self.process = None
        return status

    def pause(self) -> None:
        """SIGSTOP, until ``resume``; none of its threads runs when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

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

    def __enter__(self) -> Self:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
