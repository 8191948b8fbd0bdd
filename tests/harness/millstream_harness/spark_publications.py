"""Topics into which tables are published, and their content."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake

from millstream_harness.broker import AnyBroker

PARTITIONS = 3


class Topic:
    def __init__(self, broker: AnyBroker) -> None:
        self.bootstrap = broker.bootstrap
        self.name = f"published-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(10)

    def produce(self, value: bytes, partition: int, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(30) == 0

    def messages(self) -> list[Message]:
        """All messages, partition by partition."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none"})
        found: list[Message] = []
        try:
            for partition in range(PARTITIONS):
                part = TopicPartition(self.name, partition, 0)
                _, end = consumer.get_watermark_offsets(part, 10)
                consumer.assign([part])
                here: list[Message] = []
                while len(here) < end:
                    here += consumer.consume(min(1000, end - len(here)), 10)
                found += here
        finally:
            consumer.close()
        return found

    def ids(self) -> list[int]:
        return sorted(json.loads(message.value() or b"")["id"] for message in self.messages())


def publication(topic: Topic, folder: Path, rows: int) -> dict[str, Any]:
    """PUBLISH.json over a Delta table with this many rows."""
    table = pyarrow.table({"id": range(rows), "carrier": [f"carrier {row % 50}" for row in range(rows)]})
    write_deltalake(folder / "table", table)
    return {
        "name": "delays",
        "bootstrap": topic.bootstrap,
        "topic": topic.name,
        "source": {"format": "Delta", "path": str(folder / "table")},
        "staging": str(folder / "publications"),
    }
