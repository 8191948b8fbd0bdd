"""Internal topics: what clients may not do to them, and how a broker treats odd records in them."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from prometheus_client.parser import text_string_to_metric_families

from millstream_broker.groups.group import CommittedOffset
from millstream_broker.groups.records import group_tombstone, offset_record
from millstream_harness.group_story import OFFSETS_TOPIC, Story
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    incremental_alter_configs,
    metadata,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
INVALID_TOPIC = ErrorCode.INVALID_TOPIC_EXCEPTION
CONFIG = {"offsets.topic.num.partitions": "1"}
FORGERY = build_batch([Record(*offset_record("g", "t", 0, CommittedOffset(99, 0, "", 1)), 1)])
SET, DELETE = 0, 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("internal"), CONFIG) as broker:
        yield broker


@pytest.fixture
def story(broker: InProcessBroker) -> Iterator[Story]:
    """A group with one position."""
    with Story(broker.bootstrap, "g", 1) as story:
        story.create("t")
        story.commit(("t", 0, 7, "true"))
        yield story


def is_unharmed(story: Story) -> bool:
    return story.positions({"t": [0]}) == [("t", 0, 7, 0, "true")]


@pytest.mark.parametrize("version", range(3, 10))
@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("client", ["any", "__admin_client"])
def test_no_client_writes_them(story: Story, version: int, acks: int, client: str) -> None:
    """Repeated requests on one connection fail, too: no shortcut bypasses the rule."""
    end = story.wire.end_offset(OFFSETS_TOPIC)
    with Wire(story.bootstrap, client) as wire:
        assert wire.produce("t", FORGERY, acks=acks, version=version).error_code == 0
        for topic in (OFFSETS_TOPIC, OFFSETS_TOPIC, OFFSETS_TOPIC, "__transaction_state"):
            answer = wire.produce(topic, FORGERY, acks=acks, version=version)
            assert (answer.error_code, answer.base_offset) == (INVALID_TOPIC, -1)
    assert story.wire.end_offset(OFFSETS_TOPIC) == end
    assert is_unharmed(story)


def test_who_expects_no_answer_loses_the_connection(story: Story) -> None:
    end = story.wire.end_offset(OFFSETS_TOPIC)
    with Wire(story.bootstrap) as wire, pytest.raises(EOFError):
        wire.produce(OFFSETS_TOPIC, FORGERY, acks=0)
    assert story.wire.end_offset(OFFSETS_TOPIC) == end


def test_a_real_producer_is_told(story: Story) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": story.bootstrap, "log_level": 0})
    producer.produce(OFFSETS_TOPIC, b"x", key=b"y", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


def test_no_client_deletes_their_records(story: Story) -> None:
    for offset in (-1, 1):
        partitions = [delete_records.DeleteRecordsPartition(0, offset)]
        request = delete_records.DeleteRecordsRequest(
            [delete_records.DeleteRecordsTopic(OFFSETS_TOPIC, partitions)], 10_000
        )
        (topic,) = story.wire.call(delete_records.API, 2, request).topics
        assert topic.partitions[0].error_code == INVALID_TOPIC


def test_no_client_deletes_them(story: Story) -> None:
    asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=OFFSETS_TOPIC)])
    topic_id = story.wire.call(metadata.API, 12, asked).topics[0].topic_id
    for state in (
        delete_topics.DeleteTopicState(name=OFFSETS_TOPIC),
        delete_topics.DeleteTopicState(name=None, topic_id=topic_id),
    ):
        request = delete_topics.DeleteTopicsRequest([state], timeout_ms=10_000)
        (answer,) = story.wire.call(delete_topics.API, 6, request).responses
        assert answer.error_code == INVALID_TOPIC
    assert is_unharmed(story)


def test_their_partitions_stay_as_many(story: Story) -> None:
    asked = create_partitions.CreatePartitionsTopic(OFFSETS_TOPIC, 2)
    request = create_partitions.CreatePartitionsRequest([asked], 10_000)
    (answer,) = story.wire.call(create_partitions.API, 3, request).results
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("operation", "value"), [(SET, "delete"), (SET, "compact,delete"), (SET, "none"), (DELETE, None)]
)
def test_they_stay_compacted(story: Story, operation: int, value: str | None) -> None:
    change = incremental_alter_configs.AlterableConfig("cleanup.policy", operation, value)
    resource = incremental_alter_configs.AlterConfigsResource(2, OFFSETS_TOPIC, [change])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
    (answer,) = story.wire.call(incremental_alter_configs.API, 1, request).responses
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert policy(story, OFFSETS_TOPIC) == "compact"


def test_they_stay_compacted_when_all_settings_are_replaced(story: Story) -> None:
    others = [alter_configs.AlterableConfig("segment.bytes", "1000000")]
    policies = [alter_configs.AlterableConfig("cleanup.policy", "compact"), *others]
    for configs, error in [(others, ErrorCode.INVALID_CONFIG), (policies, ErrorCode.NONE)]:
        resource = alter_configs.AlterConfigsResource(2, OFFSETS_TOPIC, configs)
        (answer,) = story.wire.call(
            alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource])
        ).responses
        assert answer.error_code == error
    assert policy(story, OFFSETS_TOPIC) == "compact"


def policy(story: Story, topic: str) -> str | None:
    resource = describe_configs.DescribeConfigsResource(2, topic, ["cleanup.policy"])
    request = describe_configs.DescribeConfigsRequest([resource])
    (config,) = story.wire.call(describe_configs.API, 4, request).results[0].configs
    return config.value


def test_whoever_makes_them_makes_them_as_their_coordinator_would(start_broker: StartBroker) -> None:
    broker = start_broker({"offsets.topic.num.partitions": "3"})

    def created(topic: str, **config: str) -> int:
        configs = [
            create_topics.CreatableTopicConfig(name.replace("_", "."), value)
            for name, value in config.items()
        ]
        one = create_topics.CreatableTopic(topic, 2, 1, configs=configs)
        request = create_topics.CreateTopicsRequest([one], 10_000)
        return wire.call(create_topics.API, 7, request).topics[0].error_code

    with Wire(broker.bootstrap) as wire:
        assert created("__transaction_state", cleanup_policy="delete") == ErrorCode.INVALID_CONFIG
        assert created("__transaction_state") == 0
        wire.create(OFFSETS_TOPIC)  # a metadata request creates it
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=OFFSETS_TOPIC)])
        assert len(wire.call(metadata.API, 12, asked).topics[0].partitions) == 3
    with Story(broker.bootstrap, "g", 3) as story:
        assert [policy(story, topic) for topic in (OFFSETS_TOPIC, "__transaction_state")] == ["compact"] * 2
        assert story.partition in range(3)


# Unreadable records


def append_to_log(segment: Path, end_offset: int, records: list[tuple[bytes, bytes | None]]) -> None:
    """A valid batch that clients could write before such writes were refused."""
    now = int(time.time() * 1000)
    batch = build_batch([Record(*one, now) for one in records], base_offset=end_offset, leader_epoch=0)
    with segment.open("ab") as log:
        log.write(batch)


def metric(broker: InProcessBroker, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as response:
        families = text_string_to_metric_families(response.read().decode())
    return next(sample.value for one in families for sample in one.samples if sample.name == name)


def test_what_cannot_be_read_costs_no_group(start_broker: StartBroker) -> None:
    broker = start_broker({**CONFIG, "group.initial.rebalance.delay.ms": "0"})
    with Story(broker.bootstrap, "g", 1) as story:
        story.create("t")
        story.commit(("t", 0, 7, "true"))
        end = story.wire.end_offset(OFFSETS_TOPIC)
    assert metric(broker, "millstream_group_records_unreadable_total") == 0
    broker.kill()
    key, value = offset_record("g", "t", 0, CommittedOffset(99, 0, "", 1))
    assert value is not None
    garbage = [
        (key[:-3], value),
        (b"\x00\x63newer", b"x"),
        (key, value[:-5]),
        (b"\x00\x01\x00\x02\xc3\x28\x00\x01t" + bytes(4), value),
        (group_tombstone("other")[0], b"\x00\x03\x00\x08consumer\xff\xff\xff\xff" + bytes(16)),
    ]
    segment = broker.data / f"{OFFSETS_TOPIC}-0" / f"{0:020d}.log"
    append_to_log(segment, end, garbage)
    append_to_log(segment, end + len(garbage), [offset_record("later", "t", 0, CommittedOffset(8, 0, "", 1))])
    broker.start()
    with Story(broker.bootstrap, "g", 1) as story:
        assert is_unharmed(story)
        assert story.wire.end_offset(OFFSETS_TOPIC) >= end + len(garbage) + 1
    with Story(broker.bootstrap, "later", 1) as story:
        assert story.positions({"t": [0]}) == [("t", 0, 8, 0, "")]
    assert metric(broker, "millstream_group_records_unreadable_total") == len(garbage)
    assert metric(broker, "millstream_group_partitions_loading") == 0
    assert f"skipped {len(garbage)} records that cannot be read" in broker.said()


def test_a_load_that_fails_is_tried_again_until_it_works(start_broker: StartBroker) -> None:
    """No new leadership is needed: this broker leads the partition all the time."""
    broker = start_broker({**CONFIG, "offsets.topic.segment.bytes": "200"})
    with Story(broker.bootstrap, "g", 1) as story:
        story.create("t")
        for _ in range(5):
            story.commit(("t", 0, 7, "true"))
    broker.stop()
    segment = broker.data / f"{OFFSETS_TOPIC}-0" / f"{0:020d}.log"
    assert len(list(segment.parent.glob("*.log"))) > 2, "recovery does not look at the first of them"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:16] + b"\x7f" + whole[17:])  # the magic byte
    broker.start()
    eventually(lambda: broker.said().count("cannot load its groups, retrying"), lambda n: n >= 2, "retries")
    assert metric(broker, "millstream_group_partitions_loading") == 1
    assert coordinator_error(broker) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    segment.write_bytes(whole)
    with Story(broker.bootstrap, "g", 1) as story:
        assert is_unharmed(story)
    assert metric(broker, "millstream_group_partitions_loading") == 0


def coordinator_error(broker: InProcessBroker) -> int:
    asked = describe_groups.DescribeGroupsRequest(["g"])
    with Wire(broker.bootstrap) as wire:
        return wire.call(describe_groups.API, 5, asked).groups[0].error_code
