"""An ordinary topic that rejoins a source: who may truncate it, when, and with which effect."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.mirrored import CLUSTER, Source, mirror
from millstream_harness.scenario import unique
from millstream_kafka.batch import Record, build_batch, iter_batches
from millstream_kafka.client.connection import Connection
from millstream_kafka.mirror_source import KEY, REJOINED, MirrorSource
from millstream_kafka.protocol import fetch, incremental_alter_configs, mirror_truncate, produce
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.mirror_truncate import (
    MirrorTruncateRequest,
    TruncatedPartition,
    TruncatedPartitionResponse,
    TruncatedTopic,
)

SOURCE = MirrorSource(CLUSTER, uuid.uuid4())
REJOINS = SOURCE._replace(rejoins=True)
SET, DELETE = 0, 1
NOW_MS = 1_800_000_000_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "data", {"log.message.timestamp.after.max.ms": str(1 << 62)}) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Connection]:
    async with connected(broker) as client:
        yield client


async def write(client: Connection, topic: str, count: int = 1) -> ErrorCode:
    batch = build_batch([Record(b"k", b"v", NOW_MS)] * count)
    data = produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(0, batch)])
    answer = await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 10_000, [data]))
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


async def alter(client: Connection, topic: str, value: str | None) -> str:
    """Set or delete the setting, under another request each time; return why the broker refuses."""
    configs = [
        incremental_alter_configs.AlterableConfig(KEY, DELETE if value is None else SET, value),
        incremental_alter_configs.AlterableConfig(REJOINED, SET, unique("request")),
    ]
    resource = incremental_alter_configs.AlterConfigsResource(2, topic, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
    answer = await client.call(incremental_alter_configs.API, 1, request)
    return answer.responses[0].error_message or "" if answer.responses[0].error_code else ""


async def truncate(
    client: Connection, topic: str, source: MirrorSource = SOURCE, **asked: int
) -> TruncatedPartitionResponse:
    request = MirrorTruncateRequest(
        source.cluster_id, [TruncatedTopic(topic, source.topic_id, [TruncatedPartition(0, **asked)])]
    )
    answer = await client.call(mirror_truncate.API, 0, request)
    return answer.topics[0].partitions[0]


async def a_topic(client: Connection, *counts: int) -> str:
    """A topic with batches of these record counts, then read-only."""
    topic = unique("rejoins")
    await create(client, topic)
    for count in counts:
        assert await write(client, topic, count) is ErrorCode.NONE
    assert await alter(client, topic, str(REJOINS)) == ""
    return topic


def as_it_is(found: TruncatedPartitionResponse) -> dict[str, int]:
    return {
        "leader_epoch": found.leader_epoch,
        "end_offset": found.log_end_offset,
        "last_epoch": found.last_epoch,
    }


async def ready(client: Connection, topic: str) -> TruncatedPartitionResponse:
    """The state, once the leader's epoch is above its records': only then can the log be cut."""
    async with asyncio.timeout(60):
        while True:
            found = await truncate(client, topic)
            if found.leader_epoch > found.last_epoch:
                return found
            refused = await truncate(client, topic, **as_it_is(found), offset=found.log_end_offset)
            assert ErrorCode.of(refused.error_code) in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.FENCED_LEADER_EPOCH,
            )
            await asyncio.sleep(0.01)


async def test_the_end_is_cut_and_the_source_follows(broker: Broker, client: Connection) -> None:
    topic = await a_topic(client, 3, 2, 4)
    before = await ready(client, topic)
    assert (before.error_code, before.log_start_offset, before.log_end_offset) == (0, 0, 9)
    assert (before.high_watermark, before.in_sync) == (9, True)
    old = broker.replicas.partitions[topic, 0]
    cut = await truncate(client, topic, **as_it_is(before), offset=5)
    assert (cut.error_code, cut.log_end_offset, cut.high_watermark, cut.in_sync) == (0, 5, 5, True)
    partition = broker.replicas.partitions[topic, 0]
    assert partition is not old, "fetches must compare their logs with it anew"
    assert partition.log is old.log
    assert await write(client, topic) is ErrorCode.POLICY_VIOLATION
    again = await truncate(client, topic, **as_it_is(before), offset=5)
    assert again.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "sent twice, it changes nothing"
    assert again.log_end_offset == 5
    early = await mirror(client, topic, SOURCE, 5, b"")
    assert early.error_code == ErrorCode.POLICY_VIOLATION
    assert "rejoins" in (early.error_message or "")
    assert await alter(client, topic, str(SOURCE)) == ""
    source = Source()
    source.end, source.epoch = 5, 7
    source.add(2)
    async with asyncio.timeout(60):
        while True:
            answer = await mirror(client, topic, SOURCE, 5, source.after(5))
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:  # the leader takes a higher epoch first
                break
            await asyncio.sleep(0.01)
    assert answer.error_code == 0
    state = await mirror(client, topic, SOURCE, -1)
    assert (state.log_end_offset, state.last_epoch) == (7, 7)
    assert partition.log.epochs.entries == [(0, 0), (7, 5)]
    late = await truncate(client, topic, **as_it_is(cut), offset=0)
    assert late.error_code == ErrorCode.POLICY_VIOLATION, "a replica in service is never cut"
    assert (await mirror(client, topic, SOURCE, -1)).log_end_offset == 7


async def test_a_waiting_fetch_ends_and_offsets_behind_the_end_are_out_of_range(
    client: Connection, broker: Broker
) -> None:
    topic = await a_topic(client, 3, 2)
    await ready(client, topic)
    asked = fetch.FetchPartition(0, fetch_offset=5, partition_max_bytes=1000)
    request = fetch.FetchRequest(
        max_wait_ms=600_000, min_bytes=1, topics=[fetch.FetchTopic(topic, partitions=[asked])]
    )
    async with connected(broker) as other:
        waiting = asyncio.create_task(other.call(fetch.API, 12, request, timeout=60))
        await until(lambda: any(one.pending for one in broker.server.connections))
        before = await truncate(client, topic)
        cut = await truncate(client, topic, **as_it_is(before), offset=3)
        assert cut.error_code == 0
        (answer,) = (await waiting).responses[0].partitions
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # it came while the log was being cut
            (answer,) = (await other.call(fetch.API, 12, request)).responses[0].partitions
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_a_restart_finds(tmp_path: Path) -> None:
    config = {"log.message.timestamp.after.max.ms": str(1 << 62)}
    async with running(tmp_path, config) as broker, connected(broker) as client:
        topic = await a_topic(client, 3, 2)
        before = await ready(client, topic)
        assert (await truncate(client, topic, **as_it_is(before), offset=3)).error_code == 0
    async with running(tmp_path) as broker, connected(broker) as client:
        found = await truncate(client, topic)
        assert (found.error_code, found.log_end_offset, found.high_watermark) == (0, 3, 3)
        stored = b"".join(
            path.read_bytes()
            for path in sorted(Path(str(broker.replicas.partitions[topic, 0].log.directory)).glob("*.log"))
        )
        assert [header.last_offset for _, header in iter_batches(stored)] == [2]


async def test_a_flush_of_the_leadership_before_the_cut_changes_nothing(
    broker: Broker, client: Connection
) -> None:
    """When the disk responds, its log and ISR belong to another leadership."""
    topic = unique("flushed")
    await create(client, topic, flush_messages="2")
    for count in (3, 2):
        assert await write(client, topic, count) is ErrorCode.NONE
    assert await alter(client, topic, str(REJOINS)) == ""
    old = broker.replicas.partitions[topic, 0]
    async with asyncio.timeout(60):
        while True:
            before = await ready(client, topic)
            if before.high_watermark == 5:  # the disk has them
                break
            await asyncio.sleep(0.01)
    assert (await truncate(client, topic, **as_it_is(before), offset=3)).error_code == 0
    old._secured = 2  # as if a flush had been running
    await old._flush()
    assert old._secured == 2
    found = await truncate(client, topic)
    assert (found.log_end_offset, found.high_watermark, found.in_sync) == (3, 3, True)


async def test_what_is_written_behind_a_cut_has_an_epoch_of_its_own(
    broker: Broker, client: Connection
) -> None:
    """Otherwise a replica that returns with the removed records would take them for the new ones."""
    topic = await a_topic(client, 3, 2)
    before = await truncate(client, topic)
    too_early = await truncate(client, topic, **as_it_is(before), offset=3)
    assert ErrorCode.of(too_early.error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "takes a leader epoch above 0" in (too_early.error_message or "")
    before = await ready(client, topic)
    assert (before.last_epoch, before.leader_epoch) == (0, 1)
    assert (await truncate(client, topic, **as_it_is(before), offset=3)).error_code == 0
    assert await alter(client, topic, None) == ""
    assert await write(client, topic, 4) is ErrorCode.NONE
    epochs = broker.replicas.partitions[topic, 0].log.epochs
    assert epochs.end_offset(0, 7) == (0, 3)
    assert epochs.entries == [(0, 0), (before.leader_epoch, 3)]


async def test_a_reader_of_the_old_end_never_sees_other_records(broker: Broker, client: Connection) -> None:
    """Even if a whole segment is removed, and its file's name is used again."""
    topic = await a_topic(client, 3, 2)
    log = broker.replicas.partitions[topic, 0].log
    old = log.read(0, 1 << 20, upper=5, min_one=True)
    assert old is not None
    before = await ready(client, topic)
    assert (await truncate(client, topic, **as_it_is(before), offset=0)).error_code == 0
    assert await alter(client, topic, None) == ""
    assert await write(client, topic, 5) is ErrorCode.NONE
    new = log.read(0, 1 << 20, upper=5, min_one=True)
    assert new is not None
    assert os.fstat(new.file.fileno()).st_ino != os.fstat(old.file.fileno()).st_ino
    headers = iter_batches(old.file.pread(1 << 20, 0))
    assert {header.partition_leader_epoch for _, header in headers} == {0}


