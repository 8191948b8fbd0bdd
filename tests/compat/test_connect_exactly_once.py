"""A source connector with exactly-once support reads each line of a file once, while workers and brokers are killed."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.broker import fixed_port
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.java import ROOT, fetched, java_command, running
from millstream_harness.scenario import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

JARS = ROOT / ".jars" / "frameworks"
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC = "lines"
PAUSE_S = 0.002
"""Between two lines."""
LINES = 300
"""At least, before each kill."""
ARRIVAL_S = 240.0


def worker(bootstrap: str, port: int, folder: Path) -> list[str]:
    """The command of a worker that is alone in its group."""
    config = folder / "worker.properties"
    properties = {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "exactly.once.source.support": "enabled",
        **{f"{name}.storage.topic": f"connect-{name}" for name in ("config", "offset", "status")},
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "only_scan",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return java_command(MAIN, str(config), classpath=f"{fetched(JARS)}/*")


def request(port: int, path: str, body: object = None) -> object:
    """The response of the worker; None as long as it does not serve."""
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data,
        {"Content-Type": "application/json"},
        method="GET" if data is None else "PUT",
    )
    try:
        with urllib.request.urlopen(sent, timeout=30) as response:
            return json.load(response)
    except (urllib.error.URLError, OSError):
        return None


class Lines:
    """The committed records of the topic, in order."""

    def __init__(self, bootstrap: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
        self.consumer = Consumer({**config, "auto.offset.reset": "earliest", "log_level": 0})
        self.consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.found: list[str] = []

    def number(self) -> int:
        for message in self.consumer.consume(1000, timeout=0.5):
            if message.error() is None:
                self.found.append(message.value().decode())
        return len(self.found)


class Writer:
    """Appends numbered lines to a file until the end of its block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with self.path.open("a", buffering=1) as file:
            for number in itertools.count():
                if self.ended.wait(PAUSE_S):
                    return
                file.write(f"line {number}\n")
                self.written += 1

    def __enter__(self) -> Writer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def test_each_line_of_a_file_arrives_once(tmp_path: Path) -> None:
    """In each round, a broker and then the worker are killed in the middle of their work."""
    port, source = fixed_port(), tmp_path / "lines.txt"
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(source),
        "topic": TOPIC,
        "transaction.boundary": "poll",
    }
    with ClusterProcesses(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(60)
        lines = Lines(cluster.bootstrap)
        command, log = worker(cluster.bootstrap, port, tmp_path), tmp_path / "log"

        def more() -> None:
            before = lines.number()
            eventually(lines.number, lambda now: now > before + LINES, "more lines", ARRIVAL_S)

        with Writer(source) as writer:
            for broker in cluster.brokers.values():
                with running(command, log):  # it is killed at the end
                    eventually(
                        lambda: request(port, "/connectors/lines/config", connector),
                        bool,
                        "the connector",
                        ARRIVAL_S,
                    )
                    more()
                    broker.kill()
                    more()
                    broker.start()
                    more()
        with running(command, log):
            eventually(lines.number, lambda now: now >= writer.written, f"{writer.written} lines", ARRIVAL_S)
        lines.number()
        assert lines.found == [f"line {number}" for number in range(writer.written)]
        lines.consumer.close()
