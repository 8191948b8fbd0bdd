"""Apache Kafka as a real process, so that a test or a benchmark can run against it as against Millstream.

One node in KRaft's combined mode (broker and controller), with the JVM options of Kafka's own
`kafka-server-start.sh`. The interface is BrokerProcess's: start, stop, kill, restart, bootstrap, pid, said.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from millstream_harness.java import java_command, run

JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
CLUSTER_ID = "bWlsbHN0cmVhbS10ZXN0cw"
READY = re.compile(r"Kafka Server started")
START_TIMEOUT_S = 60.0


class KafkaProcess:
    """One Apache Kafka node over one folder; the storage is formatted when it is new."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.config = dict(config or {})
        self.data = Path(self.config.get("log.dirs", str(folder / "data")))
        self.output = folder / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        self.http = ""

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self.properties), options=JVM, log="broker")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def prepare(self) -> None:
        """Write server.properties with ports that are free now, and format the data folder if it is new."""
        self.folder.mkdir(parents=True, exist_ok=True)
        broker, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **self.config,
            "log.dirs": str(self.data),
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (self.data / "meta.properties").exists():
            run(
                java_command(
                    "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties)
                )
            )

    def launch(self) -> None:
        """Start the process over a prepared folder without waiting for it."""
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT)

    def start(self) -> KafkaProcess:
        """Start it and wait until it serves; raises RuntimeError with its output when it ends before."""
        self.prepare()
        begun = self.output.stat().st_size if self.output.exists() else 0
        self.launch()
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        said = ""
        while time.monotonic() < deadline:
            said = self.output.read_bytes()[begun:].decode(errors="replace")
            if READY.search(said):
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"Kafka ended with status {self.process.returncode}:\n{said}")
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"Kafka was not ready in {START_TIMEOUT_S} s:\n{said}")

    def stop(self, timeout: float = 30.0) -> int:
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

    def restart(self) -> KafkaProcess:
        self.stop()
        return self.start()

    def said(self) -> str:
        """All it has printed so far."""
        return self.output.read_text(errors="replace")

    def __enter__(self) -> KafkaProcess:
        return self if self.process else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now: KRaft's quorum must know its port before it starts."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in sockets]
