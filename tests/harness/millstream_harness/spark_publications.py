"""Topics into which tables are published, and their content."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake

from millstream_harness.broker import AnyBroker
from millstream_harness.cluster import until

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
        """All committed messages, partition by partition, that are not behind an open transaction."""
        found: list[Message] = []
        with self._consumer("read_committed") as consumer:
            for partition in range(PARTITIONS):
                consumer.assign([TopicPartition(self.name, partition, 0)])
                while True:
                    (message,) = consumer.consume(1, 30)
                    if (error := message.error()) is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        break
                    found.append(message)
        return found

    def end(self) -> int:
        """The number of offsets that the topic has used, in all partitions."""
        with self._consumer("read_uncommitted") as consumer:
            parts = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(part, 30)[1] for part in parts)

    def settled(self) -> None:
        """Wait until no transaction is open: the markers of one that is committed follow."""
        with self._consumer("read_committed") as committed, self._consumer("read_uncommitted") as all_of_it:
            for partition in range(PARTITIONS):
                part = TopicPartition(self.name, partition)
                until(
                    lambda part=part: (  # type: ignore[misc]
                        committed.get_watermark_offsets(part, 30) == all_of_it.get_watermark_offsets(part, 30)
                    ),
                    f"no transaction is open in partition {partition}",
                )

    @contextlib.contextmanager
    def _consumer(self, isolation: str) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "isolation.level": isolation,
                "enable.partition.eof": True,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def ids(self) -> list[int]:
        self.settled()
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
