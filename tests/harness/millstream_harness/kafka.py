"""Apache Kafka as a real process, so that a test or a benchmark can run against it as against Millstream.

One node in KRaft's combined mode (broker and controller), with the JVM options of Kafka's own
`kafka-server-start.sh`. The interface is BrokerProcess's: start, stop, kill, restart, bootstrap, pid, said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from millstream_harness.broker import fixed_port
from millstream_harness.daemon import Daemon
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


class KafkaProcess(Daemon):
    """One Apache Kafka node over one folder; the storage is formatted when it is new."""

    name = "Kafka"
    start_timeout_s = 60.0
    stop_timeout_s = 30.0

    def __init__(
        self, folder: Path, config: Mapping[str, str] | None = None, features: Mapping[str, int] | None = None
    ) -> None:
        """``features`` are levels other than the newest, as ``kafka-storage.sh format --feature`` takes them."""
        super().__init__(folder, "broker.log")
        self.features = dict(features or {})
        self.config = dict(config or {})
        self.data = Path(self.config.get("log.dirs", str(folder / "data")))
        self.bootstrap = ""
        self.http = ""

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self.properties), options=JVM, log="broker")

    def prepare(self) -> None:
        """Write server.properties with ports that are free now, and format the data folder if it is new."""
        self.folder.mkdir(parents=True, exist_ok=True)
        broker, controller = fixed_port(), fixed_port()
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
            features = [f"--feature={name}={level}" for name, level in self.features.items()]
            asked = ("format", "-t", CLUSTER_ID, "-c", str(self.properties), *features)
            run(java_command("kafka.tools.StorageTool", *asked))

    def start(self) -> Self:
        """Start it and wait until it serves; raises RuntimeError with its output when it ends before."""
        self.prepare()
        begun = self.printed()
        self.launch(self.command)
        self.await_ready(READY.search, begun)
        return self
