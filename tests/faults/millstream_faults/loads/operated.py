"""The rounds with an operator: `millstream local up` applies a BatchLoad, and runs Spark for it.

Each round edits the BatchLoad, so that one more run starts where the last one ended. A killed `up` leaves its Spark
behind, and the next `up` starts another driver of the same run. With a killed broker, `up` dies a moment later, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream_harness.gate import Gate
from millstream_harness.local import LOCAL, Sandbox
from millstream_harness.postgres import Postgres
from millstream_harness.s3 import S3Server
from millstream_harness.spark import environment as job_environment

from .lab import ATTEMPT_S, ATTEMPTS, Outcome
from .plan import Kind

CLUSTER, LOAD = "west", "rounds"
CONTINUE = {
    Kind.STALL_OPERATOR: signal.SIGCONT,
    Kind.STALL_DRIVER: signal.SIGCONT,
    Kind.STALL_BROKER: signal.SIGCONT,
}


class OperatedLab:
    """A data folder of `millstream local`, with a Cluster, and a BatchLoad for each format."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.s3: S3Server | None = None
        self.gate: Gate | None = None
        self.catalog: Postgres | None = None
        self._sandbox = Sandbox(out)
        self._sandbox.cluster(CLUSTER)
        self._environment = {**os.environ, **job_environment()}
        self._operator: subprocess.Popen[bytes] | None = None
        self._load = ""
        self._finish()

    @property
    def bootstrap(self) -> str:
        return self._sandbox.bootstrap

    def prepare(self, kind: Kind | None, run: dict[str, Any]) -> None:
        """Write the BatchLoad: an edit of minRecords starts a run, from Committed on."""
        (topic,) = {part["topic"] for part in run["offsets"]}
        self._load = f"{LOAD}-{run['output']['format'].lower()}"
        spec = {
            "clusterRef": {"name": CLUSTER},
            "topics": [topic],
            "minRecords": 1 + int(run["name"].rpartition("-")[2]) % 2,
            "value": run["value"],
            "output": run["output"],
            "spark": {"driver": {"memory": "512m"}},
        }
        self._sandbox.write("BatchLoad", self._load, json.dumps(spec))

    def load(self) -> Outcome:
        outcome = Outcome()
        while outcome.rows is None and outcome.attempts < ATTEMPTS:
            outcome.attempts += 1
            if error := self._finish():
                outcome.errors.append(error)
            else:
                outcome.rows = self._sandbox.found("BatchLoad", self._load)["status"]["lastRun"]["rows"]
        return outcome

    def _finish(self) -> str:
        """Run `up` to its end; return what went wrong, or ""."""
        command = [*LOCAL, "up", "-f", str(self._sandbox.manifests), "--data", str(self._sandbox.data)]
        with (self.out / "operator.log").open("ab") as log:
            self._operator = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        try:
            status = self._operator.wait(ATTEMPT_S)
        except subprocess.TimeoutExpired:
            self._operator.kill()
            self._operator.wait()
            return f"`millstream local up` did not end within {ATTEMPT_S:.0f} s"
        if status < 0:
            return "the operator died"
        return f"`millstream local up` ended with status {status}" if status else ""

    def strike(self, kind: Kind, seconds: float) -> bool:
        sign = signal.SIGSTOP if kind in CONTINUE else signal.SIGKILL
        struck = [pid for pid in self._targets(kind) if _signal(pid, sign)]
        time.sleep(seconds)
        for pid in struck:
            if kind in CONTINUE:
                _signal(pid, CONTINUE[kind])
        if kind is Kind.KILL_BROKER:
            self._restart_broker()
        return bool(struck)

    def _restart_broker(self) -> None:
        """`up` starts brokers only when it begins: kill one at work, so that the next attempt starts the broker."""
        if not [pid for pid in self._targets(Kind.KILL_OPERATOR) if _signal(pid, signal.SIGKILL)]:
            self._finish()

    def _targets(self, kind: Kind) -> Iterator[int]:
        if kind in (Kind.KILL_OPERATOR, Kind.STALL_OPERATOR):
            if self._operator is not None and self._operator.poll() is None:
                yield self._operator.pid
        elif kind in (Kind.KILL_BROKER, Kind.STALL_BROKER):
            yield self._sandbox.pid(f"broker/default/{CLUSTER}/0")
        else:
            yield from self._drivers()

    def _drivers(self) -> Iterator[int]:
        """The processes of all drivers, also of those whose operator died."""
        folder = bytes(self._sandbox.data / "loads")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder in (process / "cmdline").read_bytes():
                    yield int(process.name)

    def close(self) -> None:
        for pid in self._drivers():
            _signal(pid, signal.SIGKILL)
        self._sandbox.runtime().down()


def _signal(pid: int, sign: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)
        return True
    return False
