"""Load on a cluster, and checks for afterwards."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import AnyCluster

QUICK = {
    "socket.timeout.ms": 5000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}
PATIENT = {**QUICK, "socket.timeout.ms": 60_000}
"""For an AdminClient, which repeats no call: this timeout ends a request even if the call itself allows more."""


def create(
    cluster: AnyCluster[Any], name: str, partitions: int = 3, replicas: int = 3, **config: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result(60)


class Writer:
    """Produces numbers with acks=all and records which were acknowledged."""

    def __init__(self, cluster: AnyCluster[Any], topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failures: list[KafkaError] = []
        self.times: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 60_000,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 50,
                **QUICK,
            }
        )

    def write(self, count: int, timeout: float = 60.0) -> None:
        """Write this many more, and wait until all are acknowledged."""
        for _ in range(count):
            self.send()
        assert self._producer.flush(timeout) == 0
        assert not self.failures
        assert len(self.acknowledged) == self.sent

    def send(self, partition: int = -1) -> None:
        number, self.sent = self.sent, self.sent + 1

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self.failures.append(error)
            else:
                self.acknowledged.add(number)
                self.times.append(time.monotonic())

        self._producer.produce(self.topic, str(number).encode(), partition=partition, on_delivery=delivered)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


def read_all(cluster: AnyCluster[Any], topic: str) -> list[int]:
    """Every number in the topic, partition by partition, in its order."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUICK}
    )
    try:
        numbers = []
        for one in cluster.partitions(topic):
            where = TopicPartition(topic, one.partition_index, 0)
            _, end = consumer.get_watermark_offsets(where, timeout=60)
            consumer.assign([where])
            deadline, position = time.monotonic() + 60, 0
            while position < end:
                assert time.monotonic() < deadline, f"{where} is read up to {position} of {end}"
                for message in consumer.consume(1000, 0.5):
                    value, offset = message.value(), message.offset()
                    assert message.error() is None
                    assert value is not None
                    assert offset is not None
                    numbers.append(int(value))
                    position = offset + 1
            consumer.unassign()
        return numbers
    finally:
        consumer.close()


def holds(cluster: AnyCluster[Any], writer: Writer) -> None:
    """Whether each acknowledged number is in the topic once."""
    numbers = read_all(cluster, writer.topic)
    assert len(numbers) == len(set(numbers))
    assert writer.acknowledged <= set(numbers)
