"""The producer with a real broker: delivered records, reports, and errors."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage

import millstream
from millstream.connection import ATTEMPTS_S
from millstream.errors import (
    BadInput,
    BadPartition,
    BufferFull,
    Closed,
    MillstreamError,
    NotDelivered,
    NotSerializable,
    RecordTooLarge,
    UnknownTopic,
    Unreachable,
)
from millstream.producing.deliveries import Deliveries
from millstream.producing.partitioners import murmur2
from millstream.producing.producer import SERVE_EVERY
from millstream.topics import alter_topic, create_topic, watermarks
from millstream_harness.cluster import until
from millstream_harness.delivering import deliver
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]


def read(broker: InProcessBroker, topic: str, partitions: int = 3) -> list[KafkaMessage]:
    """All records of a topic, read by another client."""
    cluster = millstream.Cluster(broker.bootstrap)
    ends = watermarks(cluster, [(topic, number) for number in range(partitions)])
    left = sum(latest - earliest for earliest, latest in ends.values())
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[KafkaMessage] = []
    while len(found) < left:
        found += consumer.consume(left - len(found), 10)
    consumer.close()
    return found


def test_records_arrive_with_all_that_they_have(shared_broker: InProcessBroker, topic: str) -> None:
    with millstream.Producer(shared_broker.bootstrap, compression="zstd") as producer:
        headers = [("a", b"1"), ("a", None), ("b", "text")]
        producer.send(topic, b"value", b"key", headers=headers, partition=2, timestamp=1_700_000_000_000)
        producer.send(topic, key="tombstone")
    one, two = sorted(read(shared_broker, topic), key=lambda message: message.value() is None)
    assert (one.partition(), one.key(), one.value()) == (2, b"key", b"value")
    assert one.headers() == [("a", b"1"), ("a", None), ("b", b"text")]
    assert one.timestamp()[1] == 1_700_000_000_000
    assert (two.key(), two.value()) == (b"tombstone", None)


def test_reports_come_as_futures_and_callbacks(shared_broker: InProcessBroker, topic: str) -> None:
    told: list[tuple[millstream.Delivery | None, MillstreamError | None]] = []
    with millstream.Producer(shared_broker.bootstrap) as producer:
        futures = [producer.submit(topic, b"%d" % number, partition=1) for number in range(3)]
        assert [future.result(20).offset for future in futures] == [0, 1, 2]
        first = futures[0].result()
        assert (first.topic, first.partition) == (topic, 1)
        assert abs(first.timestamp / 1000 - time.time()) < 600
        producer.send(topic, b"3", partition=1, on_delivery=lambda *report: told.append(report))
    ((delivery, error),) = told
    assert error is None
    assert delivery is not None
    assert delivery.offset == 3


def test_callbacks_run_in_the_producers_own_thread(shared_broker: InProcessBroker, topic: str) -> None:
    """A sender may hold a lock that its callback takes, too."""
    threads: list[str] = []
    with millstream.Producer(shared_broker.bootstrap) as producer:
        for _ in range(20 * SERVE_EVERY):
            producer.send(
                topic, b"value", on_delivery=lambda *_: threads.append(threading.current_thread().name)
            )
        until(lambda: len(producer) == 0, "every report", 30)
    assert threads == ["millstream-producer"] * 20 * SERVE_EVERY


def test_senders_whose_producer_another_thread_closes(shared_broker: InProcessBroker, topic: str) -> None:
    producer = millstream.Producer(shared_broker.bootstrap, max_buffered_messages=2 * SERVE_EVERY)
    ends: list[type[BaseException]] = []

    def send() -> None:
        try:
            while True:
                producer.send(topic, b"value")
        except BaseException as error:
            ends.append(type(error))

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    until(lambda: producer._served > 8, "reports served by senders", 30)
    producer.close()
    for sender in senders:
        sender.join()
    assert ends == [Closed] * 4


def test_a_producer_that_is_closed_in_the_middle_of_a_report(
    shared_broker: InProcessBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal's handler, which may run while the sender serves reports."""
    reported = Deliveries.reported

    def interrupted(deliveries: Deliveries, error: Any, message: Any) -> None:
        reported(deliveries, error, message)
        if threading.current_thread() is threading.main_thread():
            producer.close()

    monkeypatch.setattr(Deliveries, "reported", interrupted)
    producer = millstream.Producer(shared_broker.bootstrap)
    sent, deadline = 0, time.monotonic() + 60
    with suppress(Closed):
        while time.monotonic() < deadline:  # the producer's own thread may serve any number of reports first
            producer.send(topic, b"value")
            sent += 1
    assert time.monotonic() < deadline
    assert len(read(shared_broker, topic)) == sent


