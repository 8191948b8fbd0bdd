"""The processes of the rounds: a broker, an S3 server behind a gate, a Spark driver with an executor."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from millstream_harness.broker import BrokerProcess
from millstream_harness.gate import Gate
from millstream_harness.java import SPARK_JARS
from millstream_harness.postgres import Postgres
from millstream_harness.s3 import S3Server
from millstream_harness.spark import environment as job_environment

from .plan import Kind

DRIVER = Path(__file__).with_name("driver.py")
EXECUTOR = "CoarseGrainedExecutorBackend"
START_S = 180.0
SECOND_S = 180.0
ATTEMPTS = 8
ATTEMPT_S = 180.0
SPARK_CONF = {
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraClassPath": f"{SPARK_JARS}/*",
    "spark.executor.extraClassPath": f"{SPARK_JARS}/*",
}


@dataclass(slots=True)
class Outcome:
    """What became of a run: ``rows`` as reported, None if no attempt succeeded."""

    attempts: int = 0
    rows: int | None = None
    errors: list[str] = field(default_factory=list)


class Loading(Protocol):
    """Processes that load runs, and that faults strike."""

    out: Path
    s3: S3Server | None
    gate: Gate | None
    catalog: Postgres | None
    """The catalog of Iceberg tables in S3; those in a folder need none."""

    @property
    def bootstrap(self) -> str: ...

    def prepare(self, kind: Kind | None, run: dict[str, Any]) -> None:
        """Before a run, and the fault that will strike it: start what they require."""

    def load(self) -> Outcome:
        """Attempt the prepared run until it succeeds, at most ATTEMPTS times."""

    def strike(self, kind: Kind, seconds: float) -> bool:
        """Strike, wait, undo. False if there was no target, as while a driver or executor starts."""

    def copy(self, kind: Kind, output: Mapping[str, Any]) -> None:
        """Before the round's records are produced: copy what the kind names."""

    def restore(self, kind: Kind, produce: Callable[[], None]) -> str:
        """After the run: put the copy in place, load, and undo that; what went wrong, or "".

        ``produce`` makes other records, if the log was restored, too.
        """


class DriverDied(Exception):
    """The driver closed its end of the connection."""


class Driver:
    """A Spark driver with one executor, in a process session of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._sockets = tempfile.TemporaryDirectory(prefix="driver-")  # a socket's path must be short
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
                    **job_environment(),
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
        """The next answer; raises DriverDied or TimeoutError."""
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"the driver has not answered for {seconds:.0f} s") from None
        if not line:
            raise DriverDied
        answer: dict[str, Any] = json.loads(line)
        return answer

    def pids(self, *, executors: bool) -> list[int]:
        """The process ids of the executors, or of all its other processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                is_executor = EXECUTOR in (folder / "cmdline").read_bytes().decode(errors="replace")
                if session == self.process.pid and is_executor == executors:
                    found.append(int(folder.name))
        return found

    def signal(self, sign: signal.Signals, *, executors: bool) -> bool:
        """Send a signal; return whether a process got it."""
        got = False
        for pid in self.pids(executors=executors):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
                got = True
        return got

    def end(self) -> None:
        """Kill every remaining process."""
        for executors in (False, True):
            self.signal(signal.SIGKILL, executors=executors)
        self.process.wait()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._sockets.cleanup()


