"""A mirror's replica in one broker: accepted batches, refusals, and promotion."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream_broker.administration.producer_ids import BLOCK
from millstream_broker.broker import Broker
from millstream_broker.coordination import Conflict
from millstream_broker.topic_rules.mirrored_topics import EPOCHS_ABOVE, FURTHEST_START, LARGEST_EPOCH
from millstream_harness.in_process import connected, create, running
from millstream_harness.mirrored import Source, mirror, mirror_several
from millstream_harness.scenario import unique
from millstream_kafka.batch import HEADER_SIZE, iter_batches
from millstream_kafka.client.connection import Connection
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.mirror_source import KEY, MirrorSource, parse
from millstream_kafka.protocol import (
    alter_configs,
    delete_records,
    delete_topics,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    offset_for_leader_epoch,
    produce,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_append import MirrorPartitionResponse

SET, DELETE = 0, 1


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Connection]:
    async with connected(broker) as client:
        yield client


@pytest.fixture
async def replica(client: Connection) -> tuple[str, Source]:
    return await new_replica(client)


async def new_replica(client: Connection, partitions: int = 1, **config: str) -> tuple[str, Source]:
    topic, source = unique("replica"), Source()
    await create(client, topic, partitions, **{KEY: str(source.topic)}, **config)
    return topic, source


async def send(
    client: Connection, topic: str, source: Source, at: int, partition: int = 0
) -> MirrorPartitionResponse:
    """Retry until the leader accepts: a new source epoch makes it take a higher one first."""
    async with asyncio.timeout(60):
        while True:
            answer = await mirror(client, topic, source.topic, at, source.after(at), partition=partition)
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return answer
            await asyncio.sleep(0.005)


def stored(broker: Broker, topic: str, partition: int = 0) -> bytes:
    """A partition's batches, as stored in its files."""
    folder = Path(str(broker.replicas.partitions[topic, partition].log.directory))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


async def alter(client: Connection, topic: str, operation: int, value: str | None, key: str = KEY) -> str:
    """Change one setting; return the error, or ""."""
    config = incremental_alter_configs.AlterableConfig(key, operation, value)
    resource = incremental_alter_configs.AlterConfigsResource(2, topic, [config])
    answer = await client.call(
        incremental_alter_configs.API,
        1,
        incremental_alter_configs.IncrementalAlterConfigsRequest([resource]),
    )
    return answer.responses[0].error_message or "" if answer.responses[0].error_code else ""


async def write(client: Connection, topic: str, batch: bytes) -> produce.PartitionProduceResponse:
    data = produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(0, batch)])
    answer = await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 10_000, [data]))
    return answer.responses[0].partition_responses[0]


def an_ordinary_batch(**how: int) -> bytes:
    return Source().add(timestamp=int(time.time() * 1000), **how)


async def test_batches_are_stored_as_they_are(broker: Broker, client: Connection) -> None:
    topic, source = await new_replica(client)
    source.epoch = 5
    source.add(3)
    source.add(2, gap=10, producer_id=7, producer_epoch=0, base_sequence=40)
    source.epoch = 9
    source.add(1)
    answer = await send(client, topic, source, 0)
    assert answer.error_code == 0, answer.error_message
    assert (answer.log_start_offset, answer.log_end_offset, answer.last_epoch) == (0, 16, 9)
    assert stored(broker, topic) == source.after(0)
    partition = broker.replicas.partitions[topic, 0]
    assert partition.record.leader_epoch == 2 * EPOCHS_ABOVE
    assert partition.log.epochs.entries == [(5, 0), (9, 15)]


