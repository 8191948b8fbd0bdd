"""What a ConsumerGroup says of a real group over time: unused, behind by seconds, stuck.

Broker, records and members are real. Only the operator's clock advances by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer

from millstream_harness.group_looks import Looks
from millstream_harness.in_memory import stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import until
from millstream_harness.manifests import group
from millstream_harness.scenario import unique
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import NewTopic, Partition

pytestmark = pytest.mark.process

STUCK_AFTER_S = 300


@pytest.fixture
def admin(shared_broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(shared_broker.bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def topic(admin: KafkaAdmin) -> str:
    name = unique("flights")
    admin.create_topics([NewTopic(name, 1, 1, {})])
    return name


def produce(broker: InProcessBroker, topic: str, written: float, count: int = 1) -> None:
    """``written``: their time, in seconds since 1970."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(count):
        producer.produce(topic, b"x", timestamp=int(written * 1000))
    assert producer.flush(60) == 0


def test_a_group_is_unused_until_it_commits(
    admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str
) -> None:
    name, found = unique("group"), Looks(admin)
    manifest = stored(group("watch", groupId=name, topics=[topic]))
    produce(shared_broker, topic, time.time(), 3)
    status = found.look(manifest)
    words = "the group does not exist yet: no consumer has joined it or committed"
    assert found.condition("watch") == ("True", "GroupUnused", words)
    assert (status["state"], status["memberCount"], status["lag"]["records"]) == ("Dead", 0, 0)
    config = {"bootstrap.servers": shared_broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        (message,) = consumer.consume(1, timeout=120)
        consumer.commit(message, asynchronous=False)
        status = found.look(manifest)
    finally:
        consumer.close()
    assert found.condition("watch") == ("True", "GroupObserved", "the group exists")
    assert (status["state"], status["memberCount"], status["lag"]["records"]) == ("Stable", 1, 2)


def test_the_lag_in_seconds_is_the_age_of_the_oldest_unread_record(
    admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str
) -> None:
    """Status, metric and maxLag.seconds, while a group reads records of ten minutes, a minute and no age."""
    found, partition = Looks(admin), Partition(topic, 0)
    begun = time.time()
    for age_s in (600, 60, 0):
        produce(shared_broker, topic, begun - age_s)
    limits = {unique("exceeded"): 590, unique("kept"): 3600}
    for name, limit in limits.items():
        manifest = stored(group(name, topics=[topic], maxLag={"seconds": limit}))
        for offset, age_s in ((0, 600), (1, 60)):
            assert admin.commit(name, {partition: offset}) is None
            seconds = found.look(manifest)["lag"]["seconds"]
            passed = time.time() - begun
            error = max(15, age_s / 5)
            assert age_s - error <= seconds <= age_s + error + passed + 1
            assert found.metric("millstream_group_lag_seconds", name) == seconds
            lagging = limit < age_s
            reason = "AboveMaxLag" if lagging else "WithinMaxLag"
            assert found.condition(name, "Lagging")[:2] == (str(lagging), reason)
        assert admin.commit(name, {partition: 3}) is None
        assert found.look(manifest)["lag"] == {"records": 0, "seconds": 0}
        assert found.metric("millstream_group_lag_seconds", name) == 0


@pytest.mark.parametrize("has_member", [False, True], ids=["without members", "with a member"])
def test_a_group_that_commits_nothing_while_its_lag_grows_is_stuck(
    admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str, has_member: bool
) -> None:
    name, found = unique("group"), Looks(admin)
    manifest = stored(group("watch", groupId=name, topics=[topic], stuckAfterSeconds=STUCK_AFTER_S))
    produce(shared_broker, topic, time.time(), 5)
    assert admin.commit(name, {Partition(topic, 0): 2}) is None
    config = {"bootstrap.servers": shared_broker.bootstrap, "group.id": name, "enable.auto.commit": False}
    consumer = Consumer(config)
    try:
        if has_member:
            consumer.subscribe([topic])
            until("a member", lambda: (consumer.poll(0.1), admin.groups([name])[name].members)[1])
        found.look(manifest)
        assert found.condition("watch", "Stuck")[:2] == ("False", "Consuming")
        found.later = timedelta(seconds=STUCK_AFTER_S + 1)
        found.look(manifest)
        assert found.condition("watch", "Stuck")[:2] == ("False", "Consuming"), "the lag has not grown"
        produce(shared_broker, topic, time.time())
        status = found.look(manifest)
        todo = "look at its consumers' logs" if has_member else "it has no members: start its consumers"
        words = f"the lag grows and nothing was committed for {STUCK_AFTER_S} s: {todo}"
        assert found.condition("watch", "Stuck") == ("True", "NothingCommitted", words)
        assert (status["lag"]["records"], status["stuck"]["records"]) == (4, 3)
        assert found.found.kube.events[-1].reason == "NothingCommitted"
    finally:
        consumer.close()
    assert admin.commit(name, {Partition(topic, 0): 3}) is None
    status = found.look(manifest)
    assert found.condition("watch", "Stuck")[:2] == ("False", "Consuming")
    assert "stuck" not in status
