"""A folder of manifests whose Clusters are closed, their Users, and clients that log in as these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from millstream_harness.broker import fixed_port
from millstream_harness.command import millstream
from millstream_harness.local import Sandbox

DEFAULTS = {"tls": "Enabled", "authentication": {"type": "ScramSha512"}}


class Closed(Sandbox):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.east = fixed_port()
        self.folder = folder

    def closed(self, name: str, port: int, **more: Any) -> None:
        listeners = [{"name": "internal", "type": "Internal", "port": port}]
        spec = {"listeners": listeners, "listenerDefaults": DEFAULTS, "authorization": {"type": "Simple"}}
        self.write("Cluster", name, json.dumps({**spec, **more}))

    def user(self, name: str, cluster: str, *operations: str) -> None:
        acls = [
            {"resource": {"type": "topic", "name": "orders"}, "operations": list(operations)},
            {"resource": {"type": "group", "name": "*"}, "operations": ["Read"]},
        ]
        spec = {
            "clusterRef": {"name": cluster},
            "authentication": {"type": "ScramSha512"},
            "authorization": {"type": "Simple", "acls": acls},
            "quotas": {"producerByteRate": 100_000_000},
        }
        self.write("User", name, json.dumps(spec))

    def settings(self, user: str) -> dict[str, Any]:
        """Those of librdkafka, as `millstream user config` prints them."""
        options = ("--data", str(self.data), "--format", "librdkafka", "--files", str(self.folder / user))
        ended = millstream("user", "config", user, *options, bootstrap=None)
        assert ended.returncode == 0, ended.stderr
        return dict(line.split("=", 1) for line in ended.stdout.decode().splitlines())

    def produce(self, user: str, value: str) -> None:
        assert self.refusal(user, value) == ""

    def refusal(self, user: str, value: str) -> str:
        """Produce a record; why that failed, "" if it did not."""
        failed: list[str] = []
        producer = Producer({**self.settings(user), "message.timeout.ms": 20_000})
        producer.produce("orders", value, on_delivery=lambda error, _: failed.append(str(error or "")))
        assert producer.flush(30) == 0
        return failed[0]

    def read(self, user: str, count: int) -> list[str]:
        config = {**self.settings(user), "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = Consumer({**config, "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        found = [message.value() for message in consumer.consume(count, 30)]
        consumer.close()
        return sorted((value or b"").decode() for value in found)

    def secrets(self) -> set[str]:
        return {folder.name for folder in (self.data / "users").iterdir()}
