"""Transactions of the Java client and of librdkafka, on one broker and on three, read by their own consumers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.java import KAFKA_VERSION, client_classpath, java_command
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.scenario import unique

pytestmark = pytest.mark.soak

JAVA = Path(__file__).parent / "java" / "Transactions.java"
SCENARIOS = re.findall(r'play\("([a-z-]+)",', JAVA.read_text())
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessCluster(tmp_path_factory.mktemp("three")) as cluster:
        yield cluster.bootstrap


def played(bootstrap: str, replicas: int) -> Verdicts:
    return play(java_command(str(JAVA), bootstrap, str(replicas), classpath=client_classpath(KAFKA_VERSION)))


@pytest.fixture(scope="module")
def on_one(compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    return played(compat_broker.bootstrap, 1)


@pytest.fixture(scope="module")
def on_three(three_brokers: str) -> Verdicts:
    return played(three_brokers, 3)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_on_one_broker(on_one: Verdicts, scenario: str) -> None:
    assert on_one.get(scenario, "it was not played") == PASSED


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_on_three_brokers(on_three: Verdicts, scenario: str) -> None:
    assert on_three.get(scenario, "it was not played") == PASSED


@pytest.fixture(params=["one", "three"])
def any_bootstrap(request: pytest.FixtureRequest) -> str:
    if request.param == "one":
        broker: InProcessBroker | KafkaProcess = request.getfixturevalue("compat_broker")
        return broker.bootstrap
    bootstrap: str = request.getfixturevalue("three_brokers")
    return bootstrap


def created(bootstrap: str, partitions: int) -> str:
    topic = unique("transactions")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)
    return topic


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def read(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values, ends = [], 0
    while ends < partitions:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            ends += 1
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


def test_librdkafka_commits_and_aborts(any_bootstrap: str) -> None:
    topic = created(any_bootstrap, 2)
    producer = transactional(any_bootstrap, topic)
    for outcome in ("commit", "abort", "last"):
        producer.begin_transaction()
        for index in range(2):
            producer.produce(topic, f"{outcome}-{index}", partition=index)
        assert producer.flush(PATIENCE_S) == 0
        if outcome == "abort":
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = [b"commit-0", b"commit-1", b"last-0", b"last-1"]
    assert read(any_bootstrap, topic, 2, "read_committed") == committed
    everything = sorted([*committed, b"abort-0", b"abort-1"])
    assert read(any_bootstrap, topic, 2, "read_uncommitted") == everything


def test_librdkafka_fences_a_zombie(any_bootstrap: str) -> None:
    topic = created(any_bootstrap, 1)
    zombie = transactional(any_bootstrap, topic)
    zombie.begin_transaction()
    zombie.produce(topic, "of the zombie")
    assert zombie.flush(PATIENCE_S) == 0
    successor = transactional(any_bootstrap, topic)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(topic, "of the successor")
    successor.commit_transaction(PATIENCE_S)
    assert read(any_bootstrap, topic, 1, "read_committed") == [b"of the successor"]


def test_librdkafka_copies_with_positions(any_bootstrap: str) -> None:
    source, target = created(any_bootstrap, 1), created(any_bootstrap, 1)
    values = [b"%d" % number for number in range(10)]
    plain = Producer({"bootstrap.servers": any_bootstrap})
    for value in values:
        plain.produce(source, value)
    assert plain.flush(PATIENCE_S) == 0
    producer = transactional(any_bootstrap, target)
    consumer = Consumer(
        {
            "bootstrap.servers": any_bootstrap,
            "group.id": unique("copier"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    copied = 0
    while copied < len(values):
        messages = consumer.consume(5, 1.0)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        copied += len(messages)
    (position,) = consumer.committed([TopicPartition(source, 0)], PATIENCE_S)
    consumer.close()
    assert position.offset == len(values)
    assert read(any_bootstrap, target, 1, "read_committed") == values


def test_a_killed_coordinator_loses_and_repeats_no_transaction(tmp_path: Path) -> None:
    """Each transaction writes its number to two partitions; half-way, its coordinator is killed."""
    with InProcessCluster(tmp_path, config={"transaction.state.log.num.partitions": "1"}) as cluster:
        topic = created(cluster.bootstrap, 2)
        producer = transactional(cluster.bootstrap, topic)
        cluster.await_in_sync("__transaction_state")
        for number in range(20):
            while not committed_both(producer, topic, number):
                pass
            if number == 9:
                cluster.leader("__transaction_state").kill()
        expected = sorted(b"%d" % number for number in [*range(20)] * 2)
        assert read(cluster.bootstrap, topic, 2, "read_committed") == expected


def committed_both(producer: Producer, topic: str, number: int) -> bool:
    """Whether the transaction is committed; otherwise it is aborted, and nothing of it counts."""
    try:
        producer.begin_transaction()
        for index in range(2):
            producer.produce(topic, b"%d" % number, partition=index)
        while True:
            try:
                producer.commit_transaction(PATIENCE_S)
                return True
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(PATIENCE_S)
        return False