def test_callbacks_in_the_clusters_settings_run_in_the_producers_own_thread(
    shared_broker: InProcessBroker, topic: str
) -> None:
    threads: set[str] = set()
    config = {"statistics.interval.ms": 1, "stats_cb": lambda _: threads.add(threading.current_thread().name)}
    with millstream.Producer(millstream.Cluster(shared_broker.bootstrap, config)) as producer:
        for _ in range(100 * SERVE_EVERY):
            producer.send(topic, b"value")
        until(lambda: len(producer) == 0 and bool(threads), "every report", 30)
        assert threads == {"millstream-producer"}


def test_reports_of_a_burst_need_no_further_record(shared_broker: InProcessBroker, topic: str) -> None:
    """While a sender without callbacks serves reports, the producer's own thread stands aside, but comes back."""
    with millstream.Producer(shared_broker.bootstrap, linger_ms=0) as producer:
        for records in (4 * SERVE_EVERY, 2 * SERVE_EVERY - 1, 1):
            for _ in range(records):
                producer.send(topic, b"value")
            until(lambda: len(producer) == 0, "every report", 30)


async def test_the_async_producer(shared_broker: InProcessBroker, topic: str) -> None:
    async with millstream.AsyncProducer(shared_broker.bootstrap, max_buffered_messages=10) as producer:
        for number in range(100):
            await producer.send(topic, b"%d" % number, partition=0)
        delivery = await (await producer.submit(topic, b"last", partition=0))
        assert delivery.offset == 100
        with pytest.raises(UnknownTopic):
            await producer.send("no-such", b"")
    with pytest.raises(Closed):
        await producer.send(topic, b"")
    assert len(read(shared_broker, topic)) == 101


def test_a_key_goes_where_java_clients_put_it(shared_broker: InProcessBroker, topic: str) -> None:
    """Murmur2 of librdkafka and of the Partitioner that runs in Python agree; the hashes are those of Kafka's tests."""
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF
    keys = [b"%d" % number * (number % 9) for number in range(1, 60)]
    with millstream.Producer(shared_broker.bootstrap) as producer:
        for key in keys:
            producer.send(topic, key=key)
    choose = millstream.Murmur2()
    for message in read(shared_broker, topic):
        assert message.partition() == choose(topic, message.key(), None, 3)