class Lab:
    """A driver that loads each run as it is told, and retries as an operator would."""

    def __init__(
        self, out: Path, broker: BrokerProcess, s3: S3Server | None, catalog: Postgres | None
    ) -> None:
        self.out = out
        self.broker = broker
        self.s3 = s3
        self.catalog = catalog
        self.gate = Gate(int(s3.endpoint.rpartition(":")[2])) if s3 else None
        self._driver: Driver | None = None
        self._second: Driver | None = None
        self._run = out
        self._described: dict[str, Any] = {}
        self._outcome = Outcome()
        self._last: dict[str, str] = {}
        """The run whose rows each table got last, by its format."""
        self._next: str | None = None
        """The run that has loaded the records in the place of the round's own."""

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def prepare(self, kind: Kind | None, run: dict[str, Any]) -> None:
        self._next = None
        self._described = self._fenced(run)
        self._run = self._write(self._described)
        self._outcome = Outcome()
        self._living()  # a new driver takes a while to start, which does not count
        if kind in (Kind.SECOND_DRIVER, Kind.LEFT_BEHIND) and self._second is None:
            folder = self.out / "second"
            folder.mkdir(exist_ok=True)
            self._second = Driver(folder, self._environment)

    @property
    def _older(self) -> Path:
        """The copy of the table from before the run."""
        return self.out / "older"

    def _fenced(self, run: dict[str, Any], *failed: str) -> dict[str, Any]:
        """The run as an operator describes it, which knows the table's last run, and those that failed since."""
        last = self._last.get(run["output"]["format"])
        output = run["output"] if last and not failed else {**run["output"], "mode": "New"}
        return {**run, "output": output, "fence": {"after": last, "failed": failed} if last else {}}

    def _write(self, run: dict[str, Any]) -> Path:
        path = self.out / f"{run['output']['format']}-{run['name']}.json"
        path.write_text(json.dumps(run))
        return path

    def load(self) -> Outcome:
        outcome = self._load()
        if outcome.rows is not None:
            self._last[self._described["output"]["format"]] = self._next or self._described["name"]
        return outcome

    def _load(self) -> Outcome:
        outcome = self._outcome
        while outcome.rows is None and outcome.attempts < ATTEMPTS:
            outcome.attempts += 1
            try:
                driver = self._living()
                driver.begin(self._run)
                answer = driver.answer(ATTEMPT_S)
            except (DriverDied, TimeoutError) as error:
                outcome.errors.append(str(error) or "the driver died")
                self._bury()
                continue
            if answer["state"] == "Succeeded":
                outcome.rows = answer["rows"]
                self._next = None
            else:
                outcome.errors.append(answer["error"])
                if self._next is not None and answer["reason"] == "Fenced":
                    outcome.rows = sum(part["until"] - part["from"] for part in self._described["offsets"])
        return outcome

    def _living(self) -> Driver:
        """The running driver; starts a new one after a death."""
        if self._driver is not None and self._driver.process.poll() is not None:
            self._bury()
        if self._driver is None:
            self._driver = Driver(self.out, self._environment)
        return self._driver

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            **(self.s3.environment if self.s3 else {}),
            **(self.catalog.environment if self.catalog else {}),
        }

    def _bury(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None

    def close(self) -> None:
        self._bury()
        if self._second is not None:
            self._second.end()

    def strike(self, kind: Kind, seconds: float) -> bool:
        do, undo = self._acts(kind)
        if do() is False:
            return False
        time.sleep(seconds)
        undo()
        return True

    def _load_beside(self) -> bool:
        """The second driver loads the same run to its end."""
        if self._second is None:
            return False
        try:
            self._second.begin(self._run)
            answer = self._second.answer(SECOND_S)
        except (DriverDied, TimeoutError) as error:
            self._second.end()
            self._second = None
            self._outcome.errors.append(f"second driver: {str(error) or 'it died'}")
            return True
        if answer["state"] != "Succeeded":
            self._outcome.errors.append(f"second driver: {answer['error']}")
        return True

    def _leave_behind(self) -> bool:
        """The driver stalls, while the second driver loads the next run of an edited load; then it goes on."""
        driver, second = self._driver, self._second
        if driver is None or second is None or not driver.signal(signal.SIGSTOP, executors=False):
            return False
        run = self._described
        following = self._fenced({**run, "name": f"{run['name']}-edited"}, run["name"])
        try:
            second.begin(self._write(following))
            answer = second.answer(SECOND_S)
            if answer["state"] == "Succeeded":
                self._next = following["name"]
            elif answer["reason"] != "AlreadyLoaded":
                self._outcome.errors.append(f"second driver: {answer['error']}")
        except (DriverDied, TimeoutError) as error:
            second.end()
            self._second = None
            self._outcome.errors.append(f"second driver: {str(error) or 'it died'}")
        finally:
            driver.signal(signal.SIGCONT, executors=False)
        return True

    def copy(self, kind: Kind, output: Mapping[str, Any]) -> None:
        if kind is Kind.RESTORED_TABLE:
            shutil.copytree(output["path"], self._older)

    def restore(self, kind: Kind, produce: Callable[[], None]) -> str:
        run = {**self._described, "name": f"{self._described['name']}-restored"}
        table = Path(run["output"]["path"])
        newer = self.out / "newer"
        if kind is Kind.RESTORED_TABLE:
            self._bury()  # a driver remembers its tables
            run = self._fenced(run)
            table.rename(newer)
            self._older.rename(table)
        driver = self._living()
        driver.begin(self._write(run))
        answer = driver.answer(ATTEMPT_S)
        if kind is Kind.RESTORED_TABLE:
            self._bury()
            shutil.rmtree(table)
            newer.rename(table)
        return "" if answer.get("reason") == "TableReplaced" else f"{kind.text}: {answer}"

    def _acts(self, kind: Kind) -> tuple[Callable[[], object], Callable[[], object]]:
        driver = self._driver

        def to(sign: signal.Signals, *, executors: bool = False) -> Callable[[], object]:
            def act() -> bool:
                return driver is not None and driver.signal(sign, executors=executors)

            return act

        def nothing() -> None:
            pass

        if kind is Kind.SECOND_DRIVER:
            return self._load_beside, nothing
        if kind is Kind.LEFT_BEHIND:
            return self._leave_behind, nothing
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
