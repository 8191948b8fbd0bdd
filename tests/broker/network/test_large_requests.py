"""Requests of many elements are handled in slices, with the same responses as small ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_broker.network.handlers import Bound, CloseConnection
from millstream_broker.network.large_requests import MOST_QUEUED, LargeRequests
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_harness import in_process
from millstream_harness.clients import request_context
from millstream_harness.cluster import until
from millstream_harness.in_process import connected, running
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.wire import Wire, produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import (
    create_topics,
    delete_records,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
)
from millstream_kafka.protocol.api import FEW_ELEMENTS
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

TOPICS = {"a": 700, "b": 300, "c": 1}
UNKNOWN = 5
"""Number of partitions in each request that do not exist."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    assert sum(TOPICS.values()) > FEW_ELEMENTS
    with InProcessBroker(tmp_path_factory.mktemp("large")) as broker:
        with Wire(broker.bootstrap) as wire:
            topics = [create_topics.CreatableTopic(name, count, 1) for name, count in TOPICS.items()]
            answer = wire.call(create_topics.API, 7, create_topics.CreateTopicsRequest(topics, 30_000))
            assert [topic.error_code for topic in answer.topics] == [0, 0, 0]
        yield broker


@pytest.fixture
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as wire:
        yield wire


def expected_errors() -> list[tuple[str, int, int]]:
    return [
        (name, index, 0 if index < count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for name, count in TOPICS.items()
        for index in range(count + UNKNOWN)
    ]


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_a_produce_of_many_partitions_appends_each_batch_once_and_in_order(
    tmp_path: Path, acks: int, flush_messages: str
) -> None:
    config = {"log.flush.interval.messages": flush_messages}
    with InProcessBroker(tmp_path, config) as broker, Wire(broker.bootstrap) as wire:
        topics = [create_topics.CreatableTopic(name, count, 1) for name, count in TOPICS.items()]
        wire.call(create_topics.API, 7, create_topics.CreateTopicsRequest(topics, 30_000))
        unknown = UNKNOWN if acks else 0
        data = [
            produce.TopicProduceData(
                name,
                partition_data=[
                    produce.PartitionProduceData(index, build_batch([record(f"{name}-{index}")]))
                    for index in range(count + unknown)
                ],
            )
            for name, count in TOPICS.items()
        ]
        wire.send(produce.API, 9, produce.ProduceRequest(None, acks, 30_000, data))
        # The next request is already on its way; its batch must be appended after these.
        wire.send(produce.API, 9, produce_request("a", build_batch([record("second")])))
        if acks:
            answer = wire.receive()
            found = [
                (topic.name, one.index, one.error_code)
                for topic in answer.responses
                for one in topic.partition_responses
            ]
            assert found == expected_errors()
        else:
            del wire._sent[0]
        assert wire.receive().responses[0].partition_responses[0].base_offset == 1
        ends = {("a", 0): 2, ("a", 699): 1, ("b", 299): 1, ("c", 0): 1}
        if not acks:  # nobody waited for the flush
            until(lambda: all(wire.end_offset(*each) for each in ends), "all are flushed")
        assert {each: wire.end_offset(*each) for each in ends} == ends


def test_without_acknowledgements_an_error_closes_the_connection(wire: Wire) -> None:
    batch = build_batch([record("x")])
    data = [produce.PartitionProduceData(index, batch) for index in range(TOPICS["a"] + 1)]
    request = produce.ProduceRequest(None, 0, 30_000, [produce.TopicProduceData("a", partition_data=data)])
    wire.send(produce.API, 9, request)
    assert wire.is_closed()


def test_offsets_of_many_partitions(wire: Wire) -> None:
    asked = [
        list_offsets.ListOffsetsTopic(
            name, [list_offsets.ListOffsetsPartition(index, -1, -2) for index in range(count + UNKNOWN)]
        )
        for name, count in TOPICS.items()
    ]
    for timestamp in (-2, 1):
        asked[-1].partitions[0].timestamp = timestamp  # a look-up by time runs in a thread
        answer = wire.call(list_offsets.API, 7, list_offsets.ListOffsetsRequest(-1, 0, asked))
        found = [
            (topic.name, one.partition_index, one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        ]
        assert found == expected_errors()


def test_positions_of_many_partitions(wire: Wire) -> None:
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(index, index, -1, "")
                for index in range(count + UNKNOWN)
            ],
        )
        for name, count in TOPICS.items()
    ]
    wire.create("c")  # the first request for the coordinator creates the group topic
    asked = find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    assert wire.call(find_coordinator.API, 4, asked).coordinators[0].error_code == 0
    answer = wire.call(offset_commit.API, 8, offset_commit.OffsetCommitRequest("g", topics=topics))
    found = [
        (topic.name, one.partition_index, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    ]
    assert found == expected_errors()
    of_all = offset_fetch.OffsetFetchRequestGroup("g", topics=None)
    named = offset_fetch.OffsetFetchRequestGroup(
        "g",
        topics=[
            offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=list(range(n)))
            for name, n in TOPICS.items()
        ],
    )
    stored = {(name, index): index for name, count in TOPICS.items() for index in range(count)}
    for group in (of_all, named):
        fetched = wire.call(offset_fetch.API, 8, offset_fetch.OffsetFetchRequest(groups=[group])).groups[0]
        assert fetched.error_code == 0
        assert {
            (topic.name, one.partition_index): one.committed_offset
            for topic in fetched.topics
            for one in topic.partitions
        } == stored
    kept = [offset_delete.OffsetDeleteRequestTopic(topic.name, []) for topic in topics]
    for topic in kept:
        count = TOPICS[topic.name] + UNKNOWN
        topic.partitions = [offset_delete.OffsetDeleteRequestPartition(index) for index in range(1, count)]
    deleted = wire.call(offset_delete.API, 0, offset_delete.OffsetDeleteRequest("g", kept))
    found = [
        (topic.name, one.partition_index, one.error_code)
        for topic in deleted.topics
        for one in topic.partitions
    ]
    assert (deleted.error_code, found) == (0, [one for one in expected_errors() if one[1]])
    fetched = wire.call(offset_fetch.API, 8, offset_fetch.OffsetFetchRequest(groups=[of_all])).groups[0]
    left = [(topic.name, one.partition_index) for topic in fetched.topics for one in topic.partitions]
    assert left == [(name, 0) for name in TOPICS]
    nobody = wire.call(offset_delete.API, 0, offset_delete.OffsetDeleteRequest("nobody", kept))
    assert (nobody.error_code, nobody.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_metadata_of_many_names_has_each_once(wire: Wire) -> None:
    names = [f"unknown{number}" for number in range(FEW_ELEMENTS)] + ["a", "b", "a", "c"]
    asked = [metadata.MetadataRequestTopic(name=name) for name in names]
    answer = wire.call(metadata.API, 12, metadata.MetadataRequest(asked, False))
    assert [topic.name for topic in answer.topics] == [*names[:-2], "c"]
    assert [len(topic.partitions) for topic in answer.topics[-3:]] == list(TOPICS.values())


def test_records_of_many_partitions_are_deleted(wire: Wire) -> None:
    asked = [
        delete_records.DeleteRecordsTopic(
            name, [delete_records.DeleteRecordsPartition(index, -1) for index in range(count + UNKNOWN)]
        )
        for name, count in TOPICS.items()
    ]
    answer = wire.call(delete_records.API, 2, delete_records.DeleteRecordsRequest(asked, 30_000))
    found = [
        (topic.name, one.partition_index, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    ]
    assert found == expected_errors()


def test_a_large_request_that_cannot_be_read_closes_its_connection(broker: InProcessBroker) -> None:
    asked = [list_offsets.ListOffsetsPartition(index, -1, -1) for index in range(2 * FEW_ELEMENTS)]
    request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic("a", asked)])
    with Wire(broker.bootstrap) as wire:
        frame = wire.frame(list_offsets.API, 6, request)
        wire.socket.sendall((len(frame) - 8).to_bytes(4, "big") + frame[4:-4])
        assert wire.is_closed()
    assert "a request that cannot be read: ListOffsetsRequest version 6: " in broker.said()
    assert "Traceback" not in broker.said()


