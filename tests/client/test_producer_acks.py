"""A producer's acknowledgements and codecs, as a broker's disk and another client see them, and its end without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

import millstream
from millstream.errors import NotDelivered
from millstream.producing.settings import COMPRESSIONS
from millstream.topics import create_topic
from millstream_harness.cluster import until
from millstream_harness.delivering import deliver, deliver_async
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique
from millstream_kafka.batch import BatchHeader, iter_batches
from millstream_kafka.compression import Compression

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
ACKS = (0, 1, "all")
RECORDS = 200


def batches(broker: InProcessBroker, topic: str, partition: int) -> list[BatchHeader]:
    """The batches on the broker's disk."""
    log = broker.data / f"{topic}-{partition}" / "00000000000000000000.log"
    return [header for _, header in iter_batches(log.read_bytes())]


async def read(broker: InProcessBroker, topic: str, partition: int, count: int) -> list[Any]:
    """The first records of a partition, read by aiokafka, which has codecs of its own."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition)])
        return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("acks", ACKS)
async def test_every_codec_with_every_kind_of_acknowledgement(
    shared_broker: InProcessBroker, topic: str, acks: Any, compression: Any
) -> None:
    text = "departed from the gate, " * 20
    # One batch: a codec makes little of a single record.
    settings: Any = {"acks": acks, "compression": compression, "linger_ms": 10_000}
    with millstream.Producer(shared_broker.bootstrap, **settings) as producer:
        deliveries = [
            producer.submit(topic, f"{text}{number}", f"k{number}", partition=1, headers={"n": str(number)})
            for number in range(RECORDS)
        ]
    reports = [delivery.result(0) for delivery in deliveries]
    assert {(report.topic, report.partition) for report in reports} == {(topic, 1)}
    assert [report.offset for report in reports] == ([-1] * RECORDS if acks == 0 else list(range(RECORDS)))

    records = await read(shared_broker, topic, 1, RECORDS)
    assert [(one.key, one.value, one.headers) for one in records] == [
        (f"k{number}".encode(), f"{text}{number}".encode(), (("n", str(number).encode()),))
        for number in range(RECORDS)
    ]
    assert [report.timestamp for report in reports] == [one.timestamp for one in records]

    written = batches(shared_broker, topic, 1)
    assert sum(header.record_count for header in written) == RECORDS
    assert {header.compression for header in written} == {Compression.from_name(compression)}
    stored = sum(header.size for header in written)
    assert stored < RECORDS * len(text) / 4 if compression != "none" else stored > RECORDS * len(text)
    assert {header.producer_id >= 0 for header in written} == {acks == "all"}  # idempotent


def test_a_report_without_acknowledgements_says_only_that_the_record_was_sent(
    shared_broker: InProcessBroker,
) -> None:
    """No offset, the record's own timestamp instead of the log's, and no sign of records that the broker refuses."""
    cluster = millstream.Cluster(shared_broker.bootstrap)
    stamped, small = unique("stamped"), unique("small")
    create_topic(cluster, stamped, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    create_topic(cluster, small, partitions=1, config={"max.message.bytes": "200"})
    own, begun = 1_700_000_000_000, time.time() * 1000
    with millstream.Producer(cluster, acks=0) as producer:
        sent = producer.submit(stamped, b"one", timestamp=own).result(20)
        assert sent == millstream.Delivery(stamped, 0, -1, own)
        refused = producer.submit(small, b"x" * 1000, timestamp=own).result(20)
        assert refused == millstream.Delivery(small, 0, -1, own)
        producer.send(small, b"y" * 1000)
    until(lambda: len(batches(shared_broker, stamped, 0)) == 1, "the record is in the log")
    with millstream.Producer(cluster, acks=1) as producer:
        sent = producer.submit(stamped, b"two", timestamp=own).result(20)
        assert (sent.partition, sent.offset) == (0, 1)
        assert sent.timestamp > begun - 60_000
        with pytest.raises(NotDelivered, match=rf"1 of {small}-0 .*Message size too large"):
            producer.submit(small, b"x" * 1000).result(20)
    assert batches(shared_broker, small, 0) == []


@pytest.mark.parametrize("acks", ACKS)
def test_a_block_whose_broker_was_killed_names_what_it_could_not_deliver(
    start_broker: StartBroker, acks: Any
) -> None:
    broker = start_broker()
    cluster = millstream.Cluster(broker.bootstrap)
    for topic in ("orders", "bills"):
        create_topic(cluster, topic, partitions=2)

    def block() -> None:
        with millstream.Producer(cluster, acks=acks, delivery_timeout_s=3) as producer:
            deliver(producer, "orders", key=b"k", partition=0)
            deliver(producer, "bills", key=b"k", partition=1)
            broker.kill()
            for number in range(5):
                producer.send("orders", b"lost", f"order {number}", partition=0)
            producer.send("orders", b"lost", partition=1)
            producer.send("bills", b"lost", b"\xff", partition=1)

    with pytest.raises(NotDelivered) as lost:
        block()
    assert lost.value.retriable
    found = {(one.topic, one.partition): (one.records, one.keys) for one in lost.value.undelivered}
    assert found == {
        ("orders", 0): (5, (b"order 0", b"order 1", b"order 2")),
        ("orders", 1): (1, (None,)),
        ("bills", 1): (1, (b"\xff",)),
    }
    said = str(lost.value)
    assert said.startswith("7 records were not delivered: ")
    for part in (
        "5 of orders-0 (keys 'order 0', 'order 1', 'order 2', …): Local: Message timed out",
        "1 of orders-1 (keys none): Local: Message timed out",
        r"1 of bills-1 (keys '\xff'): Local: Message timed out",
    ):
        assert part in said


async def test_an_async_block_whose_broker_was_killed_names_what_it_could_not_deliver(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    create_topic(millstream.Cluster(broker.bootstrap), "orders", partitions=1)

    async def block() -> None:
        async with millstream.AsyncProducer(broker.bootstrap, delivery_timeout_s=3) as producer:
            await deliver_async(producer, "orders")
            broker.kill()
            for number in range(3):
                await producer.send("orders", b"lost", f"k{number}")

    with pytest.raises(NotDelivered, match=r"3 records were not delivered: 3 of orders.* \(keys 'k0', 'k1'"):
        await block()
