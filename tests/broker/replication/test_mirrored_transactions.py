"""Transactions in a mirror's replica: stored as in the source, read as there, and aborted by a promotion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.replication.source_transactions import AT_ONCE, SourceTransactions, end_of_source
from millstream_broker.topic_rules.mirrored_topics import EPOCHS_ABOVE
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.mirrored import Source, mirror
from millstream_harness.transactions import write
from millstream_kafka.batch import iter_batches
from millstream_kafka.client.connection import Connection
from millstream_kafka.control_batch import EndTransactionMarker, build_marker, read_marker
from millstream_kafka.mirror_source import KEY, PROMOTED
from millstream_kafka.protocol import fetch, incremental_alter_configs
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData

TOPIC = "replica"
FAR = 2 * EPOCHS_ABOVE
MARKER = AppendOrigin.MARKER


def marker(source: Source, producer: int, *, committed: bool, epoch: int = 0) -> bytes:
    batch = build_marker(
        EndTransactionMarker(committed, 7),
        producer_id=producer,
        producer_epoch=epoch,
        timestamp=1_800_000_000_000,
        base_offset=source.end,
        leader_epoch=source.epoch,
    )
    source.batches.append((source.end, source.end + 1, batch))
    source.end += 1
    return batch


def transactional(source: Source, producer: int, sequence: int = 0, count: int = 1) -> bytes:
    return source.add(
        count, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )


def a_source() -> Source:
    """Offsets 0 to 2 are committed, 4 and 5 aborted; 7 and 8 are of open transactions, and 9 of none."""
    source = Source()
    transactional(source, 1, count=3)
    marker(source, 1, committed=True)
    transactional(source, 2, count=2)
    marker(source, 2, committed=False)
    transactional(source, 1, 3)
    transactional(source, 3)
    source.add()
    return source


async def replica(client: Connection, source: Source) -> None:
    await create(client, TOPIC, **{KEY: str(source.topic)})
    assert (await mirror(client, TOPIC, source.topic, 0, source.after(0))).error_code == 0


async def committed(client: Connection, offset: int = 0) -> PartitionData:
    topic = FetchTopic(
        TOPIC, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1, topics=[topic])
    return (await client.call(fetch.API, 12, request)).responses[0].partitions[0]


async def promote(client: Connection, *, request: str = "") -> None:
    """As a person does with Kafka's tools; with a request, as the operator does."""
    changes = [incremental_alter_configs.AlterableConfig(KEY, 1, None)]
    if request:
        changes.append(incremental_alter_configs.AlterableConfig(PROMOTED, 0, request))
    resource = incremental_alter_configs.AlterConfigsResource(2, TOPIC, changes)
    wanted = incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
    (answer,) = (await client.call(incremental_alter_configs.API, 1, wanted)).responses
    assert answer.error_code == 0, answer.error_message


def stored(broker: Broker) -> bytes:
    folder = Path(str(broker.replicas.partitions[TOPIC, 0].log.directory))
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def aborted_by(broker: Broker) -> list[int]:
    """The producers whose transactions the markers of this broker abort."""
    data, found = stored(broker), []
    for position, header in iter_batches(data):
        if header.is_control and header.partition_leader_epoch >= FAR:
            ended = read_marker(data[position : position + header.size])
            assert ended is not None
            assert not ended.committed
            found.append(header.producer_id)
    return found


async def test_replica_is_read_like_its_source(tmp_path: Path) -> None:
    source = a_source()
    async with running(tmp_path) as broker, connected(broker) as client:
        await replica(client, source)
        assert stored(broker) == source.after(0)
        data = await committed(client)
        assert (data.high_watermark, data.last_stable_offset) == (10, 7)
        assert data.aborted_transactions is not None
        assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions] == [(2, 4)]
    async with running(tmp_path) as broker, connected(broker) as client:
        assert (await committed(client)).last_stable_offset == 7, "after a restart, too"
        ends = marker(source, 1, committed=True) + marker(source, 3, committed=False)
        assert (await mirror(client, TOPIC, source.topic, 10, ends)).error_code == 0
        data = await committed(client, 7)
        assert data.last_stable_offset == 12
        assert [one.producer_id for one in data.aborted_transactions or ()] == [3]