async def test_a_leader_takes_an_epoch_above_that_of_its_records(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    """Such an epoch comes from a source that was itself a mirror, and was promoted."""
    topic, source = replica
    source.add(2)
    await send(client, topic, source, 0)
    source.epoch = 2 * EPOCHS_ABOVE
    source.add(3)
    first = await mirror(client, topic, source.topic, 2, source.after(2))
    assert (first.error_code, first.log_end_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert (await send(client, topic, source, 2)).error_code == 0
    partition = broker.replicas.partitions[topic, 0]
    taken = partition.record.leader_epoch
    assert 4 * EPOCHS_ABOVE <= taken < 5 * EPOCHS_ABOVE
    assert partition.log.epochs.entries == [(0, 0), (2 * EPOCHS_ABOVE, 2)]
    assert stored(broker, topic) == source.after(0)
    assert await alter(client, topic, DELETE, None) == ""
    assert (await write(client, topic, an_ordinary_batch())).error_code == 0
    assert partition.log.epochs.entries[2:] == [(taken, 5)]


@pytest.mark.parametrize("at", [-1, 0, 3, 4, 6, 100])
async def test_only_what_continues_the_log_is_appended(
    broker: Broker, client: Connection, replica: tuple[str, Source], at: int
) -> None:
    topic, source = replica
    for _ in range(3):
        source.add(2)
    await send(client, topic, source, 0)
    source.add(5)
    before = stored(broker, topic)
    answer = await mirror(client, topic, source.topic, at, source.after(at))
    assert answer.log_end_offset == (11 if at == 6 else 6)
    if at == 6:
        assert (answer.error_code, stored(broker, topic)) == (0, source.after(0))
    else:
        assert stored(broker, topic) == before
        assert answer.error_code == (0 if at < 0 else ErrorCode.OFFSET_OUT_OF_RANGE)


async def test_a_request_that_overtakes_a_failed_one_leaves_no_gap(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    source.add(2)
    await send(client, topic, source, 0)
    source.add(3)
    source.add(4)
    answer = await mirror(client, topic, source.topic, 5, source.after(5))
    assert (answer.error_code, answer.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


async def test_several_partitions_succeed_and_fail_by_themselves(client: Connection) -> None:
    topic, source = await new_replica(client, 3)
    batch = source.add(4)
    await send(client, topic, source, 0)
    answers = await mirror_several(
        client,
        topic,
        source.topic,
        [(0, 0, batch, 0), (1, 0, batch, 0), (2, 0, b"damaged", 0), (7, 0, batch, 0)],
    )
    if answers[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # the leader takes a higher epoch first
        answers[1] = await send(client, topic, source, 0, 1)
    codes = [ErrorCode.of(one.error_code) for one in answers]
    assert codes == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [one.log_end_offset for one in answers] == [4, 4, 0, -1]


async def test_what_a_hostile_client_sends_changes_nothing(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    source.epoch = 4
    source.add(2)
    await send(client, topic, source, 0)
    before = stored(broker, topic)
    good = Source()
    good.epoch, good.end = 4, 2

    def with_field(at: int, form: str, value: int) -> bytes:
        batch = bytearray(Source.add(_copy(good)))
        struct.pack_into(form, batch, at, value)
        return bytes(batch)

    of_epoch = {}
    for epoch in (3, -1, LARGEST_EPOCH + 1):
        other = _copy(good)
        other.epoch = epoch
        of_epoch[epoch] = other.add()
    flagged = {}
    for flag in ("transactional", "control"):
        flagged[flag] = _copy(good).add(**{flag: 1})
    far = _copy(good)
    far.end = (1 << 62) + 1
    expected = [
        (b"", ErrorCode.NONE),  # nothing to append
        (b"\0" * 10, ErrorCode.CORRUPT_MESSAGE),
        (b"\xff" * 200, ErrorCode.CORRUPT_MESSAGE),
        (_copy(good).add()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (_copy(good).add() + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (with_field(16, ">b", 1), ErrorCode.CORRUPT_MESSAGE),
        (with_field(0, ">q", 1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (with_field(0, ">q", -1), ErrorCode.CORRUPT_MESSAGE),
        (with_field(21, ">h", 1), ErrorCode.CORRUPT_MESSAGE),
        (of_epoch[3], ErrorCode.FENCED_LEADER_EPOCH),
        (of_epoch[-1], ErrorCode.INVALID_RECORD),
        (of_epoch[LARGEST_EPOCH + 1], ErrorCode.INVALID_RECORD),
        (flagged["transactional"], ErrorCode.INVALID_RECORD),
        (flagged["control"], ErrorCode.INVALID_RECORD),
        (far.add(), ErrorCode.INVALID_RECORD),
    ]
    for batch, code in expected:
        answer = await mirror(client, topic, source.topic, 2, batch)
        assert ErrorCode.of(answer.error_code) is code, (batch, answer)
        assert stored(broker, topic) == before
    for absurd in ((1 << 63) - 1, 1 << 62, 3 + FURTHEST_START):
        for records in (None, _copy(good).add()):
            answer = await mirror(client, topic, source.topic, 2, records, log_start=absurd)
            assert ErrorCode.of(answer.error_code) is ErrorCode.INVALID_REQUEST
            assert f"{topic}-0 ends at offset 2: its source's log cannot start at {absurd}" in (
                answer.error_message or ""
            )
            assert (answer.log_start_offset, answer.log_end_offset) == (0, 2)
            assert stored(broker, topic) == before
    assert (await mirror(client, topic, source.topic, 2, _copy(good).add())).error_code == 0


def _copy(source: Source) -> Source:
    other = Source()
    other.epoch, other.end = source.epoch, source.end
    return other


async def test_other_sources_and_ordinary_topics_are_refused(
    client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    batch = source.add()
    ordinary = unique("ordinary")
    await create(client, ordinary)
    for asked, of, code in (
        (topic, MirrorSource(source.topic.cluster_id, uuid.uuid4()), ErrorCode.INCONSISTENT_TOPIC_ID),
        (topic, MirrorSource("another", source.topic.topic_id), ErrorCode.INCONSISTENT_TOPIC_ID),
        (ordinary, source.topic, ErrorCode.POLICY_VIOLATION),
        (unique("unknown"), source.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        for offset in (0, -1):
            answer = await mirror(client, asked, of, offset, batch)
            assert ErrorCode.of(answer.error_code) is code
    assert (
        str(source.topic) in (await mirror(client, topic, MirrorSource("a", uuid.uuid4()), 0)).error_message
    )


async def test_clients_cannot_write_or_delete(client: Connection, replica: tuple[str, Source]) -> None:
    topic, source = replica
    source.add(5)
    await send(client, topic, source, 0)
    answer = await write(client, topic, an_ordinary_batch())
    assert ErrorCode.of(answer.error_code) is ErrorCode.POLICY_VIOLATION
    assert answer.error_message == (
        f"Topic '{topic}' is a read-only mirror of {source.topic}. To write to it, promote it: name it in spec.promote"
        f" of its MirrorMaker, or delete its setting {KEY}"
    )
    deletion = delete_records.DeleteRecordsTopic(topic, [delete_records.DeleteRecordsPartition(0, 2)])
    request = delete_records.DeleteRecordsRequest([deletion], 10_000)
    refused = await client.call(delete_records.API, 2, request)
    assert ErrorCode.of(refused.topics[0].partitions[0].error_code) is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("source_epoch", [1, EPOCHS_ABOVE, EPOCHS_ABOVE + 1, 2 * EPOCHS_ABOVE - 1])
async def test_promotion_leaves_the_former_source_room_for_epochs(
    broker: Broker, client: Connection, replica: tuple[str, Source], source_epoch: int
) -> None:
    """The source can rejoin while its epochs, which each new controller moves, are below the promoted topic's."""
    topic, source = replica
    source.epoch = source_epoch
    source.add(5)
    await send(client, topic, source, 0)
    partition = broker.replicas.partitions[topic, 0]
    is_near = source_epoch > EPOCHS_ABOVE
    assert (partition.record.leader_epoch > 2 * EPOCHS_ABOVE) is is_near
    assert await alter(client, topic, DELETE, None) == ""
    assert (await write(client, topic, an_ordinary_batch())).error_code == 0
    (_, (own, at)) = partition.log.epochs.entries
    assert (own >= source_epoch + EPOCHS_ABOVE, at) == (True, 5)


async def test_a_promoted_topic_is_an_ordinary_one_for_good(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    source.epoch = 6
    source.add(5)
    await send(client, topic, source, 0)
    assert await alter(client, topic, DELETE, None) == ""
    answer = await write(client, topic, an_ordinary_batch())
    assert (answer.error_code, answer.base_offset) == (0, 5)
    (late,) = [await mirror(client, topic, source.topic, 6, source.add(2))]
    assert ErrorCode.of(late.error_code) is ErrorCode.POLICY_VIOLATION
    assert "can be set only when a topic is created" in await alter(client, topic, SET, str(source.topic))
    assert broker.replicas.partitions[topic, 0].log.epochs.entries == [(6, 0), (2 * EPOCHS_ABOVE, 5)]
    epochs = offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 6)
    asked = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic, [epochs])]
    )
    found = await client.call(offset_for_leader_epoch.API, 4, asked)
    assert (found.topics[0].partitions[0].leader_epoch, found.topics[0].partitions[0].end_offset) == (6, 5)


async def test_a_stale_view_of_another_broker_cannot_undo_a_promotion(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    await alter(client, topic, DELETE, None)
    with pytest.raises(Exception, match="can be set only when a topic is created"):
        await broker.coordination.set_topic_config(
            topic, id_of(broker, topic), {KEY: str(source.topic), "retention.ms": "5"}, [KEY, "retention.ms"]
        )
    assert KEY not in broker.coordination.stored_config(topic)


def id_of(broker: Broker, topic: str) -> uuid.UUID:
    return broker.replicas.metadata.topics[topic].topic_id


async def test_a_change_of_settings_made_for_a_topic_of_before_promotes_no_replica_of_its_name(
    broker: Broker, client: Connection
) -> None:
    """Another broker may have an older view, and it writes all of the topic's settings."""
    topic, source = unique("again"), Source()
    await create(client, topic)
    before = id_of(broker, topic)
    deletion = delete_topics.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
    deleted = await client.call(delete_topics.API, 5, deletion)
    assert deleted.responses[0].error_code == 0
    await create(client, topic, **{KEY: str(source.topic)})
    change = {"retention.ms": "5"}
    with pytest.raises(Conflict, match=f"there is no topic {topic} with the id {uuid_text(before)}"):
        await broker.coordination.set_topic_config(topic, before, change, ["retention.ms"])
    with pytest.raises(
        ApiError, match=r"the request does not name it. Nothing is changed: send the request again"
    ):
        await broker.coordination.set_topic_config(topic, id_of(broker, topic), change, ["retention.ms"])
    assert broker.coordination.stored_config(topic) == {KEY: str(source.topic)}
    assert await alter(client, topic, SET, "5", "retention.ms") == ""
    assert await alter(client, topic, DELETE, None) == ""
    assert broker.coordination.stored_config(topic) == change


async def test_the_setting_is_checked(client: Connection, replica: tuple[str, Source]) -> None:
    topic, source = replica
    other = MirrorSource("cluster", uuid.uuid4())
    assert await alter(client, topic, SET, str(source.topic)) == ""  # its present value
    assert "can be set only when" in await alter(client, topic, SET, str(other))
    for bad in (
        "x",
        "cluster/",
        f"/{uuid_text(uuid.uuid4())}",
        "c/" + "A" * 22,
        f"c c/{uuid_text(uuid.uuid4())}",
    ):
        message = await alter(client, topic, SET, bad)
        assert message.startswith(
            f"Invalid value {bad} for configuration {KEY}: Value must be CLUSTERID/TOPICID"
        )
        with pytest.raises(ValueError, match="CLUSTERID/TOPICID"):
            parse(bad)
    assert parse(str(source.topic)) == source.topic
    retention = alter_configs.AlterableConfig("retention.ms", "1000")
    resource = alter_configs.AlterConfigsResource(2, topic, [retention])
    replaced = await client.call(alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource]))
    assert "make the topic writable" in (replaced.responses[0].error_message or "")
    assert await alter(client, topic, SET, "1000", "retention.ms") == ""


async def test_the_log_starts_where_the_source_starts_and_not_by_its_own_retention(
    broker: Broker, client: Connection
) -> None:
    topic, source = await new_replica(client, **{"retention.ms": "1", "segment.bytes": "200"})
    for _ in range(10):
        source.add(2, timestamp=1_000_000)
        await send(client, topic, source, source.end - 2)
    log = broker.replicas.partitions[topic, 0].log
    assert len(log.segments) > 3
    assert log.delete_old_segments(2_000_000_000_000, log.log_end_offset) == 0
    answer = await mirror(client, topic, source.topic, 20, None, log_start=7)
    assert (answer.log_start_offset, answer.log_end_offset) == (7, 20)
    assert 0 < log.segments.first_offset <= 7
    await alter(client, topic, DELETE, None)
    while log.delete_old_segments(2_000_000_000_000, log.log_end_offset):
        pass
    assert log.log_start_offset == 20


async def test_a_source_without_records_left_moves_the_end(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        topic, source = await new_replica(client)
        answer = await mirror(client, topic, source.topic, 0, None, log_start=1000)
        assert (answer.error_code, answer.log_start_offset, answer.log_end_offset) == (0, 1000, 1000)
        source.end = 1000
        source.add(3)
        await send(client, topic, source, 1000)
        answer = await mirror(client, topic, source.topic, 1003, None, log_start=5000)
        assert (answer.log_start_offset, answer.log_end_offset) == (5000, 5000)
        partition = broker.replicas.partitions[topic, 0]
        assert partition.high_watermark == 5000
    async with running(tmp_path) as broker, connected(broker) as client:
        answer = await mirror(client, topic, source.topic, -1)
        assert (answer.log_start_offset, answer.log_end_offset) == (5000, 5000)
        source.end = 5000
        source.add(1)
        assert (await send(client, topic, source, 5000)).log_end_offset == 5001


async def test_producer_ids_differ_from_those_of_other_clusters(tmp_path: Path) -> None:
    """And from those of the same cluster before, whatever was restored in between."""
    ranges = set()
    for name in ("one", "two"):
        async with running(tmp_path / name):
            pass
        shutil.copytree(tmp_path / name, tmp_path / "copy")
        for _ in range(2):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "copy", tmp_path / name)
            async with running(tmp_path / name) as broker, connected(broker) as client:
                request = init_producer_id.InitProducerIdRequest(None, 1000)
                answer = await client.call(init_producer_id.API, 4, request)
                ranges.add(answer.producer_id // BLOCK)
        shutil.rmtree(tmp_path / "copy")
    assert len(ranges) == 4
    assert min(ranges) > (1 << 32) // BLOCK, "Apache Kafka begins with 0"


async def test_random_senders_leave_the_source_log(tmp_path: Path) -> None:
    """Two workers that lag, repeat and overtake themselves, and a source that changes meanwhile."""
    seed = random.randrange(1 << 30)
    rolls = random.Random(seed)
    source, topic = Source(), unique("random")
    accepted = start = 0
    for life in range(3):
        async with running(tmp_path) as broker, connected(broker) as client:
            if not life:
                await create(client, topic, **{KEY: str(source.topic), "segment.bytes": "2000"})
            for _ in range(150):
                for _ in range(rolls.randrange(3)):
                    source.epoch += rolls.choice([0] * 40 + [1, EPOCHS_ABOVE])
                    source.add(rolls.randint(1, 4), gap=rolls.choice([0, 0, 0, 3]))
                starts = [0, accepted, *(first for first, _, _ in source.batches[-12:])]
                starts += [end for _, end, _ in source.batches[-12:]]
                at = accepted if rolls.random() < 0.5 else rolls.choice(starts)
                records = source.after(at, rolls.randint(0, 4))
                before = await mirror(client, topic, source.topic, -1)
                answer = await mirror(client, topic, source.topic, at, records, log_start=start)
                assert before.log_end_offset == accepted, seed
                if at != accepted:
                    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, seed
                elif answer.error_code:
                    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (seed, answer)
                elif records:
                    accepted = list(iter_batches(records))[-1][1].next_offset
                assert answer.log_end_offset == accepted, seed
                if rolls.random() < 0.02 and accepted:
                    start = rolls.randint(start, accepted)
            log = broker.replicas.partitions[topic, 0].log
            first = log.segments.first_offset
            whole = b"".join(batch for at, end, batch in source.batches if at >= first and end <= accepted)
            assert stored(broker, topic) == whole, seed
            epochs = [header.partition_leader_epoch for _, header in iter_batches(whole)]
            assert epochs == sorted(epochs)
            assert broker.replicas.partitions[topic, 0].record.leader_epoch > max(epochs, default=-1)


async def test_consumers_read_mirrored_records(client: Connection, replica: tuple[str, Source]) -> None:
    topic, source = replica
    source.add(3)
    await send(client, topic, source, 0)
    asked = fetch.FetchTopic(
        topic, partitions=[fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)]
    )
    request = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[asked])
    answer = await client.call(fetch.API, 12, request)
    assert bytes(answer.responses[0].partitions[0].records) == source.after(0)


async def test_a_request_may_be_as_large_as_a_produce(
    broker: Broker, client: Connection, replica: tuple[str, Source]
) -> None:
    topic, source = replica
    while sum(len(batch) for _, _, batch in source.batches) < 9 << 20:
        source.add(20_000)
    assert (await send(client, topic, source, 0)).log_end_offset == source.end
    assert stored(broker, topic) == source.after(0)


async def test_a_request_for_many_partitions(client: Connection) -> None:
    topic, source = await new_replica(client, 600)
    batch = source.add(2)
    parts = [(index, 0, batch, 0) for index in range(600)]
    async with asyncio.timeout(100):
        while True:
            answers = await mirror_several(client, topic, source.topic, parts)
            if all(one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE for one in answers):
                break
            await asyncio.sleep(0.05)
    assert [one.index for one in answers] == [*range(600)]
    asked = [(index, -1, None, 0) for index in range(600)]
    answers = await mirror_several(client, topic, source.topic, asked)
    assert {(one.error_code, one.log_end_offset) for one in answers} == {(0, 2)}
    assert {bytes(one.last_header or b"") for one in answers} == {batch[:HEADER_SIZE]}


async def test_a_compacted_replica_refuses_at_once_too(broker: Broker, client: Connection) -> None:
    """Elsewhere a thread would read such a topic's records before they are appended."""
    topic, source = await new_replica(client, **{"cleanup.policy": "compact"})
    source.add(3)
    await send(client, topic, source, 0)
    answer = await write(client, topic, an_ordinary_batch())
    assert ErrorCode.of(answer.error_code) is ErrorCode.POLICY_VIOLATION
    assert stored(broker, topic) == source.after(0)
