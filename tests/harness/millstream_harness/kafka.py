"""Apache Kafka as a real process, for tests and benchmarks that run on both brokers.

One node in KRaft's combined mode (broker and controller), or one more broker of its cluster. The interface is
BrokerProcess's: start, stop, kill, restart, bootstrap, pid, said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from millstream_harness.broker import fixed_port
from millstream_harness.daemon import Daemon
from millstream_harness.java import OF_A_TEST, java_command, run

SERVER_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""The options of Kafka's own `kafka-server-start.sh`, which benchmarks use."""
CLUSTER_ID = "bWlsbHN0cmVhbS10ZXN0cw"
READY = re.compile(r"Kafka Server started")


class KafkaProcess(Daemon):
    """One Apache Kafka node over one folder; a new folder is formatted first."""

    name = "Kafka"

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        cluster_id: str = CLUSTER_ID,
        number: int = 1,
        joins: KafkaProcess | None = None,
        jvm: Sequence[str] = OF_A_TEST,
    ) -> None:
        """A node with these settings.

        ``features``: levels other than the newest, for ``kafka-storage.sh format --feature``. ``users``: for its
        ``--add-scram``. ``listeners``: security protocols of further listeners by name. ``cluster_id``: a second
        cluster needs another one, or mirrors take both for the same. ``number``: its id. ``joins``: the node of the
        controller, if it is another, which has started. ``jvm``: options of its JVM.
        """
        super().__init__(folder, "broker.log")
        self.protocols = dict(listeners or {})
        self.users = users
        self.cluster_id = cluster_id
        self.number, self.joins = number, joins
        self.voter = ""
        """The controller of the cluster, as in `controller.quorum.voters`."""
        self.jvm = jvm
        self.addresses: dict[str, str] = {}
        """Addresses of these listeners by name."""
        self.features = dict(features or {})
        self.config = dict(config or {})
        self.data = Path(self.config.get("log.dirs", str(folder / "data")))
        self.bootstrap = ""
        self.http = ""
        self._kept: tuple[int, int] | None = None

    def keep_port(self) -> Self:
        """Before the first start: choose fixed ports, so that clients find the broker after restarts."""
        self._kept = fixed_port(), fixed_port()
        return self

    @property
    def properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self.properties), options=self.jvm, log="broker")

    def prepare(self) -> None:
        """Write server.properties with ports that are free now, and format the data folder if it is new."""
        self.folder.mkdir(parents=True, exist_ok=True)
        broker, controller = self._kept or (fixed_port(), fixed_port())
        self.bootstrap = f"127.0.0.1:{broker}"
        self.addresses = {name: f"127.0.0.1:{fixed_port()}" for name in self.protocols}
        listeners = {"PLAINTEXT": self.bootstrap, **self.addresses}
        if self.joins is None:
            listeners["CONTROLLER"] = f"127.0.0.1:{controller}"
            self.voter = f"{self.number}@127.0.0.1:{controller}"
        else:
            self.voter = self.joins.voter
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self.protocols}
        settings = {
            "process.roles": "broker,controller" if self.joins is None else "broker",
            "node.id": str(self.number),
            "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voter,
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **self.config,
            "log.dirs": str(self.data),
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (self.data / "meta.properties").exists():
            features = [f"--feature={name}={level}" for name, level in self.features.items()]
            users = [part for user in self.users for part in ("--add-scram", user)]
            asked = ("format", "-t", self.cluster_id, "-c", str(self.properties), *features, *users)
            run(java_command("kafka.tools.StorageTool", *asked))

    def start(self) -> Self:
        """Start it and wait until it serves; RuntimeError with its output if it ends first."""
        self.prepare()
        begun = self.printed()
        self.launch(self.command)
        self.await_ready(READY.search, begun)
        return self
