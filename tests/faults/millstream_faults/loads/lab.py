"""The processes of a run of rounds: a broker, an S3 server behind a gate, a Spark driver with an executor."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from millstream_harness.broker import BrokerProcess
from millstream_harness.gate import Gate
from millstream_harness.java import SPARK_JARS
from millstream_harness.s3 import S3Server
from millstream_harness.spark import ENVIRONMENT

from .plan import Kind

DRIVER = Path(__file__).with_name("driver.py")
EXECUTOR = "CoarseGrainedExecutorBackend"
START_S = 180.0
SPARK_CONF = {
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraClassPath": f"{SPARK_JARS}/*",
    "spark.executor.extraClassPath": f"{SPARK_JARS}/*",
}


class DriverDied(Exception):
    """The driver's end of the connection is closed."""


class Driver:
    """A Spark driver with one executor, in a session of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._sockets = tempfile.TemporaryDirectory(prefix="driver-")  # a socket's path has to be short
        path = str(Path(self._sockets.name) / "socket")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        listening.settimeout(START_S)
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local-cluster[1,1,512]"]
        conf = [part for key, value in SPARK_CONF.items() for part in ("--conf", f"{key}={value}")]
        with (folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*submit, *conf, str(DRIVER), path],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    **environment,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_WORKER_DIR": str(folder / "work"),
                },
            )
        with listening:
            connection = listening.accept()[0]
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._connection = connection
        self._channel: TextIO = connection.makefile("rw")
        threading.Thread(target=self._listen, daemon=True).start()
        self.answer(START_S)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._channel:
                self._said.put(line)
        self._said.put("")

    def begin(self, run: Path) -> None:
        try:
            self._connection.sendall(f"{run}\n".encode())
        except OSError:
            raise DriverDied from None

    def answer(self, seconds: float) -> dict[str, Any]:
        """What it answers next; DriverDied, or TimeoutError."""
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"the driver has not answered for {seconds:.0f} s") from None
        if not line:
            raise DriverDied
        answer: dict[str, Any] = json.loads(line)
        return answer

    def pids(self, *, executors: bool) -> list[int]:
        """Of the executors, or of all its other processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                is_executor = EXECUTOR in (folder / "cmdline").read_bytes().decode(errors="replace")
                if session == self.process.pid and is_executor == executors:
                    found.append(int(folder.name))
        return found

    def signal(self, sign: signal.Signals, *, executors: bool) -> bool:
        """Whether there was one to get it."""
        got = False
        for pid in self.pids(executors=executors):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
                got = True
        return got

    def end(self) -> None:
        """SIGKILL for whatever is left of it."""
        for executors in (False, True):
            self.signal(signal.SIGKILL, executors=executors)
        self.process.wait()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._sockets.cleanup()


class Lab:
    def __init__(self, out: Path, broker: BrokerProcess, s3: S3Server | None) -> None:
        self.out = out
        self.broker = broker
        self.s3 = s3
        self.gate = Gate(int(s3.endpoint.rpartition(":")[2])) if s3 else None
        self._driver: Driver | None = None

    def living(self) -> Driver:
        """The driver that lives; a new one after a death."""
        if self._driver is not None and self._driver.process.poll() is not None:
            self.bury()
        if self._driver is None:
            self._driver = Driver(self.out, self.s3.environment if self.s3 else {})
        return self._driver

    def bury(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None

    def strike(self, kind: Kind, seconds: float) -> bool:
        """Do it, wait, undo it. False when there was nothing to strike, as while a driver or executor starts anew."""
        do, undo = self._acts(kind)
        if do() is False:
            return False
        time.sleep(seconds)
        undo()
        return True

    def _acts(self, kind: Kind) -> tuple[Callable[[], object], Callable[[], object]]:
        driver = self._driver

        def to(sign: signal.Signals, *, executors: bool = False) -> Callable[[], object]:
            def act() -> bool:
                return driver is not None and driver.signal(sign, executors=executors)

            return act

        def nothing() -> None:
            pass

        if kind is Kind.KILL_DRIVER:
            return to(signal.SIGKILL), nothing
        if kind is Kind.STALL_DRIVER:
            return to(signal.SIGSTOP), to(signal.SIGCONT)
        if kind is Kind.KILL_EXECUTOR:
            return to(signal.SIGKILL, executors=True), nothing
        if kind is Kind.STALL_EXECUTOR:
            return to(signal.SIGSTOP, executors=True), to(signal.SIGCONT, executors=True)
        if kind is Kind.KILL_BROKER:
            return self.broker.kill, self.broker.start
        if kind is Kind.STALL_BROKER:
            return self.broker.pause, self.broker.resume
        s3, gate = self.s3, self.gate
        assert s3 is not None
        assert gate is not None
        if kind is Kind.S3_AWAY:
            return gate.shut, gate.open
        return lambda: os.kill(s3.pid, signal.SIGSTOP), lambda: os.kill(s3.pid, signal.SIGCONT)