async def test_records_of_an_epoch_without_records_do_not_matter(broker: Broker, client: Connection) -> None:
    """A cut at the end only forgets that a leader began there."""
    topic = await a_topic(client, 3)
    log = broker.replicas.partitions[topic, 0].log
    log.epochs.assign(4, 3)
    before = await ready(client, topic)
    assert before.last_epoch == 4
    cut = await truncate(client, topic, **as_it_is(before), offset=3)
    assert (cut.error_code, cut.log_end_offset, cut.last_epoch) == (0, 3, 0)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"end_offset": 4}, ErrorCode.OFFSET_OUT_OF_RANGE, "ends at offset 5 with leader epoch 0, not at 4"),
        ({"last_epoch": 3}, ErrorCode.OFFSET_OUT_OF_RANGE, "not at 5 with 3"),
        ({"leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH, ""),
        ({"leader_epoch": -1}, ErrorCode.INVALID_REQUEST, "the leader epoch must be given"),
        ({"offset": 6}, ErrorCode.INVALID_REQUEST, "offset 6 is not within 0 and 5"),
        ({"offset": 1 << 62}, ErrorCode.INVALID_REQUEST, "is not within 0 and 5"),
        ({"offset": 1}, ErrorCode.INVALID_REQUEST, "offset 1 is inside a batch"),
    ],
)
async def test_what_is_refused(
    client: Connection, change: dict[str, int], code: ErrorCode, said: str
) -> None:
    topic = await a_topic(client, 3, 2)
    before = await truncate(client, topic)
    answer = await truncate(client, topic, **{**as_it_is(before), "offset": 3, **change})
    assert ErrorCode.of(answer.error_code) is code
    assert said in (answer.error_message or "")
    assert (await truncate(client, topic)).log_end_offset == 5