async def test_requests_that_wait_are_bounded_and_end_with_their_connections() -> None:
    memory = RequestMemory(1 << 20)
    large = LargeRequests(memory)
    handled: list[object] = []
    bound = Bound(list_offsets.API, lambda context, request: handled.append(request), False, False)
    context = request_context(7, None)
    frame = list_offsets.API.encode_request(7, list_offsets.ListOffsetsRequest(-1, 0, []))
    async with large._turn:  # another request is running
        tasks = [large.answer(bound, context, bytearray(frame), 0) for _ in range(MOST_QUEUED)]
        await asyncio.sleep(0)
        with pytest.raises(CloseConnection, match="a large ListOffsets: 1000 others wait already"):
            large.answer(bound, context, bytearray(frame), 0)
        tasks[0].cancel()  # its connection is closed
        await asyncio.wait(tasks[:1])
        tasks.append(large.answer(bound, context, bytearray(frame), 0))
    await asyncio.wait(tasks)
    assert len(handled) == MOST_QUEUED
    async with large._turn:
        task = large.answer(bound, context, bytearray(frame), 0)
        await asyncio.sleep(0)
        await large.close()
    assert task.cancelled()
    assert memory.held == 0


async def test_a_disconnect_does_not_stop_a_large_produce(tmp_path: Path) -> None:
    """Even if it had to wait: a producer without acknowledgements often ends like this."""
    async with running(tmp_path) as broker, connected(broker) as other:
        await in_process.create(other, "t", FEW_ELEMENTS + 1)
        data = [
            produce.PartitionProduceData(index, build_batch([record("x")]))
            for index in range(FEW_ELEMENTS + 1)
        ]
        request = produce.ProduceRequest(
            None, 0, 30_000, [produce.TopicProduceData("t", partition_data=data)]
        )
        large = broker.server.large
        async with connected(broker) as client, large._turn:
            sending = asyncio.create_task(client.call(produce.API, 9, request))
            while not large._queued:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await client.close()
            await asyncio.wait([sending])
            while len(broker.server.connections) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.wait(large._tasks)
        assert all(one.log.log_end_offset == 1 for one in broker.replicas.partitions.values())
