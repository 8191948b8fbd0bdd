"""`python -m millstream_operator.local.consumers FOLDER`: runs the consumers of one ConsumerGroup on this machine.

FOLDER/workload.json   the workload, read again whenever it changes
FOLDER/consumers.json  the desired and the running number of consumers, and why one ended
FOLDER/N.log           output of consumer N

A consumer that ends, for whatever reason, restarts after 1, 2, 4 … 60 seconds, as on Kubernetes; after a minute of
running, the pause is 1 second again. With `scaling` the number follows the lag by the operator's own rules. When this
process stops, it stops its consumers. If it was killed, the next one finds its consumers by the mark in their
environment (see processes.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from ..kafka.admin import KafkaAdmin
from ..kafka.client_config import ClientConfig
from ..kafka.records import AdminError
from ..models import Cluster, ConsumerGroup, decode_as
from ..models.problem import Problem
from ..models.scaling import History
from ..reconcile.group.observe import observe
from ..reconcile.group.scaling import decide, load_of
from ..state.context import now_utc
from ..state.platform import platform_client
from . import processes
from .api import LocalApi
from .processes import READY
from .state import State
from .user_secrets import UserSecrets

POLL_S = 0.2
LOOK_S = 10.0
KILL_S = 5.0
HEALTHY_S = 60.0
LONGEST_PAUSE_S = 60.0
WORKLOAD, CONSUMERS = "workload.json", "consumers.json"


class WorkloadFile(msgspec.Struct, frozen=True):
    """The workload. ``group`` is the resource's manifest, and ``cluster`` that of a Cluster that requires a login."""

    group: dict[str, Any]
    bootstrap: str
    command: list[str]
    environment: dict[str, str]
    mark: str
    replicas: int | None
    """None: as many as the lag needs."""
    grace_s: float
    cluster: dict[str, Any] | None = None
    login: str = ""
    """Another one restarts the consumers."""

    @property
    def started_with(self) -> tuple[object, ...]:
        """What consumers read only when they start."""
        return self.command, self.environment, self.login


class Running(msgspec.Struct, frozen=True):
    """The state of the consumers."""

    wanted: int = 0
    running: int = 0
    failure: str = ""


def pause_after(failures: int) -> float:
    """Seconds until a consumer restarts after this many ends in a row."""
    return float(min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 10)))


class Consumer:
    """A slot for one consumer, with its present process. Blocking."""

    def __init__(self, number: int, folder: Path) -> None:
        self.log = folder / f"{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        self.begun = 0.0
        self.next = 0.0
        self.failure = ""

    def tend(self, workload: WorkloadFile, now: float) -> None:
        """Start the process if there is none and it is time. Note its end."""
        if self.process is None:
            if now >= self.next:
                self._start(workload, now)
            return
        if (status := self.process.poll()) is None:
            if now - self.begun >= HEALTHY_S:
                self.failures = 0
                self.failure = ""
            return
        self.process = None
        self._ended(f"{workload.command[0]} ended with status {status}: {_last_line(self.log)}", now)

    def _start(self, workload: WorkloadFile, now: float) -> None:
        environment = {**os.environ, **workload.environment, processes.MARK: workload.mark}
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    workload.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )
            self.begun = now
        except OSError as error:
            self._ended(f"{workload.command[0]} cannot be started: {error.strerror}", now)

    def _ended(self, why: str, now: float) -> None:
        self.failures += 1
        self.failure = why
        self.next = now + pause_after(self.failures)


class Supervisor:
    """The consumers of one workload. Blocking; ``run`` until interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = (folder / WORKLOAD).read_bytes()
        self.workload = msgspec.json.decode(self.text, type=WorkloadFile)
        self.consumers: list[Consumer] = []
        self.wanted: int | None = None
        self.history = History()
        self.admin: KafkaAdmin | None = None
        self.next_look = 0.0

    def run(self) -> None:
        processes.stop_marked(self.workload.mark)  # left by a killed supervisor
        print(f"{READY}consumers={self.folder.name}", flush=True)
        try:
            while True:
                self._step(time.monotonic())
                time.sleep(POLL_S)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._stop(self.consumers)
            if self.admin is not None:
                self.admin.close()

    def _step(self, now: float) -> None:
        self._read_again()
        if now >= self.next_look:
            self.next_look = now + LOOK_S
            self.wanted = self._wanted()
        wanted = self.wanted or 0
        if len(self.consumers) > wanted:
            self._stop(self.consumers[wanted:])
            del self.consumers[wanted:]
        while len(self.consumers) < wanted:
            self.consumers.append(Consumer(len(self.consumers), self.folder))
        for consumer in self.consumers:
            consumer.tend(self.workload, now)
        self._say(wanted)

    def _read_again(self) -> None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if (text := (self.folder / WORKLOAD).read_bytes()) == self.text:
                return
            before, self.workload, self.text = (
                self.workload,
                msgspec.json.decode(text, type=WorkloadFile),
                text,
            )
            self.next_look = 0.0
            if before.started_with != self.workload.started_with:
                self._stop(self.consumers)
                self.consumers.clear()

    def _wanted(self) -> int:
        if self.workload.replicas is not None:
            return self.workload.replicas
        group = decode_as(ConsumerGroup, self.workload.group)
        scaling = group.spec.workload.scaling if group.spec.workload is not None else None
        assert scaling is not None
        spec = msgspec.structs.replace(group.spec, start_at=None)  # the command makes first commits
        try:
            client = self._client()
            if self.admin is None or self.admin.bootstrap != client.bootstrap:
                self.admin = KafkaAdmin(client.bootstrap, client_id="millstream-local")
            self.admin.security = client.security
            seen = observe(self.admin, [msgspec.structs.replace(group, spec=spec)])[group.group_id]
            if isinstance(seen, Problem):
                raise AdminError(seen.message)
        except AdminError as error:
            print(error, file=sys.stderr, flush=True)
            return scaling.min if self.wanted is None else self.wanted
        count, self.history = decide(scaling, load_of(group, seen), self.wanted, self.history, now_utc())
        return count

    def _client(self) -> ClientConfig:
        """How this process connects, which is not a consumer: as the operator."""
        cluster = None if self.workload.cluster is None else decode_as(Cluster, self.workload.cluster)
        if cluster is None or cluster.status.platform is None:
            return ClientConfig(self.workload.bootstrap)
        return platform_client(LocalApi(State(), UserSecrets(self.folder.parents[1] / "users")), cluster)

    def _say(self, wanted: int) -> None:
        running = sum(consumer.process is not None for consumer in self.consumers)
        failure = next((consumer.failure for consumer in self.consumers if consumer.failure), "")
        said = msgspec.json.encode(Running(wanted, running, failure))
        file = self.folder / CONSUMERS
        with contextlib.suppress(OSError):  # a full disk: the consumers matter more
            if not file.exists() or file.read_bytes() != said:
                aside = file.with_suffix(".new")
                aside.write_bytes(said)
                aside.replace(file)

    def _stop(self, consumers: list[Consumer]) -> None:
        """Send SIGTERM to all, and SIGKILL to the rest after the grace period."""
        alive = [consumer.process for consumer in consumers if consumer.process is not None]
        for process in alive:
            process.terminate()
        until = time.monotonic() + self.workload.grace_s
        for process in alive:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(KILL_S)


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        if lines := [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]:
            return lines[-1]
    return "it said nothing"


def main() -> int:
    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        Supervisor(Path(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
