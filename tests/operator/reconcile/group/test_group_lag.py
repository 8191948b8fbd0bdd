"""All views agree on the lag: the resource, the operator's and brokers' metrics, our command, and Kafka's tool.

On a real broker, even if a topic is recreated between any two requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from millstream_harness.command import millstream
from millstream_harness.group_looks import Looks
from millstream_harness.in_memory import stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import run_kafka_tool
from millstream_harness.manifests import group
from millstream_harness.scenario import unique
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import EARLIEST, NewTopic, Partition

pytestmark = pytest.mark.process

PARTITIONS = 4


@pytest.fixture
def admin(shared_broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(shared_broker.bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def topic(admin: KafkaAdmin, shared_broker: InProcessBroker) -> str:
    """A topic with ten records in each partition."""
    name = unique("lag")
    create(admin, shared_broker, name)
    return name


def create(admin: KafkaAdmin, broker: InProcessBroker, name: str, records: int = 10) -> None:
    admin.create_topics([NewTopic(name, PARTITIONS, 1, {})])
    more = {"queue.buffering.max.messages": PARTITIONS * records + 1}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **more})
    for partition in range(PARTITIONS):
        for _ in range(records):
            producer.produce(name, b"", partition=partition)
    assert producer.flush(60) == 0


def by_kafka(broker: InProcessBroker, name: str) -> dict[int, int | None]:
    """Lag by partition, from Kafka's own tool."""
    said = run_kafka_tool(
        "consumer-groups", "--bootstrap-server", broker.bootstrap, "--describe", "--group", name
    ).stdout
    rows = [line.split() for line in said.splitlines() if line.startswith(f"{name} ")]
    return {int(row[2]): None if row[5] == "-" else int(row[5]) for row in rows}


def by_command(broker: InProcessBroker, name: str) -> tuple[int, dict[int, int | None]]:
    """Total lag and lag by partition, from our command."""
    told = json.loads(millstream("group", "describe", name, "-o", "json", bootstrap=broker.bootstrap).stdout)
    return told["lag"], {one["partition"]: one["lag"] for one in told["partitions"]}


def by_metrics(broker: InProcessBroker, name: str, topic: str) -> dict[int, int]:
    """Lag by partition, from a broker's metrics, by the recording rule millstream:group_lag_records."""
    _, said = broker.get("/metrics")
    ends, committed = {}, {}
    for family in text_string_to_metric_families(said):
        for sample in family.samples:
            if sample.labels.get("topic") != topic:
                continue
            if sample.name == "millstream_log_end_offset":
                ends[int(sample.labels["partition"])] = int(sample.value)
            elif sample.name == "millstream_group_committed_offset" and sample.labels["group"] == name:
                committed[int(sample.labels["partition"])] = int(sample.value)
    return {partition: max(0, ends[partition] - offset) for partition, offset in committed.items()}


def test_every_view_counts_the_same_lag(
    shared_broker: InProcessBroker, admin: KafkaAdmin, topic: str
) -> None:
    """One partition is unread, one half read, one read; one has no commit, and no view counts it.

    Records before the log start count, as in Kafka.
    """
    name = unique("group")
    committed = {Partition(topic, 0): 0, Partition(topic, 1): 4, Partition(topic, 2): 10}
    assert admin.commit(name, committed) is None
    delete_before(shared_broker, topic, {0: 3})
    expected: dict[int, int | None] = {0: 10, 1: 6, 2: 0}

    found = Looks(admin)
    status = found.look(stored(group("watch", groupId=name, topics=[topic])))
    assert status["lag"]["records"] == 16
    assert [(one["topic"], one["lag"]) for one in status["topics"]] == [(topic, 16)]
    assert found.metric("millstream_group_lag_records", "watch") == 16
    assert by_metrics(shared_broker, name, topic) == expected
    assert by_command(shared_broker, name) == (16, expected)
    assert by_kafka(shared_broker, name) == expected


