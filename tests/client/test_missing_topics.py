"""A topic that is deleted while it is read is noticed, also where librdkafka says nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

import millstream
from millstream import records
from millstream.consuming import presence
from millstream.consuming.presence import Presence
from millstream.errors import UnknownTopic
from millstream.topics import create_topic, delete_topics
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kafka import KafkaProcess
from millstream_harness.scenario import unique
from millstream_harness.streams import connect, fill

GONE = 'there is no topic ".*" any more'


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}
    with KafkaProcess(tmp_path_factory.mktemp("kafka"), config) as broker:
        yield broker.bootstrap


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_of_a_topic_that_is_deleted_meanwhile(kafka: str, protocol: str) -> None:
    cluster = millstream.Cluster(kafka, {"group.protocol": protocol})
    topic = unique("deleted")
    create_topic(cluster, topic, partitions=1)
    until(lambda: topic in cluster.metadata().topics, f"metadata of {topic}", 60)  # Kafka answers before
    fill(cluster, topic, (3,))
    found = records.consume(cluster, topic, group=unique("group"), follow=True)
    assert next(found).value == b"0-0"
    assert delete_topics(cluster, [topic]) == {topic: ""}
    with pytest.raises(UnknownTopic, match=GONE):
        for _ in found:  # the two others have been fetched, or not
            pass


@pytest.mark.soak
def test_librdkafka_reports_no_missing_topic_with_the_consumer_protocol(kafka: str) -> None:
    """Why we check ourselves: with the classic protocol the first poll has the error, with this one no poll does."""
    said = {}
    for protocol in ("classic", "consumer"):
        config = {"bootstrap.servers": kafka, "group.id": unique("group"), "group.protocol": protocol}
        consumer = Consumer(config)
        consumer.subscribe(["no-such"])
        polls = (consumer.poll(0.5) for _ in range(20))
        said[protocol] = next((message.error().code() for message in polls if message is not None), None)
        consumer.close()
    assert said == {"classic": KafkaError.UNKNOWN_TOPIC_OR_PART, "consumer": None}


@pytest.mark.soak
def test_streams_without_partitions_notice_a_deleted_topic(shared_broker: InProcessBroker) -> None:
    """Nothing is fetched for them, and librdkafka refreshes its metadata every five minutes."""
    cluster = millstream.Cluster(shared_broker.bootstrap)
    topic = unique("deleted")
    create_topic(cluster, topic, partitions=1)
    raised: list[Exception] = []

    def read(stream: millstream.MessageStream) -> None:
        try:
            for _ in stream:
                pass
        except UnknownTopic as error:
            raised.append(error)

    with connect(cluster) as connector:
        streams = connector.create_message_streams({topic: 3})[topic]
        threads = [threading.Thread(target=read, args=[stream], daemon=True) for stream in streams]
        for thread in threads:
            thread.start()
        until(
            lambda: sorted(len(stream.partitions) for stream in streams) == [0, 0, 1], "they are divided", 60
        )
        delete_topics(cluster, [topic])
        until(lambda: len(raised) == 3, "each stream says so", 90)


def answer(code: int | None) -> Future[Any]:
    """The answer of a broker about a topic."""
    future: Future[Any] = Future()
    if code is None:
        future.set_result("a description")
    else:
        future.set_exception(KafkaException(KafkaError(code)))
    return future


NO_TOPIC, NO_BROKER = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TIMED_OUT


@pytest.mark.parametrize(
    ("codes", "missing"),
    [
        ([NO_TOPIC, NO_TOPIC], True),
        ([NO_TOPIC, None], False),  # by a broker that had not heard of it yet
        ([NO_TOPIC, None, NO_TOPIC], False),
        ([NO_TOPIC, NO_BROKER, NO_TOPIC], False),
        ([NO_BROKER, NO_BROKER, NO_BROKER], False),
        ([None, None], False),
        ([None, NO_TOPIC, NO_TOPIC], True),
    ],
)
def test_topic_is_missing_after_two_denials(
    codes: list[int | None], missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(presence, "now", lambda: clock[0])
    answers = chain(codes, repeat(None))
    admin = SimpleNamespace(describe_topics=lambda *_, **__: {"t": answer(next(answers))})
    checks = Presence("t", SimpleNamespace(admin=admin))  # type: ignore[arg-type]
    try:
        for _ in range(2 * len(codes) + 2):
            checks.check()
            clock[0] += presence.CHECK_S / 2
        checks.check()
    except UnknownTopic:
        assert missing
    else:
        assert not missing
