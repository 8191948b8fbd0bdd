"""Producing and fetching, request by request: acknowledgements, order, long polls, limits, idempotence."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream_broker.log.directory import BOOT_ID
from millstream_harness.broker import BrokerProcess
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually, unique
from millstream_harness.wire import Wire, fetch_request, produce_request, record
from millstream_kafka.batch import build_batch, read_records
from millstream_kafka.protocol import (
    create_topics,
    delete_topics,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
LONG_MS = 600_000
"""Longer than `Wire` waits: a response comes for another reason."""
QUIET_S = 0.05
"""How long a connection is watched for a response that must not come."""


@pytest.fixture
def wire(shared_broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(shared_broker.bootstrap) as one:
        yield one


@pytest.fixture
def topic(wire: Wire) -> str:
    name = unique("produce-fetch")
    wire.create(name)
    return name


def create(wire: Wire, name: str, partitions: int = 1, **config: str) -> None:
    configs = [
        create_topics.CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()
    ]
    request = create_topics.CreateTopicsRequest(
        [create_topics.CreatableTopic(name, partitions, 1, [], configs)]
    )
    result = wire.call(create_topics.API, 7, request).topics[0]
    assert result.error_code == 0, result.error_message


def read(data: fetch.PartitionData) -> list[bytes | None]:
    """The values of the fetched batches, in order."""
    found: list[bytes | None] = []
    rest = memoryview(data.records or b"")  # type: ignore[arg-type]
    while len(rest) >= 12:
        size = int.from_bytes(rest[8:12], "big") + 12
        found += [one.value for one in read_records(rest[:size])]
        rest = rest[size:]
    return found


@pytest.mark.parametrize("version", range(3, 12))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_answers_the_same_at_first_and_after(
    wire: Wire, topic: str, version: int, acks: int
) -> None:
    """The second request of its kind takes the shortcut, with the same response."""
    for number in range(3):
        response = wire.produce(topic, [record("a"), record("b")], version=version, acks=acks)
        start = 0 if version >= 5 else -1
        assert response == produce.PartitionProduceResponse(0, 0, 2 * number, -1, start)
    assert wire.end_offset(topic) == 6


def test_log_append_time_is_told(wire: Wire) -> None:
    name = unique("append-time")
    create(wire, name, message_timestamp_type="LogAppendTime")
    for _ in range(2):
        before = int(time.time() * 1000)
        response = wire.produce(name, [record("a", timestamp=5)])
        assert before <= response.log_append_time_ms <= int(time.time() * 1000)


def test_pipelined_requests_are_answered_in_order(wire: Wire, topic: str) -> None:
    for number in range(500):
        wire.send(produce.API, 9, produce_request(topic, build_batch([record(f"{number}")])))
        if number % 50 == 0:
            wire.send(metadata.API, 12, metadata.MetadataRequest([]))
    offsets = []
    for number in range(500):
        offsets.append(wire.receive().responses[0].partition_responses[0].base_offset)
        if number % 50 == 0:
            assert wire.receive().cluster_id
    assert offsets == list(range(500))
    assert read(wire.fetch(topic, 0)) == [b"%d" % number for number in range(500)]


def test_several_topics_and_partitions_in_one_request(wire: Wire) -> None:
    names = [unique("several"), unique("several")]
    for name in names:
        create(wire, name, partitions=3)
    batch = build_batch([record("x")])
    data = [produce.PartitionProduceData(index, batch) for index in (0, 2, 9)]
    request = produce.ProduceRequest(
        None, 1, 1000, [produce.TopicProduceData(name, partition_data=data) for name in names]
    )
    for round_ in range(3):
        answer = wire.call(produce.API, 9, request)
        for topic in answer.responses:
            assert [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses] == [
                (0, 0, round_),
                (2, 0, round_),
                (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            ]


def test_a_deleted_topic_is_not_produced_to(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, [record("a")]).error_code == 0
    request = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState(topic)])
    assert wire.call(delete_topics.API, 6, request).responses[0].error_code == 0
    assert wire.produce(topic, [record("a")]).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.fetch(topic, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_retries_of_an_idempotent_producer_are_written_once(wire: Wire, topic: str) -> None:
    given = wire.call(init_producer_id.API, 4, init_producer_id.InitProducerIdRequest(None, 60_000))
    other = wire.call(init_producer_id.API, 4, init_producer_id.InitProducerIdRequest(None, 60_000))
    assert given.error_code == 0
    assert given.producer_id != other.producer_id

    def batch(sequence: int) -> bytes:
        return build_batch(
            [record("a"), record("b")],
            producer_id=given.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )

    assert [wire.produce(topic, batch(sequence)).base_offset for sequence in (0, 2, 2, 0, 4)] == [
        0,
        2,
        2,
        0,
        4,
    ]
    assert wire.produce(topic, batch(9)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.end_offset(topic) == 6


def test_a_long_poll_ends_with_the_first_record(
    shared_broker: InProcessBroker, wire: Wire, topic: str
) -> None:
    wire.send(fetch.API, 12, fetch_request(topic, 0, wait_ms=LONG_MS))
    with Wire(shared_broker.bootstrap) as producer:
        producer.produce(topic, [record("news")])
    assert read(wire.receive().responses[0].partitions[0]) == [b"news"]


def test_a_long_poll_waits_for_min_bytes(shared_broker: InProcessBroker, wire: Wire, topic: str) -> None:
    batch = build_batch([record("x" * 100)])
    wire.send(fetch.API, 12, fetch_request(topic, 0, wait_ms=LONG_MS, min_bytes=3 * len(batch)))
    with Wire(shared_broker.bootstrap) as producer:
        for _ in range(3):
            assert not select.select([wire.socket], [], [], QUIET_S)[0]
            producer.produce(topic, batch)
    assert len(read(wire.receive().responses[0].partitions[0])) == 3


def test_a_long_poll_gives_up_after_max_wait(wire: Wire, topic: str) -> None:
    begun = time.monotonic()
    data = wire.fetch(topic, 0, wait_ms=150)
    assert time.monotonic() - begun >= 0.14
    assert (data.error_code, data.high_watermark, len(data.records or b"")) == (0, 0, 0)


def test_deleting_a_topic_ends_long_polls_on_it(
    shared_broker: InProcessBroker, wire: Wire, topic: str
) -> None:
    wire.send(fetch.API, 12, fetch_request(topic, 0, wait_ms=LONG_MS))
    with Wire(shared_broker.bootstrap) as admin:
        admin.call(
            delete_topics.API, 6, delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState(topic)])
        )
    assert wire.receive().responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_requests_after_a_long_poll_wait_their_turn(
    shared_broker: InProcessBroker, wire: Wire, topic: str
) -> None:
    wire.send(fetch.API, 12, fetch_request(topic, 0, wait_ms=LONG_MS))
    for _ in range(20):
        wire.send(metadata.API, 12, metadata.MetadataRequest([]))
    with Wire(shared_broker.bootstrap) as producer:
        producer.produce(topic, [record("news")])
    assert read(wire.receive().responses[0].partitions[0]) == [b"news"]
    for _ in range(20):
        assert wire.receive().cluster_id


def test_fetch_gives_whole_batches_and_always_one(wire: Wire, topic: str) -> None:
    batch = build_batch([record(f"{number}") for number in range(10)])
    for _ in range(4):
        wire.produce(topic, batch)
    assert len(read(wire.fetch(topic, 0, partition_max_bytes=1))) == 10, "one batch although it is larger"
    assert len(read(wire.fetch(topic, 0, max_bytes=1))) == 10
    assert len(read(wire.fetch(topic, 0, partition_max_bytes=2 * len(batch) + 5))) == 20, "never part of one"
    inside = wire.fetch(topic, 15, partition_max_bytes=len(batch))
    assert read(inside) == [b"%d" % number for number in range(10)], "the batch that holds the offset"
    assert read(wire.fetch(topic, 40)) == []


def test_the_limit_of_a_response_is_shared_by_its_partitions(wire: Wire) -> None:
    name = unique("limits")
    create(wire, name, partitions=3)
    batch = build_batch([record("x" * 1000)])
    for partition in range(3):
        for _ in range(3):
            wire.produce(name, batch, partition=partition)
    asked = [fetch.FetchPartition(index, fetch_offset=0, partition_max_bytes=1_000_000) for index in range(3)]
    limit = 4 * len(batch) + 10
    request = fetch.FetchRequest(
        max_bytes=limit, min_bytes=1, topics=[fetch.FetchTopic(name, partitions=asked)]
    )
    answer = wire.call(fetch.API, 12, request)
    assert [len(read(data)) for data in answer.responses[0].partitions] == [3, 1, 0]


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch(wire: Wire, topic: str, version: int) -> None:
    wire.produce(topic, [record("a")])
    data = wire.fetch(topic, 0, version=version)
    assert read(data) == [b"a"]
    assert (data.high_watermark, data.last_stable_offset) == (1, 1)


@pytest.mark.parametrize("offset", [-1, 2, 10**15])
def test_an_offset_out_of_range_is_an_error_at_once(wire: Wire, topic: str, offset: int) -> None:
    wire.produce(topic, [record("a")])
    assert wire.fetch(topic, offset, wait_ms=LONG_MS).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_leader_epochs_are_checked(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Wire(broker.bootstrap) as wire:
        wire.create("epochs")
        wire.produce("epochs", [record("a"), record("b")])
    broker.kill()
    (broker.data / BOOT_ID).write_text(
        "of another boot"
    )  # so that records may be missing, and an epoch begins
    broker.start()
    with Wire(broker.bootstrap) as wire:
        wire.produce("epochs", [record("c")])
        request = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="epochs")])
        latest = wire.call(metadata.API, 12, request).topics[0].partitions[0].leader_epoch
        assert latest > 0
        assert wire.fetch("epochs", 0, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert wire.fetch("epochs", 0, epoch=latest).error_code == 0
        assert wire.fetch("epochs", 0, epoch=latest + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        ends = {}
        for epoch in (0, latest, latest + 1):
            asked = offset_for_leader_epoch.OffsetForLeaderPartition(0, latest, epoch)
            topic = offset_for_leader_epoch.OffsetForLeaderTopic("epochs", [asked])
            answer = wire.call(
                offset_for_leader_epoch.API,
                4,
                offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, [topic]),
            )
            (found,) = answer.topics[0].partitions
            ends[epoch] = (found.error_code, found.leader_epoch, found.end_offset)
        assert ends == {0: (0, 0, 2), latest: (0, latest, 3), latest + 1: (0, -1, -1)}


def test_offsets_by_time(wire: Wire, topic: str) -> None:
    for timestamp in (1000, 3000, 2000):
        wire.produce(topic, [record("x", timestamp=timestamp)])

    def at(timestamp: int) -> tuple[int, int, int]:
        asked = list_offsets.ListOffsetsPartition(0, -1, timestamp)
        request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic(topic, [asked])])
        found = wire.call(list_offsets.API, 7, request).topics[0].partitions[0]
        return found.error_code, found.timestamp, found.offset

    assert at(-1) == (0, -1, 3)
    assert at(-2) == (0, -1, 0)
    assert at(-3) == (0, 3000, 1)
    assert at(1500) == (0, 3000, 1)
    assert at(3001) == (0, -1, -1)
    assert at(-9) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


def test_flush_messages_1_acknowledges_after_fsync_and_groups(wire: Wire) -> None:
    name = unique("flushed")
    create(wire, name, flush_messages="1")
    for number in range(200):
        wire.send(produce.API, 9, produce_request(name, build_batch([record(f"{number}")])))
    wire.send(metadata.API, 12, metadata.MetadataRequest([]))
    offsets = [wire.receive().responses[0].partition_responses[0].base_offset for _ in range(200)]
    assert offsets == list(range(200))
    assert wire.receive().cluster_id
    assert wire.fetch(name, 0).high_watermark == 200
    assert wire.produce(name, [record("x")], acks=-1).base_offset == 200


def test_min_insync_replicas_asks_for_no_more_than_there_are(wire: Wire) -> None:
    name = unique("insync")
    create(wire, name, min_insync_replicas="2")
    for acks in (-1, 1, -1):
        assert wire.produce(name, [record("a")], acks=acks).error_code == 0


def test_a_large_batch_goes_through_one_buffer(wire: Wire) -> None:
    name = unique("large")
    create(wire, name, max_message_bytes="30000000", segment_bytes="100000000")
    value = b"0123456789" * 2_000_000
    for number in range(2):
        assert wire.produce(name, [record(value)]).base_offset == number
    assert read(wire.fetch(name, 1)) == [value]


def test_a_reader_that_does_not_read_is_not_buffered_for(
    start_broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker_process()
    with Wire(broker.bootstrap) as wire:
        wire.create("deaf")
        for _ in range(40):
            wire.produce("deaf", [record(b"x" * 1_000_000)])

        def resident() -> int:
            with open(f"/proc/{broker.pid}/statm") as file:
                return int(file.read().split()[1]) * 4096

        before = resident()
        deaf = [Wire(broker.bootstrap) for _ in range(10)]
        for one in deaf:
            for _ in range(200):
                one.send(fetch.API, 12, fetch_request("deaf", 0))
        with Wire(broker.bootstrap) as other:
            for _ in range(100):
                other.produce("deaf", [record("x")])
        assert resident() - before < 20_000_000
        assert len(read(deaf[0].receive().responses[0].partitions[0])) >= 40, "it was only put off"
        for one in deaf:
            one.socket.close()


def test_clients_in_parallel_get_all_they_wrote(shared_broker: InProcessBroker, wire: Wire) -> None:
    name = unique("parallel")
    create(wire, name, partitions=4)

    def work(partition: int) -> None:
        producer = Producer(
            {"bootstrap.servers": shared_broker.bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )
        for number in range(2000):
            producer.produce(name, b"%d" % number, partition=partition)
        assert producer.flush(60) == 0

    workers = [threading.Thread(target=work, args=(partition,)) for partition in range(4)]
    for worker in workers:
        worker.start()
    consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": name})
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(4)])
    seen: dict[int, list[int]] = {partition: [] for partition in range(4)}

    def consume() -> int:
        for message in consumer.consume(5000, 0.2):
            assert message.error() is None
            seen[message.partition() or 0].append(int(message.value() or b""))
        return sum(map(len, seen.values()))

    eventually(consume, lambda count: count == 8000, "all consumed")
    for worker in workers:
        worker.join()
    consumer.close()
    assert all(numbers == list(range(2000)) for numbers in seen.values())