async def test_promotion_aborts_what_is_open(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await replica(client, a_source())
        await promote(client)
        partition = broker.replicas.partition(TOPIC, 0)
        own = write(partition, 4).first_offset  # stays open
        await until(lambda: partition.last_stable_offset == own)
        await until(lambda: partition.high_watermark == 13)
        assert sorted(aborted_by(broker)) == [1, 3]
        data = await committed(client)
        first = sorted((one.producer_id, one.first_offset) for one in data.aborted_transactions or ())
        assert first == [(1, 7), (2, 4), (3, 8)]


async def test_leader_that_starts_after_a_promotion_aborts_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of the moment of the promotion dies before it does."""
    with monkeypatch.context() as patch:
        patch.setattr(SourceTransactions, "_abort", lambda self: None)
        async with running(tmp_path) as broker, connected(broker) as client:
            await replica(client, a_source())
            await promote(client, request="now")
            write(broker.replicas.partition(TOPIC, 0), 4)
            assert (await committed(client)).last_stable_offset == 7
    async with running(tmp_path) as broker, connected(broker) as client:
        await until(lambda: broker.replicas.partitions[TOPIC, 0].last_stable_offset == 10)
        assert sorted(aborted_by(broker)) == [1, 3]


async def test_markers_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    source = Source()
    for producer in range(2 * AT_ONCE + 1):
        transactional(source, producer)
    async with running(tmp_path) as broker, connected(broker) as client:
        await replica(client, source)
        partition = broker.replicas.partitions[TOPIC, 0]
        tries: list[int] = []
        began_ms = time.time() * 1000

        def append(batch: bytearray, now_ms: int) -> None:
            tries.append(now_ms)
            assert read_marker(bytes(batch)) == EndTransactionMarker(committed=False, coordinator_epoch=0)
            if len(tries) == 2:
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")
            partition.log.append(batch, leader_epoch=FAR, now_ms=now_ms, origin=MARKER)

        transactions = SourceTransactions(partition.log, append)
        transactions.promoted(source.end)
        await until(lambda: len(tries) == 2)
        transactions.retry()
        await until(lambda: not partition.log.producers.transactions.open)
        assert len(tries) == 2 * AT_ONCE + 2
        assert began_ms - 1 <= min(tries) <= max(tries) <= time.time() * 1000


@pytest.mark.parametrize(
    ("epochs", "leader", "end"),
    [
        ([], 0, 0),
        ([(0, 0), (1, 5)], 2, 0),
        ([(0, 0), (1, 5)], FAR, 10),
        ([(0, 0), (1, 5), (FAR, 8)], FAR, 8),
        ([(1, 0), (1 + EPOCHS_ABOVE, 8)], FAR, 8),
        ([(0, 0), (FAR, 4), (FAR + 3, 6)], FAR + 3, 4),
        ([(FAR, 4), (FAR + 3, 6)], FAR + 3, 0),
        ([(0, 0), (FAR, 4), (2 * FAR, 6)], 2 * FAR, 4),
    ],
    ids=[
        "empty",
        "ordinary",
        "no own record",
        "promoted",
        "promoted to the first own epoch",
        "later leaders",
        "source's gone",
        "restored later",
    ],
)
def test_end_of_the_source_records(epochs: Sequence[tuple[int, int]], leader: int, end: int) -> None:
    assert end_of_source(epochs, leader, 10) == end


@pytest.mark.parametrize(
    "how",
    [
        {"transactional": True},
        {"control": True, "producer_id": 1, "producer_epoch": 0},
        {"control": True, "transactional": True},
        {"control": True, "transactional": True, "producer_id": 1, "producer_epoch": 0, "count": 2},
        {"transactional": True, "producer_id": 1, "producer_epoch": -1},
    ],
    ids=["no producer", "not transactional", "marker of nobody", "two records", "no epoch"],
)
async def test_batch_that_no_leader_stores_is_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    source = a_source()
    async with running(tmp_path) as broker, connected(broker) as client:
        await replica(client, source)
        answer = await mirror(client, TOPIC, source.topic, 10, source.add(**how))
        assert ErrorCode.of(answer.error_code) is ErrorCode.INVALID_RECORD
        assert answer.log_end_offset == 10


async def test_marker_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    source = a_source()
    async with running(tmp_path) as broker, connected(broker) as client:
        await replica(client, source)
        odd = source.add(control=True, transactional=True, producer_id=3, producer_epoch=0)
        assert (await mirror(client, TOPIC, source.topic, 10, odd)).error_code == 0
        assert (await committed(client)).last_stable_offset == 7
