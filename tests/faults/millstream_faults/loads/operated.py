"""The rounds with an operator: `millstream local up` applies a BatchLoad, and runs Spark for it.

Each round edits the BatchLoad, so that one more run starts where the last one ended. A killed `up` leaves its Spark
behind, and the next `up` starts another driver of the same run. With a killed broker, `up` dies a moment later, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millstream_harness.gate import Gate
from millstream_harness.local import LOCAL, Sandbox
from millstream_harness.postgres import Postgres
from millstream_harness.s3 import S3Server
from millstream_harness.spark import environment as job_environment
from millstream_operator.local.processes import wait_for

from .lab import ATTEMPT_S, ATTEMPTS, Outcome
from .plan import Kind

CLUSTER, LOAD = "west", "rounds"
LATER = {"position": "Timestamp", "timestamp": "2036-01-01T00:00:00Z"}
"""As an end of the range, it is the log's in other words, so that a failed run is not repeated."""
AFTER = "after"
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
        self._run: dict[str, Any] = {}
        self._edit: dict[str, Any] = {}
        """What a fault has changed in the BatchLoad."""
        self._until: dict[str, Any] = {}
        self._drawn = random.Random(0)
        self._idle = threading.Lock()
        """Held by who changes things while no operator runs."""
        self._loaded = threading.Event()
        self._finish()

    @property
    def bootstrap(self) -> str:
        return self._sandbox.bootstrap

    def prepare(self, kind: Kind | None, run: dict[str, Any]) -> None:
        """Write the BatchLoad: an edit of minRecords starts a run, from Committed on."""
        self._run, self._edit = run, {}
        self._loaded.clear()
        self._write()

    def _write(self, **more: Any) -> None:
        run = self._run
        (topic,) = {part["topic"] for part in run["offsets"]}
        self._load = f"{LOAD}-{run['output']['format'].lower()}"
        spec = {
            "until": self._until,
            "clusterRef": {"name": CLUSTER},
            "topics": [topic],
            "minRecords": 1 + int(run["name"].rpartition("-")[2]) % 2,
            "value": run["value"],
            "output": run["output"],
            "spark": {"driver": {"memory": "512m"}},
            **self._edit,
            **more,
        }
        self._sandbox.write("BatchLoad", self._load, json.dumps(spec))

    def load(self) -> Outcome:
        outcome = Outcome()
        while outcome.rows is None and outcome.attempts < ATTEMPTS:
            outcome.attempts += 1
            if error := self._finish():
                outcome.errors.append(error)
                if self._reason() == "AlreadyLoaded":
                    self._decide()
            elif self._edit.get("from", {}).get("requestId") == AFTER:
                outcome.rows = sum(part["until"] - part["from"] for part in self._run["offsets"])
            else:
                outcome.rows = self._sandbox.found("BatchLoad", self._load)["status"]["lastRun"]["rows"]
        self._loaded.set()
        return outcome

    def _reason(self) -> str:
        """Of the BatchLoad's condition Ready."""
        return self._sandbox.ready("BatchLoad", self._load)[1]

    def _decide(self) -> None:
        """The driver that was left behind had committed: act as the documentation says."""
        if "from" in self._edit:
            self._edit = {"from": self._from("until", AFTER)}
        else:
            self._until = {} if self._until else LATER
        self._write()

    def _from(self, which: str, request: str) -> dict[str, Any]:
        """The position at one end of the run's ranges."""
        offsets = [
            {"topic": part["topic"], "partition": part["partition"], "offset": part[which]}
            for part in self._run["offsets"]
        ]
        return {"position": "Offsets", "offsets": offsets, **({"requestId": request} if request else {})}

    def _finish(self) -> str:
        """Run `up` to its end; return what went wrong, or ""."""
        command = [*LOCAL, "up", "-f", str(self._sandbox.manifests), "--data", str(self._sandbox.data)]
        with (self.out / "operator.log").open("ab") as log, self._idle:
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
        if kind is Kind.LEFT_BEHIND:
            return self._leave_behind()
        sign = signal.SIGSTOP if kind in CONTINUE else signal.SIGKILL
        struck = [pid for pid in self._targets(kind) if _signal(pid, sign)]
        time.sleep(seconds)
        for pid in struck:
            if kind in CONTINUE:
                _signal(pid, CONTINUE[kind])
        if kind is Kind.KILL_BROKER:
            self._restart_broker()
        return bool(struck)

    def _leave_behind(self) -> bool:
        """The operator dies, its driver stalls until the next run has ended, and the BatchLoad changes meanwhile."""
        drivers = [pid for pid in self._drivers() if _signal(pid, signal.SIGSTOP)]
        if not drivers:
            return False
        with self._idle:
            for pid in self._targets(Kind.KILL_OPERATOR):
                _signal(pid, signal.SIGKILL)
            if self._operator is not None:
                self._operator.wait()
            if self._drawn.random() < 0.5:
                self._until = {} if self._until else LATER
            else:
                self._sandbox.run_alone(  # a command expects the main thread
                    "delete", "-f", str(self._sandbox.manifests / f"BatchLoad-{self._load}.yaml")
                )
                self._edit = {"from": self._from("from", "")}
            self._write()
        self._loaded.wait()
        for pid in drivers:
            _signal(pid, signal.SIGCONT)
        return bool(wait_for(lambda: not any(self._drivers()), ATTEMPT_S))

    def copy(self, kind: Kind, output: Mapping[str, Any]) -> None:
        if kind is Kind.RESTORED_TABLE:
            shutil.copytree(output["path"], self._older)
        elif kind is Kind.RESTORED_STATUS:
            shutil.copy(self._sandbox.data / "state.json", self._older)
        else:
            self._sandbox.runtime().down()
            shutil.copytree(self._sandbox.data, self._older)
            self._finish()

    @property
    def _older(self) -> Path:
        return self.out / "older"

    def restore(self, kind: Kind, produce: Callable[[], None]) -> str:
        data, newer = self._sandbox.data, self.out / "newer"
        place = {
            Kind.RESTORED_TABLE: Path(self._run["output"]["path"]),
            Kind.RESTORED_STATUS: data / "state.json",
        }
        there = place.get(kind, data)
        if kind is Kind.RESTORED_DATA:
            self._sandbox.runtime().down()
        there.rename(newer)
        self._older.rename(there)
        state, kept = data / "state.json", self.out / "state"
        if kind is Kind.RESTORED_TABLE:  # a run needs records
            shutil.copy(state, kept)
            self._write(rerun={"requestId": uuid.uuid4().hex, "from": {"position": "Earliest"}})
        elif kind is Kind.RESTORED_DATA:
            self._finish()
            produce()
        self._finish()
        reason = self._reason()
        if kind is Kind.RESTORED_DATA:
            self._sandbox.runtime().down()
        if there.is_dir():
            shutil.rmtree(there)
        newer.replace(there)
        self._write()
        if kind is Kind.RESTORED_TABLE:
            kept.replace(state)  # without the failed rerun
        if kind is Kind.RESTORED_DATA:
            self._finish()
        return "" if reason == "TableReplaced" else f"{kind.text}: {reason}"

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
