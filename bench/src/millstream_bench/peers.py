"""The two brokers, started alike: one process each, with defaults except for the log's place.

Both keep their logs in a folder of the same file system: tmpfs (/dev/shm), so that the disk's write-back
does not decide, or the disk, if a workload says so. Neither shares the machine with other work,
and only one of them runs at a time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream_bench import process, wire
from millstream_bench.perf import TlsAddress
from millstream_harness.broker import EXECUTABLE, BrokerProcess, fixed_port
from millstream_harness.kafka import SERVER_JVM, KafkaProcess
from millstream_harness.secured_kafka import Authority, kafka_with_login

MILLSTREAM, KAFKA, MIRRORMAKER2 = "millstream", "kafka", "mirrormaker2"
LABELS = {MILLSTREAM: "Millstream", KAFKA: "Apache Kafka", MIRRORMAKER2: "MirrorMaker 2"}
TMPFS, DISK = Path("/dev/shm"), Path(tempfile.gettempdir())

TLS_LISTENER = "TLS"
TLS_PREFIX = "listener.name.tls.ssl.keystore."


def broker_python() -> str:
    """The version of the interpreter that runs our broker."""
    command = os.environ.get(EXECUTABLE) or sys.executable
    python = Path(command).with_name("python3")
    statement = "import platform; print(platform.python_version())"
    return subprocess.check_output([python, "-c", statement], text=True).strip()


class Peer:
    """One of the two brokers over one folder. ``login``: Kafka has a listener beside its open one, for clients that
    log in as secured_kafka.USER. ``tls``: either has one with TLS, with a certificate of the same kind."""

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Mapping[str, str] | None = None,
        *,
        login: bool = False,
        tls: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        # Kafka waits three seconds for further members of a new group; no workload is about that.
        settings = {"group.initial.rebalance.delay.ms": "0", **(config or {})}
        self._authority: Authority | None = None
        if tls:
            self._authority = Authority(folder / "authority")
            pem = self._authority.issue("broker")
            settings |= {f"{TLS_PREFIX}type": "PEM", f"{TLS_PREFIX}location": str(pem)}
        self._tls_port = fixed_port()
        self._broker: BrokerProcess | KafkaProcess
        if name == KAFKA:
            self._broker = (
                kafka_with_login(folder, settings)
                if login
                else KafkaProcess(
                    folder, settings, listeners={TLS_LISTENER: "SSL"} if tls else None, jvm=SERVER_JVM
                )
            )
        else:
            port = fixed_port()  # a fixed one, so that clients can connect before it reports that it is ready
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            if tls:
                listeners += f",{TLS_LISTENER}://127.0.0.1:{self._tls_port}"
                settings["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,{TLS_LISTENER}:SSL"
            self._broker = BrokerProcess(folder, {"listeners": listeners, **settings})
            self._broker.bootstrap = f"127.0.0.1:{port}"

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def login_address(self) -> str | None:
        """Where clients log in; None without such a listener. Known after ``prepare``."""
        addresses = self._broker.addresses if isinstance(self._broker, KafkaProcess) else {}
        return addresses.get("CLEAR")

    @property
    def tls_address(self) -> TlsAddress:
        """Where clients connect by TLS. Known after ``prepare``."""
        assert self._authority is not None
        if isinstance(self._broker, KafkaProcess):
            return TlsAddress(self._broker.addresses[TLS_LISTENER], self._authority.certificate)
        return TlsAddress(f"127.0.0.1:{self._tls_port}", self._authority.certificate)

    @property
    def pid(self) -> int:
        return self._broker.pid

    def prepare(self) -> None:
        """Prepare a first start: Kafka formats its storage."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self._broker, KafkaProcess):
            self._broker.prepare()

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._broker.launch(self._broker.command)

    def start(self) -> None:
        """Prepare, launch, and wait until a record is acknowledged."""
        self.prepare()
        self.launch()
        wire.first_acknowledgement(self.bootstrap, "started", alive=self.alive)

    def alive(self) -> None:
        """RuntimeError with the broker's output if it has ended."""
        running = self._broker.process
        if running is not None and running.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {running.returncode}:\n{self._broker.said()}")

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()

    def cpu_seconds(self) -> float:
        return process.cpu_seconds(self.pid)

    def resident_mb(self) -> float:
        return process.resident_mb(self.pid)


@contextmanager
def new_peer(
    name: str, where: Path = TMPFS, config: Mapping[str, str] | None = None, *, tls: bool = False
) -> Iterator[Peer]:
    """A peer over a new folder, not yet started; killed and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"millstream-bench-{name}-", dir=where))
    peer = Peer(name, folder, config, tls=tls)
    try:
        yield peer
    finally:
        peer.kill()
        shutil.rmtree(folder, ignore_errors=True)
