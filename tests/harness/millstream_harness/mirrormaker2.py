"""Apache Kafka's MirrorMaker 2 as a real process, with the JVM options of Kafka's own `connect-mirror-maker.sh`.

It copies topics from the cluster "source" to the cluster "target" under their own names, and the positions of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .daemon import Daemon
from .java import KAFKA_VERSION, java_command, kafka_jars
from .tools import missing

JVM = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
PAIR = "source->target"
STARTED = "Kafka MirrorMaker started"
SETTINGS = {
    "clusters": "source,target",
    f"{PAIR}.enabled": "true",
    "target->source.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    **dict.fromkeys(
        (
            "replication.factor",
            "offset-syncs.topic.replication.factor",
            "checkpoints.topic.replication.factor",
            "heartbeats.topic.replication.factor",
            "config.storage.replication.factor",
            "offset.storage.replication.factor",
            "status.storage.replication.factor",
        ),
        "1",
    ),
    "sync.group.offsets.enabled": "true",
    **dict.fromkeys(
        (
            "sync.group.offsets.interval.seconds",
            "emit.checkpoints.interval.seconds",
            "refresh.topics.interval.seconds",
            "refresh.groups.interval.seconds",
            "sync.topic.configs.interval.seconds",
        ),
        "1",
    ),
}


class MirrorMaker2Process(Daemon):
    """One MirrorMaker 2; ``start``, ``stop`` (SIGTERM) and ``kill`` (SIGKILL) any number of times."""

    name = "MirrorMaker 2"
    start_timeout_s = 300.0  # for a JVM that loads all of Kafka Connect, on few cores
    stop_timeout_s = 60.0

    def __init__(
        self, folder: Path, source: str, target: str, config: Mapping[str, str] | None = None
    ) -> None:
        """``source`` and ``target`` are bootstrap addresses; ``config`` is added to SETTINGS."""
        super().__init__(folder, "mirrormaker2.log")
        self.config = {
            **SETTINGS,
            "source.bootstrap.servers": source,
            "target.bootstrap.servers": target,
            **(config or {}),
        }

    @property
    def properties(self) -> Path:
        return self.folder / "mm2.properties"

    @property
    def command(self) -> list[str]:
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        return java_command(main, str(self.properties), options=JVM, log="broker")

    def prepare(self) -> None:
        """Write mm2.properties; without MirrorMaker 2's jars the test is skipped."""
        if not list(kafka_jars().glob("connect-mirror-*.jar")):
            missing(f"MirrorMaker 2, which Apache Kafka {KAFKA_VERSION} has not published")
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{key}={value}\n" for key, value in self.config.items())
        self.properties.write_text("".join(lines).replace("\\", "\\\\"))

    def start(self) -> Self:
        """Start it and wait until it starts its connectors; RuntimeError with its output if it ends first."""
        self.prepare()
        begun = self.printed()
        self.launch(self.command)
        self.await_ready(lambda said: STARTED in said, begun)
        return self
