"""The storage engine in a broker: background compaction, and the state after a kill."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually, log_bytes

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]

KEYS = 10
RECORDS = 3000


def read_table(bootstrap: str) -> dict[str, int]:
    """The final value of each key for a reader from the start; checks that offsets rise."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    partition = TopicPartition("latest", 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=60)
    consumer.assign([partition])
    found: dict[str, int] = {}
    offset = -1
    while offset < end - 1:
        (message,) = consumer.consume(1, timeout=60)
        assert message.error() is None
        key, value, at = message.key(), message.value(), message.offset()
        assert key is not None
        assert value is not None
        assert at is not None
        assert at > offset
        offset = at
        found[key.decode()] = int(value)
    consumer.close()
    return found


def test_a_compacted_topic_stays_small_and_right(start_broker: StartBroker) -> None:
    broker = start_broker({"log.cleaner.backoff.ms": "20", "log.cleaner.min.cleanable.ratio": "0.1"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"cleanup.policy": "compact", "segment.bytes": "16384"}
    admin.create_topics([NewTopic("latest", 1, 1, config=config)])["latest"].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 10})
    for i in range(RECORDS):
        producer.produce("latest", key=f"k{i % KEYS}", value=str(i))
    assert producer.flush(60) == 0
    expected = {f"k{i % KEYS}": i for i in range(RECORDS - KEYS, RECORDS)}
    eventually(lambda: log_bytes(broker.data / "latest-0"), lambda size: size < 3 * 16384, "a compacted log")
    assert read_table(broker.bootstrap) == expected
    broker.kill()
    broker.start()
    assert read_table(broker.bootstrap) == expected