def test_partitioners(shared_broker: InProcessBroker, topic: str) -> None:
    def by_length(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return len(value or b"") % partitions

    with millstream.Producer(shared_broker.bootstrap, partitioner=millstream.RoundRobin()) as producer:
        assert [producer.submit(topic, key=b"k").result(20).partition for _ in range(4)] == [0, 1, 2, 0]
    with millstream.Producer(shared_broker.bootstrap, partitioner=by_length) as producer:
        assert producer.submit(topic, "four").result(20).partition == 1
        assert producer.submit(topic, "four", partition=2).result(20).partition == 2
    with millstream.Producer(shared_broker.bootstrap, partitioner=millstream.Random()) as producer:
        futures = [producer.submit(topic, key=b"k") for _ in range(200)]
        assert {future.result(20).partition for future in futures} == {0, 1, 2}


@pytest.mark.parametrize("wrong", [3, -1, None, True, 1.0, "0"])
def test_a_partitioner_that_returns_a_wrong_partition(
    shared_broker: InProcessBroker, topic: str, wrong: Any
) -> None:
    def broken(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> Any:
        return wrong

    with millstream.Producer(shared_broker.bootstrap, partitioner=broken) as producer:
        with pytest.raises(BadPartition) as said:
            producer.send(topic, b"")
        assert len(producer) == 0
    assert str(said.value) == (
        f"partitioner broken returned {wrong!r} for {topic}: return a number from 0 to 2: the topic has 3 partitions"
    )


def test_a_partition_that_does_not_exist(shared_broker: InProcessBroker, topic: str) -> None:
    """`send` says so at once, also after a record to another one; a partition that was added meanwhile exists."""
    cluster = millstream.Cluster(shared_broker.bootstrap)
    wrong: Any
    with millstream.Producer(cluster) as producer:
        for wrong in (3, -1, "1", True):
            with pytest.raises(BadPartition) as said:
                producer.send(topic, b"", partition=wrong)
            assert str(said.value) == (
                f"{topic} has no partition {wrong!r}: write a number from 0 to 2: the topic has 3 partitions"
            )
            producer.submit(topic, b"", partition=2).result(20)
        producer.flush(20)  # a record counts until its callback has returned, a moment after the result
        assert len(producer) == 0
        alter_topic(cluster, topic, partitions=4)
        until(lambda: len(cluster.partitions(topic)) == 4, "it has another one")
        with suppress(MillstreamError):  # librdkafka may not know it yet
            producer.submit(topic, b"", partition=3).result(20)
        with pytest.raises(BadPartition, match="4 partitions"):
            producer.send(topic, b"", partition=4)


def test_addresses_that_are_no_text(shared_broker: InProcessBroker) -> None:
    addresses: Any = [shared_broker.bootstrap]
    for use in (
        millstream.Producer,
        millstream.Admin,
        lambda address: millstream.connect(address, group="g"),
    ):
        with pytest.raises(BadInput, match=r'write "HOST:PORT,HOST:PORT", or give a millstream\.Cluster'):
            use(addresses)


def test_what_cannot_be_sent_says_so_at_once(shared_broker: InProcessBroker, topic: str) -> None:
    json = millstream.Json()
    with millstream.Producer(
        shared_broker.bootstrap, value_serializer=json, max_record_bytes=2000
    ) as producer:
        with pytest.raises(NotSerializable, match=r"the value of a record for .*: TypeError: .*set"):
            producer.send(topic, {1, 2})
        with pytest.raises(NotSerializable, match="keys, values and headers as bytes"):
            producer.send(topic, key=7)
        with pytest.raises(RecordTooLarge, match=r"a record of 5,002 bytes .* at most 2,000"):
            producer.send(topic, "x" * 5000)
        with pytest.raises(UnknownTopic, match='there is no topic "no-such"'):
            producer.send("no-such", 1)
        with pytest.raises(NotSerializable, match=r"timestamps as milliseconds \(int\)"):
            producer.send(topic, 1, timestamp=time.time())  # type: ignore[arg-type]
        producer.send(topic, {"a": 1})
        producer.close()
        producer.close()
        for refused in (lambda: producer.send(topic, 1), lambda: producer.send("another", 1), producer.flush):
            with pytest.raises(Closed, match="the producer is closed"):
                refused()
    assert [message.value() for message in read(shared_broker, topic)] == [b'{"a":1}']


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acks": 2}, 'acks: 2 is not allowed: write 0, 1 or "all"'),
        ({"compression": "rar"}, "compression: 'rar' is not allowed: write none, gzip, snappy, lz4, zstd"),
        ({"linger_ms": -1}, "linger_ms: -1 is not allowed: write a number from 0 to 900,000"),
        (
            {"partitioner": "murmur2"},
            "partitioner: 'murmur2' is not allowed: give a callable (see Partitioner)",
        ),
        ({"config": {"acks": "1"}}, "config: acks is not allowed there: use the option acks"),
        (
            {"config": {"transactional.id": "t"}},
            "config: transactional.id is not allowed there: use the option transactional_id",
        ),
        ({"transactional_id": ""}, "transactional_id: '' is not allowed: write a text"),
        ({"transactional_id": "t", "acks": 1}, 'acks: 1 is not allowed with transactions: write "all"'),
        (
            {"transactional_id": "t", "audit": millstream.Audit(topic="counts", server="s")},
            "audit: not allowed with transactions: leave it out",
        ),
        (
            {"transactional_id": "t", "transaction_timeout_s": 0},
            "transaction_timeout_s: 0 is not allowed: write a number from 1 to 2,147,483",
        ),
        ({"config": {"no.such": "1"}}, 'config: No such configuration property: "no.such"'),
        (
            {"value_serializer": 7},
            "serializer: 7 is not allowed: give a Serde, such as Json(), or a callable",
        ),
        (
            {"value_serializer": millstream.Json},
            "serializer: the class Json is not allowed: give an object, Json(…)",
        ),
        (
            {"lingering": 1},
            "producer: got an unexpected keyword argument 'lingering': the options are acks, compression, ",
        ),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        millstream.Producer("127.0.0.1:1", **options)
    assert str(refused.value).startswith(said)


def test_transactional_id_among_the_clusters_settings() -> None:
    cluster = millstream.Cluster("127.0.0.1:1", {"transactional.id": "t"})
    with pytest.raises(
        BadInput, match=r"config: transactional\.id is not allowed there: use the option transactional_id"
    ):
        millstream.Producer(cluster)


def test_no_broker_is_said_within_seconds() -> None:
    assert sum(ATTEMPTS_S) < 10, "it waits no longer for an answer"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable) as said:
            millstream.Producer(f"127.0.0.1:{held.getsockname()[1]}")
    assert said.value.retriable


def test_a_broker_that_goes_away(start_broker: StartBroker) -> None:
    """The buffer fills up to its limits; closing reports undelivered records by partition and key.

    `test_producer_acks` closes a producer whose records have reached their delivery timeout.
    """
    broker = start_broker()
    create_topic(millstream.Cluster(broker.bootstrap), "orders", partitions=1)
    producer = millstream.Producer(broker.bootstrap, max_buffered_messages=50, buffer_timeout_s=0.2)
    producer.submit("orders", b"first").result(60)
    broker.kill()

    def send_all() -> None:
        for number in range(100):
            producer.send("orders", b"value", b"k%d" % number)

    with pytest.raises(
        BufferFull, match=r"no room for a record of orders within 0\.2 s: 50 records wait"
    ) as full:
        send_all()
    assert full.value.retriable
    with pytest.raises(BufferFull, match=r"50 records are in flight after 0\.1 s"):
        producer.flush(0.1)
    with pytest.raises(NotDelivered) as lost:
        producer.close(0.1)
    (undelivered,) = lost.value.undelivered
    assert (undelivered.topic, undelivered.records, undelivered.keys) == ("orders", 50, (b"k0", b"k1", b"k2"))
    assert str(lost.value).startswith("50 records were not delivered: 50 of orders")
    assert "(keys 'k0', 'k1', 'k2', …): " in str(lost.value)


def test_records_given_up_at_the_end_are_named(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(millstream.Cluster(broker.bootstrap), "orders", partitions=1)
    producer = millstream.Producer(broker.bootstrap)
    producer.submit("orders", b"first").result(60)
    broker.kill()
    future = producer.submit("orders", b"second", b"k")
    producer.send("orders", b"third", b"k3")
    with pytest.raises(NotDelivered, match="1 record was not delivered"):
        producer.close(0.1)
    with pytest.raises(NotDelivered, match=r"1 of orders.* \(keys 'k'\)"):
        future.result(0)


def test_an_error_of_the_body_is_not_hidden(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(millstream.Cluster(broker.bootstrap), "orders", partitions=1)

    def body() -> None:
        with millstream.Producer(broker.bootstrap, delivery_timeout_s=3) as producer:
            deliver(producer, "orders")
            broker.kill()
            producer.send("orders", b"second")
            raise RuntimeError("of the body")

    with pytest.raises(RuntimeError, match="of the body") as error:
        body()
    assert error.value.__notes__[0].startswith("1 record was not delivered: 1 of orders")


def test_many_threads_within_a_small_buffer(shared_broker: InProcessBroker, topic: str) -> None:
    """Back-pressure: no record is lost or fails when threads send faster than the broker accepts."""
    with millstream.Producer(shared_broker.bootstrap, max_buffered_messages=20) as producer:

        def send(thread: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d-%d" % (thread, number), b"%d" % thread)
                assert len(producer) <= 20

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [message.value() for message in read(shared_broker, topic)]
    assert sorted(values) == sorted(
        b"%d-%d" % (thread, number) for thread in range(4) for number in range(500)
    )
    for thread in range(4):
        own = [value for value in values if value and value.startswith(b"%d-" % thread)]
        assert own == [b"%d-%d" % (thread, number) for number in range(500)]


async def test_waiting_for_room_prepares_a_record_once(shared_broker: InProcessBroker, topic: str) -> None:
    """Otherwise the audit would see numbers without a record, and serializers and partitioners would run twice."""
    reports = unique("audits")
    create_topic(millstream.Cluster(shared_broker.bootstrap), reports, partitions=1)
    serialized: list[int] = []
    chosen: list[bytes | None] = []

    def serialize(number: int) -> bytes:
        serialized.append(number)
        return b"%d" % number

    def choose(_: str, __: bytes | None, value: bytes | None, ___: int) -> int:
        chosen.append(value)
        return 0

    async with millstream.AsyncProducer(
        shared_broker.bootstrap, value_serializer=serialize, partitioner=choose, max_buffered_messages=2,
        audit=millstream.Audit(topic=reports, server="web-1"),
    ) as producer:  # fmt: skip
        for number in range(100):
            await producer.send(topic, number)
    assert serialized == list(range(100))
    assert chosen == [b"%d" % number for number in range(100)]
    stamps = [dict(message.headers() or ())["audit"] for message in read(shared_broker, topic)]
    assert [int(stamp.split(b":")[1]) for stamp in stamps] == list(range(100))


async def test_a_full_buffer_does_not_hold_the_loop(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(millstream.Cluster(broker.bootstrap), "orders", partitions=1)
    hasty, patient = [
        await millstream.AsyncProducer(
            broker.bootstrap, max_buffered_messages=2, buffer_timeout_s=buffer_timeout_s
        ).start()
        for buffer_timeout_s in (0.5, 60)
    ]
    for producer in (hasty, patient):
        await (await producer.submit("orders", b"first"))
    broker.kill()
    for producer in (hasty, patient):
        for _ in range(2):
            await producer.send("orders", b"x")
    with pytest.raises(BufferFull, match=r"within 0\.5 s"):
        await hasty.send("orders", b"x")
    waiting = asyncio.create_task(patient.send("orders", b"x"))
    for _ in range(10):  # a send that held the loop would be over after the first step
        await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    for producer in (hasty, patient):
        with pytest.raises(NotDelivered, match=r"^2 records were not delivered"):
            await producer.close(0.1)
