"""A right that is taken away ends what began with it: long polls, fetch sessions, learned Produce requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest_asyncio

from millstream_broker.broker import Broker
from millstream_broker.runtime.slices import finish
from millstream_broker.security.session import anonymous
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.shared_tree import SharedTree
from millstream_harness.wire import record
from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import (
    create_topics,
    elect_leaders,
    fetch,
    mirror_append,
    mirror_truncate,
    produce,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from millstream_kafka.protocol.mirror_append import MirrorAppendRequest, MirrorPartition, MirrorTopic
from millstream_kafka.protocol.mirror_truncate import (
    MirrorTruncateRequest,
    TruncatedPartition,
    TruncatedTopic,
)
from millstream_kafka.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
A_MINUTE_MS = 60_000


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    async with running(tmp_path, config) as broker:
        async with connected(broker) as client:
            await create(client, "t")
        yield broker


async def allow(
    broker: Broker,
    *operations: AclOperation,
    resource_type: ResourceType = ResourceType.TOPIC,
    name: str = "t",
    host: str = "*",
) -> None:
    """Allow everybody these operations on a resource, and no others."""
    entries = frozenset(
        AccessControlEntry("User:*", host, operation, PermissionType.ALLOW)
        for operation in operations or [AclOperation.DESCRIBE_CONFIGS]
    )
    pattern = ResourcePattern(resource_type, name)
    assert await broker.coordination.change_acls({pattern: lambda stored: entries}) == {}


async def fetched(
    client: Connection, session: tuple[int, int], wait_ms: int, *, names: bool
) -> FetchResponse:
    partitions = [FetchPartition(0, -1, 0, -1, -1, 1 << 20)]
    topics = [FetchTopic("t", partitions=partitions)] if names else []
    request = FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
    )
    return await client.call(fetch.API, 11, request, timeout=50)


def errors(response: FetchResponse) -> list[int]:
    return [data.error_code for topic in response.responses for data in topic.partitions]


async def test_a_waiting_fetch_ends_when_its_right_is_taken_away(broker: Broker) -> None:
    await allow(broker, AclOperation.READ)
    async with connected(broker) as client:
        waiting = asyncio.create_task(fetched(client, (0, -1), A_MINUTE_MS, names=True))
        await until(lambda: broker.fetch_sessions._waiting)
        await allow(broker, AclOperation.WRITE)
        assert errors(await waiting) == [REFUSED]


async def test_a_waiting_fetch_goes_on_after_a_change_that_does_not_concern_it(broker: Broker) -> None:
    await allow(broker, AclOperation.READ)
    async with connected(broker) as client, connected(broker) as producer:
        waiting = asyncio.create_task(fetched(client, (0, -1), A_MINUTE_MS, names=True))
        await until(lambda: broker.fetch_sessions._waiting)
        await allow(broker, AclOperation.READ, AclOperation.WRITE)
        await until(lambda: broker.fetch_sessions._rights_timer is None)
        assert not waiting.done()
        assert await produced(producer) == 0
        assert errors(await waiting) == [0]


async def test_a_fetch_session_reports_a_right_that_was_taken_away_and_given_back(broker: Broker) -> None:
    await allow(broker, AclOperation.READ)
    async with connected(broker) as client:
        first = await fetched(client, (0, 0), 0, names=True)
        session = first.session_id
        assert session
        assert errors(await fetched(client, (session, 1), 0, names=False)) == [], "nothing is new"
        await allow(broker)
        assert errors(await fetched(client, (session, 2), 0, names=False)) == [REFUSED]
        await allow(broker, AclOperation.READ)
        assert errors(await fetched(client, (session, 3), 0, names=False)) == [0]


async def test_a_fetch_session_is_read_with_the_rights_of_who_continues_it(broker: Broker) -> None:
    await allow(broker, AclOperation.READ, host="127.0.0.1")
    async with connected(broker) as client:
        session = (await fetched(client, (0, 0), 0, names=True)).session_id
        assert errors(await fetched(client, (session, 1), 0, names=False)) == []
    other = anonymous("PLAINTEXT", "127.0.0.2")
    request = FetchRequest(session_id=session, session_epoch=2)
    answer = await finish(broker.fetch_sessions.answer(request, other, 99, 11))
    assert isinstance(answer, FetchResponse)
    assert errors(answer) == [REFUSED]


async def produced(client: Connection, name: str = "t") -> int:
    data = [PartitionProduceData(0, memoryview(build_batch([record("a")])))]
    request = ProduceRequest(None, -1, 5000, [TopicProduceData(name, partition_data=data)])
    answer = await client.call(produce.API, 9, request)
    return answer.responses[0].partition_responses[0].error_code


async def test_a_learned_produce_request_is_checked_again(broker: Broker) -> None:
    await allow(broker, AclOperation.WRITE)
    async with connected(broker) as client:
        assert [await produced(client) for _ in range(3)] == [0, 0, 0]
        await allow(broker, AclOperation.READ)
        assert await produced(client) == REFUSED
        assert await asyncio.gather(*(produced(client) for _ in range(5))) == [REFUSED] * 5
        await allow(broker, AclOperation.WRITE)
        assert await produced(client) == 0


async def test_mirrors_need_a_right_of_their_own(broker: Broker) -> None:
    """ClusterAction on the cluster, and Write or Delete on the topic."""
    append = MirrorAppendRequest("c", 1000, [MirrorTopic("t", uuid4(), [MirrorPartition(0, -1, 0)])])
    truncate = MirrorTruncateRequest("c", [TruncatedTopic("t", uuid4(), [TruncatedPartition(0, -1)])])
    cluster = {"resource_type": ResourceType.CLUSTER, "name": CLUSTER_NAME}

    async def codes(client: Connection) -> tuple[int, int]:
        appended = await client.call(mirror_append.API, mirror_append.API.served[1], append)
        truncated = await client.call(mirror_truncate.API, mirror_truncate.API.served[1], truncate)
        return (
            appended.topics[0].partitions[0].error_code,
            truncated.topics[0].partitions[0].error_code,
        )

    async with connected(broker) as client:
        await allow(broker, AclOperation.WRITE, AclOperation.DELETE)
        await allow(broker, AclOperation.ALTER, **cluster)  # type: ignore[arg-type]
        no_cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await codes(client) == (no_cluster, no_cluster)
        await allow(broker, AclOperation.CLUSTER_ACTION, **cluster)  # type: ignore[arg-type]
        both = await codes(client)
        assert REFUSED not in both
        assert no_cluster not in both
        await allow(broker, AclOperation.READ)
        assert await codes(client) == (REFUSED, REFUSED)


@contextlib.asynccontextmanager
async def connected_to(broker: Broker) -> AsyncIterator[Connection]:
    """A client of this broker among several."""
    listener = broker.replicas.metadata.brokers[broker.replicas.broker_id].listeners[0]
    client = await Connection.open(listener.host, listener.port)
    try:
        yield client
    finally:
        await client.close()


async def test_brokers_of_a_cluster_need_no_rule(tmp_path: Path) -> None:
    """They replicate, elect, and forward a client's request to the controller, which checks brokers only."""
    shared = SharedTree()
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    async with (
        running(tmp_path / "1", {**config, "broker.id": "1"}, shared.store) as one,
        running(tmp_path / "2", {**config, "broker.id": "2"}, shared.store) as two,
    ):
        await allow(one, AclOperation.CREATE, AclOperation.WRITE)
        await allow(one, AclOperation.ALTER, resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME)
        await until(lambda: len(two.coordination.acls.rules) == 2 and len(one.replicas.metadata.brokers) == 2)
        async with connected_to(one) as client:
            wanted = create_topics.CreatableTopic("t", 1, 2, [], [])
            made = await client.call(
                create_topics.API, 7, create_topics.CreateTopicsRequest([wanted], 10_000)
            )
            assert made.topics[0].error_code == 0
        leader = one if ("t", 0) in one.replicas.partitions else two
        async with connected_to(leader) as client:
            assert await produced(client) == 0, "acks=all: the follower has fetched"
        elect = elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions("t", [0])], 10_000)
        for broker in (one, two):
            async with connected_to(broker) as client:
                elected = await client.call(elect_leaders.API, 2, elect)
                assert elected.error_code == 0