def test_every_view_shows_all_digits_of_a_large_lag(
    shared_broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    """The same holds for the next lag, which differs in the last digit only."""
    topic, name = unique("lag"), unique("group")
    create(admin, shared_broker, topic, records=30_864)
    assert admin.commit(name, {Partition(topic, index): 0 for index in range(PARTITIONS)}) is None
    found, manifest = Looks(admin), stored(group("watch", groupId=name, topics=[topic]))
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    for records in (123_457, 123_458):
        producer.produce(topic, b"", partition=0)
        assert producer.flush(60) == 0
        status = found.look(manifest)
        views = {
            "status": status["lag"]["records"],
            "its topic": status["topics"][0]["lag"],
            "operator's metrics": found.metric("millstream_group_lag_records", "watch"),
            "brokers' metrics": sum(by_metrics(shared_broker, name, topic).values()),
            "command": by_command(shared_broker, name)[0],
            "Kafka's tool": sum(lag or 0 for lag in by_kafka(shared_broker, name).values()),
        }
        assert views == dict.fromkeys(views, records)


def delete_before(broker: InProcessBroker, topic: str, before: Mapping[int, int]) -> None:
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for one in client.delete_records(wanted).values():
        one.result(60)


class Interrupted(KafkaAdmin):
    """An admin that has the topic recreated before the nth request."""

    def __init__(self, bootstrap: str, before: int, replace: Callable[[], None]) -> None:
        super().__init__(bootstrap)
        self.left, self.replace = before, replace

    def _count(self) -> None:
        if self.left == 0:
            self.replace()
        self.left -= 1

    def committed(self, *wanted: Any) -> Any:
        self._count()
        return super().committed(*wanted)

    def identities(self, *wanted: Any) -> Any:
        self._count()
        return super().identities(*wanted)

    def led_offsets(self, *wanted: Any) -> Any:
        self._count()
        return super().led_offsets(*wanted)

    def commit(self, *wanted: Any) -> Any:
        self._count()
        return super().commit(*wanted)


@pytest.mark.parametrize("before", range(5))
def test_a_topic_that_is_replaced_in_mid_look_lends_its_positions_to_nobody(
    shared_broker: InProcessBroker, admin: KafkaAdmin, topic: str, before: int
) -> None:
    """The group has read four of ten records of each partition; the new topic's partitions have one each."""
    name = unique("group")
    assert admin.commit(name, {Partition(topic, index): 4 for index in range(PARTITIONS)}) is None
    manifest = stored(group("watch", groupId=name, topics=[topic]))
    interrupted = Interrupted(shared_broker.bootstrap, before, lambda: replace(admin, shared_broker, topic))
    status = Looks(interrupted).look(manifest)
    interrupted.close()
    assert interrupted.left < 0, "it was replaced"
    assert status["lag"]["records"] == 0
    found = Looks(admin)
    assert found.look(manifest)["lag"]["records"] == 0
    assert admin.commit(name, {Partition(topic, 0): 0}) is None
    assert found.look(manifest)["lag"]["records"] == 1


@pytest.mark.parametrize("before", range(5))
def test_a_group_starts_in_the_new_topic_where_the_new_topic_starts(
    shared_broker: InProcessBroker, admin: KafkaAdmin, topic: str, before: int
) -> None:
    """With startAt Latest, whenever the topic is recreated: at its end, at once or one reconcile later."""
    name = unique("group")
    manifest = stored(group("watch", groupId=name, topics=[topic], startAt="Latest"))
    interrupted = Interrupted(shared_broker.bootstrap, before, lambda: replace(admin, shared_broker, topic))
    Looks(interrupted).look(manifest)
    interrupted.close()
    assert interrupted.left < 0, "it was replaced"
    Looks(admin).look(manifest)
    ends = admin.committed([name])[name]
    assert set(ends.values()) == {1}, ends
    assert min(admin.offsets(dict.fromkeys(ends, EARLIEST)).values()) == 0


def replace(admin: KafkaAdmin, broker: InProcessBroker, topic: str) -> None:
    assert admin.delete_topics({topic: None}) == {topic: None}
    create(admin, broker, topic, records=1)