async def test_only_topics_that_rejoin_this_source(client: Connection) -> None:
    other = SOURCE._replace(topic_id=uuid.uuid4())
    topic = await a_topic(client, 3)
    state = as_it_is(await truncate(client, topic))
    answer = await truncate(client, topic, other, **state, offset=0)
    assert answer.error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert answer.log_end_offset == -1, "nothing is said about a topic of another source"
    assert await alter(client, topic, None) == ""
    assert await write(client, topic) is ErrorCode.NONE
    for name in (topic, unique("no-such-topic")):
        answer = await truncate(client, name, **state, offset=0)
        assert answer.error_code in (ErrorCode.POLICY_VIOLATION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    replica = unique("replica")
    await create(client, replica, **{KEY: str(SOURCE)})
    answer = await truncate(client, replica, **{**state, "end_offset": 0, "last_epoch": -1}, offset=0)
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert "a replica of" in (answer.error_message or "")


async def test_how_the_setting_may_change(client: Connection) -> None:
    topic, other = unique("set"), str(REJOINS._replace(topic_id=uuid.uuid4()))
    await create(client, topic)
    assert "can be set only when a topic is created" in await alter(client, topic, str(SOURCE))
    assert await alter(client, topic, str(REJOINS)) == ""
    assert await alter(client, topic, str(REJOINS)) == ""
    assert "can be set only" in await alter(client, topic, other)
    assert "can be set only" in await alter(client, topic, other.removesuffix("/rejoin"))
    assert await alter(client, topic, str(SOURCE)) == ""
    assert "can be set only" in await alter(client, topic, str(REJOINS))
    assert await alter(client, topic, None) == ""
    assert await alter(client, topic, other) == ""
    assert await alter(client, topic, None) == ""
    assert "Value must be CLUSTERID/TOPICID" in await alter(client, topic, f"{SOURCE}/again")
