"""Groups on a real broker: every version of the APIs, and what survives a killed member or broker."""

from __future__ import annotations

import asyncio
import base64
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer

from millstream_harness.broker import AnyBroker, BrokerProcess
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import run_kafka_tool
from millstream_harness.scenario import eventually, unique
from millstream_harness.wire import Wire
from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import (
    create_topics,
    delete_groups,
    delete_topics,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
StartBrokerProcess = Callable[..., BrokerProcess]
Broker = TypeVar("Broker", bound=AnyBroker)
CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}


@pytest.fixture(scope="module")
def prompt_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    """A broker on which a new group does not wait for more members."""
    with InProcessBroker(tmp_path_factory.mktemp("prompt-broker"), CONFIG) as broker:
        yield broker


@pytest.fixture
async def cluster(prompt_broker: InProcessBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(prompt_broker.bootstrap, timeout=60) as client:
        yield client


def pinned(broker: Broker) -> Broker:
    """Keep the broker's address over restarts."""
    broker.config["listeners"] = f"PLAINTEXT://{broker.bootstrap}"
    return broker


async def create(client: ClusterClient, name: str, partitions: int = 1) -> UUID:
    """Its id."""
    topic = create_topics.CreatableTopic(name, partitions, 1)
    response = await client.call_controller(
        create_topics.API, create_topics.CreateTopicsRequest([topic], 10_000)
    )
    assert response.topics[0].error_code == 0
    return response.topics[0].topic_id


@pytest.mark.parametrize("age", range(11))
async def test_life_of_a_group_in_every_version(cluster: ClusterClient, age: int) -> None:
    """Each API in its ``age``-th version, or in its newest if it has fewer."""
    topic, group = unique("versions"), unique("versions")
    topic_id = await create(cluster, topic)
    connection = await cluster.connection(await cluster.coordinator(group))

    def call(api: Any, request: Any) -> Any:
        low, high = api.versions
        return connection.call(api, min(low + age, high), request)

    found = await call(find_coordinator.API, find_coordinator.FindCoordinatorRequest(group, 0, [group]))
    one = found.coordinators[0] if found.coordinators else found
    assert (one.error_code, one.port) == (0, connection.port)

    join = join_group.JoinGroupRequest(
        group,
        10_000,
        10_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol("range", b"x")],
    )
    joined = await call(join_group.API, join)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        join.member_id = joined.member_id
        joined = await call(join_group.API, join)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert bytes(joined.members[0].metadata) == b"x"
    member = joined.member_id

    sync = sync_group.SyncGroupRequest(
        group,
        1,
        member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[sync_group.SyncGroupRequestAssignment(member, b"y")],
    )
    assert bytes((await call(sync_group.API, sync)).assignment) == b"y"
    assert (await call(heartbeat.API, heartbeat.HeartbeatRequest(group, 1, member))).error_code == 0
    stale = await call(heartbeat.API, heartbeat.HeartbeatRequest(group, 0, member))
    assert stale.error_code == ErrorCode.ILLEGAL_GENERATION

    position = offset_commit.OffsetCommitRequestPartition(0, 42, 0, "note")
    missing = offset_commit.OffsetCommitRequestPartition(7, 1, 0, "")
    commit = offset_commit.OffsetCommitRequest(
        group,
        1,
        member,
        topics=[offset_commit.OffsetCommitRequestTopic(topic, topic_id, [position, missing])],
    )
    answers = (await call(offset_commit.API, commit)).topics[0].partitions
    assert [each.error_code for each in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    fetch = offset_fetch.OffsetFetchRequest(
        group,
        [offset_fetch.OffsetFetchRequestTopic(topic, [0, 1])],
        [
            offset_fetch.OffsetFetchRequestGroup(
                group, topics=[offset_fetch.OffsetFetchRequestTopics(topic, topic_id, [0, 1])]
            )
        ],
    )
    fetched = await call(offset_fetch.API, fetch)
    topics = fetched.groups[0].topics if fetched.groups else fetched.topics
    assert [(each.committed_offset, each.metadata) for each in topics[0].partitions] == [
        (42, "note"),
        (-1, ""),
    ]

    described = (await call(describe_groups.API, describe_groups.DescribeGroupsRequest([group]))).groups[0]
    assert (described.error_code, described.group_state, described.protocol_data) == (0, "Stable", "range")
    assert described.members[0].client_host == "/127.0.0.1"
    listed = await call(list_groups.API, list_groups.ListGroupsRequest())
    assert (group, "consumer") in [(each.group_id, each.protocol_type) for each in listed.groups]

    refused = await call(delete_groups.API, delete_groups.DeleteGroupsRequest([group, "nobody"]))
    assert [each.error_code for each in refused.results] == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    leave = leave_group.LeaveGroupRequest(group, member, [leave_group.MemberIdentity(member)])
    left = await call(leave_group.API, leave)
    assert left.error_code == 0
    assert all(each.error_code == 0 for each in left.members)
    forget = offset_delete.OffsetDeleteRequest(
        group,
        [offset_delete.OffsetDeleteRequestTopic(topic, [offset_delete.OffsetDeleteRequestPartition(0)])],
    )
    assert (await call(offset_delete.API, forget)).topics[0].partitions[0].error_code == 0
    deleted = await call(delete_groups.API, delete_groups.DeleteGroupsRequest([group]))
    assert deleted.results[0].error_code == 0
    described = (await call(describe_groups.API, describe_groups.DescribeGroupsRequest([group]))).groups[0]
    assert described.group_state == "Dead"


async def committed(client: ClusterClient, group: str, topic: str) -> int:
    wanted = offset_fetch.OffsetFetchRequestGroup(
        group, topics=[offset_fetch.OffsetFetchRequestTopics(topic, partition_indexes=[0])]
    )
    while True:
        request = offset_fetch.OffsetFetchRequest(groups=[wanted])
        found = (await client.call_coordinator(group, offset_fetch.BY_NAME, request)).groups[0]
        if found.error_code == 0:
            return found.topics[0].partitions[0].committed_offset
        assert ErrorCode.of(found.error_code).retriable
        await asyncio.sleep(0.01)


async def test_acknowledged_commits_survive_kills(start_broker_process: StartBrokerProcess) -> None:
    broker = pinned(start_broker_process(CONFIG))
    sent = acknowledged = 0
    async with ClusterClient(broker.bootstrap, timeout=60) as client:
        await create(client, "t")

        async def commit_on() -> None:
            nonlocal sent, acknowledged
            while True:
                sent += 1
                position = offset_commit.OffsetCommitRequestPartition(0, sent, 0, "")
                request = offset_commit.OffsetCommitRequest(
                    "g", topics=[offset_commit.OffsetCommitRequestTopic("t", partitions=[position])]
                )
                answer = await client.call_coordinator("g", offset_commit.BY_NAME, request)
                if answer.topics[0].partitions[0].error_code == 0:
                    acknowledged = sent

        for round_number in range(3):
            before = acknowledged
            commits = asyncio.create_task(commit_on())
            while acknowledged < before + random.randint(20, 200):
                await asyncio.sleep(0.001)
                assert not commits.done(), f"round {round_number}: {commits}"
            await asyncio.to_thread(broker.kill)
            with pytest.raises(BrokerError):
                await commits
            await asyncio.to_thread(broker.start)
            assert acknowledged <= await committed(client, "g", "t") <= sent


def poll(consumers: list[Any], seen: set[int]) -> int:
    """Poll each consumer once and record the values; returns the number of distinct values so far."""
    for one in consumers:
        message = one.poll(0.05)
        if message is not None and not message.error():
            seen.add(int(message.value()))
    return len(seen)


async def test_topic_made_anew_does_not_start_at_old_offsets(cluster: ClusterClient) -> None:
    topic, group = unique("anew"), unique("anew")
    await create(cluster, topic)
    await cluster.coordinator(group)
    position = offset_commit.OffsetCommitRequestPartition(0, 42, 0, "")
    request = offset_commit.OffsetCommitRequest(
        group, topics=[offset_commit.OffsetCommitRequestTopic(topic, partitions=[position])]
    )
    await cluster.call_coordinator(group, offset_commit.BY_NAME, request)
    assert await committed(cluster, group, topic) == 42
    deletion = delete_topics.DeleteTopicsRequest(
        [delete_topics.DeleteTopicState(name=topic)], [topic], timeout_ms=10_000
    )
    await cluster.call_controller(delete_topics.API, deletion)
    await create(cluster, topic)
    deadline = asyncio.get_running_loop().time() + 60
    while await committed(cluster, group, topic) != -1:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def settle(consumers: list[Any], accept: Callable[[list[set[int]]], bool]) -> set[int]:
    """Poll until the assignments are accepted; returns the values seen meanwhile."""
    seen: set[int] = set()

    def owned() -> list[set[int]]:
        poll(consumers, seen)
        return [{each.partition for each in one.assignment()} for one in consumers]

    eventually(owned, accept, "assignments")
    return seen


def consumer(broker: InProcessBroker, group: str, **config: Any) -> Any:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 100,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )


