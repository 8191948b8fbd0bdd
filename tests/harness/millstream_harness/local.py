"""The local runtime over a folder of manifests and a data folder, and `millstream local` as users run it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from millstream_harness.broker import fixed_port
from millstream_harness.command import in_this_process
from millstream_operator.local import processes
from millstream_operator.local.processes import wait_for
from millstream_operator.local.runtime import LocalRuntime, Reporter

DEADLINE_S = 120.0
LOCAL = [str(Path(sys.executable).parent / "millstream"), "local"]


class Sandbox:
    """Manifests and a data folder of one test, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.data = folder / "data"
        self.said: list[str] = []
        self.port = fixed_port()

    def runtime(self) -> LocalRuntime:
        self.said = []
        return LocalRuntime(self.data, Reporter(say=self.said.append))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command, in this process: to start a Python takes longer than most commands. `run_alone` does."""
        with mock.patch.dict(os.environ, environment):
            return in_this_process("local", *arguments, "--data", str(self.data))

    def run_alone(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, as a user starts it."""
        return subprocess.run(
            [*LOCAL, *arguments, "--data", str(self.data)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def write(self, kind: str, name: str, spec: str, annotations: str = "{}") -> None:
        metadata = f"{{name: {name}, annotations: {annotations}}}"
        head = f"apiVersion: millstream.dev/v1alpha1\nkind: {kind}\nmetadata: {metadata}\n"
        (self.manifests / f"{kind}-{name}.yaml").write_text(f"{head}spec: {spec}\n")

    def cluster(self, name: str = "west", config: str = "{}") -> None:
        listeners = f"[{{name: internal, type: Internal, port: {self.port}}}]"
        self.write("Cluster", name, f"{{listeners: {listeners}, config: {config}}}")

    def pid(self, daemon: str = "broker/default/west/0") -> int:
        state = json.loads((self.data / "state.json").read_text())
        pid: int = state["daemons"][daemon]["pid"]
        return pid

    def kill(self, daemon: str = "broker/default/west/0") -> None:
        """SIGKILL, and wait until the process has ended: until then it counts as alive."""
        pid = self.pid(daemon)
        os.kill(pid, signal.SIGKILL)
        assert processes.wait_for(lambda: processes.started_at(pid) is None, DEADLINE_S)

    def found(self, kind: str, name: str) -> dict[str, Any]:
        for resource in LocalRuntime(self.data).status().resources:
            if (resource["kind"], resource["metadata"]["name"]) == (kind, name):
                return resource
        raise AssertionError(f"there is no {kind} {name}")

    def ready(self, kind: str, name: str) -> tuple[str, str, str]:
        conditions = self.found(kind, name)["status"]["conditions"]
        (ready,) = (entry for entry in conditions if entry["type"] == "Ready")
        return ready["status"], ready["reason"], ready["message"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, key=str(number % 7), value=json.dumps({"n": number}))
    assert producer.flush(60) == 0


def partitions(bootstrap: str, topic: str) -> int:
    """How many partitions the topic has; 0 if there is none of that name."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    return len(topics[topic].partitions) if topic in topics else 0


def consume(bootstrap: str, topic: str, count: int, group: str = "test") -> list[int]:
    """The numbers that `produce` wrote, sorted."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{group}-{topic}", "auto.offset.reset": "earliest"}
    )
    numbers: list[int] = []

    def enough() -> bool:
        numbers.extend(json.loads(message.value() or b"")["n"] for message in consumer.consume(500, 0.5))
        return len(numbers) >= count

    try:
        consumer.subscribe([topic])
        wait_for(enough, DEADLINE_S)
    finally:
        consumer.close()
    return sorted(numbers)


def brokers_of(data: Path) -> list[int]:
    """The processes that were started with a file in this data folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(bytes(data / "clusters")) for word in command):
                found.append(int(folder.name))
    return found