def produce(broker: InProcessBroker, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value), partition=value % 4)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_go_on_when_their_coordinator_was_killed(start_broker: StartBroker, strategy: str) -> None:
    broker = pinned(start_broker({**CONFIG, "num.partitions": "4"}))
    produce(broker, "t", range(100))
    members = [consumer(broker, "g", partition_assignment_strategy=strategy) for _ in range(2)]
    for member in members:
        member.subscribe(["t"])
    everything = {0, 1, 2, 3}
    seen = settle(
        members, lambda owned: len(owned[0]) == len(owned[1]) == 2 and owned[0] | owned[1] == everything
    )
    broker.kill()
    broker.start()
    produce(broker, "t", range(100, 200))
    eventually(lambda: poll(members, seen), lambda count: count == 200, "records", 60)
    for member in members:
        member.commit(asynchronous=False)
        member.close()


CONSUME_FOREVER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "session.timeout.ms": 6000})
consumer.subscribe([sys.argv[3]])
while True:
    consumer.poll(0.1)
    if len(consumer.assignment()) == 2:
        print("owns two", flush=True)
"""


def test_partitions_of_a_killed_member_go_to_the_others(start_broker: StartBroker) -> None:
    broker = start_broker({**CONFIG, "num.partitions": "4"})
    produce(broker, "t", range(4))
    survivor = consumer(broker, "g")
    survivor.subscribe(["t"])
    settle([survivor], lambda owned: len(owned[0]) == 4)
    command = [sys.executable, "-c", CONSUME_FOREVER, broker.bootstrap, "g", "t"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as victim:
        try:
            settle([survivor], lambda owned: len(owned[0]) == 2)
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"owns two\n"
        finally:
            victim.kill()
    settle([survivor], lambda owned: len(owned[0]) == 4)
    survivor.close()


def test_kafkas_own_formatters_read_the_internal_topic(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker({**CONFIG, "num.partitions": "4"})
    produce(broker, "t", range(4))
    member = consumer(broker, "g", group_instance_id="static-one", client_id="reader")
    member.subscribe(["t"])
    settle([member], lambda owned: len(owned[0]) == 4)
    eventually(lambda: member.poll(0.05), lambda message: message is not None, "a record")
    member.commit(asynchronous=False)
    member.close()

    # All of the group is in one partition. A tool that is given the partition joins no group: it adds nothing.
    with Wire(broker.bootstrap) as wire:
        ends = [wire.end_offset("__consumer_offsets", partition) for partition in range(3)]
    ((partition, count),) = ((partition, end) for partition, end in enumerate(ends) if end)

    def said(formatter: str) -> str:
        return run_kafka_tool(
            "console-consumer",
            "--bootstrap-server",
            broker.bootstrap,
            "--topic",
            "__consumer_offsets",
            "--partition",
            str(partition),
            "--offset",
            "earliest",
            "--max-messages",
            str(count),
            "--timeout-ms",
            "50000",
            "--formatter",
            f"org.apache.kafka.tools.consumer.{formatter}",
        ).stdout

    offsets = said("OffsetsMessageFormatter")
    assert '"group":"g","topic":"t"' in offsets
    assert '"offset":1' in offsets
    groups = said("GroupMetadataMessageFormatter")
    assert '"protocolType":"consumer"' in groups
    assert '"groupInstanceId":"static-one"' in groups

    logs = sorted(str(path) for path in broker.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    dumped = run_kafka_tool("dump-log", "--offsets-decoder", "--files", ",".join(logs)).stdout
    assert "isvalid: false" not in dumped
    assert '"type":"1","data":{"group":"g","topic":"t","partition":' in dumped
    with Wire(broker.bootstrap) as wire:
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="t")])
        topic_id = wire.call(metadata.API, 12, asked).topics[0].topic_id
    named = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")  # as Kafka prints it
    assert f'"topicId":"{named}"' in dumped
    assert '"groupInstanceId":"static-one"' in dumped
