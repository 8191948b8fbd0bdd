"""The mirror worker between real brokers: the target gets exactly the source's records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, NewPartitions, ResourceType

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce, read_batches
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import HEADER_SIZE, read_header, read_records
from millstream_kafka.compression import Compression

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]
PATIENT = (
    "import sys; from millstream_mirror import main; from millstream_mirror.partitions import pipeline;"
    " pipeline.FETCH_WAIT_MS, pipeline.FETCH_TIMEOUT_S = 600_000, 900.0;"
    " sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker whose fetches wait for records as long as any test runs."""


async def test_batches_arrive_unchanged_with_every_codec(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("codecs")
    create(west, topic, 2)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(west, topic, range(1000), 2, compression_type=codec, linger_ms=5)
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]})
    arrived(east, topic, [2500, 2500])
    for partition in (0, 1):
        theirs = await read_batches(west.bootstrap, topic, partition)
        ours = await read_batches(east.bootstrap, topic, partition)
        assert [batch[HEADER_SIZE:] for batch in ours] == [batch[HEADER_SIZE:] for batch in theirs]
        for mirrored, original in zip(map(read_header, ours), map(read_header, theirs), strict=True):
            assert mirrored.base_offset == original.base_offset
            assert mirrored.compression is original.compression
            assert mirrored.max_timestamp == original.max_timestamp
        assert {read_header(batch).compression for batch in ours} == set(Compression)


def test_busy_partition_fetches_without_waiting_for_others(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """A task's first batch goes alone; the second one follows although partition 1 has nothing to fetch."""
    topic = unique("busy")
    create(west, topic, 2)
    produce(west, topic, range(20), batch_num_messages=10, linger_ms=100)
    start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        entering=(sys.executable, "-c", PATIENT),
    )
    arrived(east, topic, [20, 0])


async def test_two_sources_share_topic_in_order_of_each(
    west: InProcessBroker, north: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("aggregate")
    for broker, values in ((west, range(3000)), (north, range(10_000, 14_000))):
        create(broker, topic)
        produce(broker, topic, values)
    mirror = start_mirror(
        {"west": west.bootstrap, "north": north.bootstrap}, east.bootstrap, topics={"include": [topic]}
    )
    arrived(east, topic, [7000])
    mirrored = [
        int((record.value or b"").removeprefix(b"value-"))
        for batch in await read_batches(east.bootstrap, topic, 0)
        for record in read_records(batch)
    ]
    assert [value for value in mirrored if value < 10_000] == list(range(3000))
    assert [value for value in mirrored if value >= 10_000] == list(range(10_000, 14_000))
    status = eventually(mirror.status, lambda status: status["lag"]["records"] == 0, "lag")
    assert status["topics"] == 1
    assert [(one["name"], one["reachable"], one["lastError"]) for one in status["sources"]] == [
        ("west", True, ""),
        ("north", True, ""),
    ]
    assert mirror.get("/healthz") == "ok\n"
    assert mirror.get("/readyz") == "ready\n"
    assert 'millstream_mirror_records_total{source="north"} 4000' in mirror.get("/metrics")


def test_new_topics_have_source_partitions_and_prefix(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("made")
    create(west, topic, 3, retention_ms="123456789", cleanup_policy="compact,delete", segment_ms="99999999")
    create(west, f"{topic}-left-out")
    produce(west, topic, range(30), 3)
    start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [f"{topic}.*"], "exclude": [".*-left-out"]},
        configs={"exclude": ["segment.*"]},
        naming="Prefixed",
    )
    mirrored = f"west.{topic}"
    arrived(east, mirrored, [10, 10, 10])
    resource = ConfigResource(ResourceType.TOPIC, mirrored)
    configs = admin(east).describe_configs([resource])[resource].result(20)
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("123456789", "compact,delete")
    assert configs["segment.ms"].is_default, "the mirror does not copy it"
    assert f"west.{topic}-left-out" not in admin(east).list_topics(timeout=10).topics


def test_new_topics_and_partitions_are_mirrored(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    prefix = unique("picked")
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [f"{prefix}.*"]})
    first, second = f"{prefix}-1", f"{prefix}-2"
    create(west, first)
    produce(west, first, range(10))
    arrived(east, first, [10])
    create(west, second)
    produce(west, second, range(20))
    arrived(east, second, [20])
    admin(west).create_partitions([NewPartitions(first, 3)])[first].result(20)
    eventually(
        lambda: len(admin(west).list_topics(first).topics[first].partitions), lambda n: n == 3, "growth"
    )
    produce(west, first, range(30), 3)
    arrived(east, first, [20, 10, 10])


def test_two_workers_share_partitions_and_take_over(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, name = unique("shared"), unique("sharing")
    create(west, topic, 6)
    config: dict[str, Any] = {"topics": {"include": [topic]}, "name": name}
    workers = [start_mirror({"west": west.bootstrap}, east.bootstrap, **config) for _ in range(2)]

    def shares() -> list[int]:
        return [worker.status()["sources"][0]["partitions"] for worker in workers]

    eventually(shares, lambda now: now == [3, 3], "partitions of each worker")
    produce(west, topic, range(600), 6)
    arrived(east, topic, [100] * 6)
    assert workers.pop().stop() == 0
    eventually(shares, lambda now: now == [6], "partitions of the one that stays")
    workers[0].kill()
    workers = [start_mirror({"west": west.bootstrap}, east.bootstrap, **config)]
    produce(west, topic, range(600), 6)
    arrived(east, topic, [200] * 6)


@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_log_append_time_of_source_is_kept(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, codec: str
) -> None:
    topic = unique("append-time")
    create(west, topic, message_timestamp_type="LogAppendTime")
    for number in range(3):
        produce(west, topic, range(number * 50, number * 50 + 50), compression_type=codec)
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [150])
    ours, theirs = [
        [record for batch in await read_batches(each.bootstrap, topic, 0) for record in read_records(batch)]
        for each in (east, west)
    ]
    assert ours == theirs
    assert len({record.timestamp for record in ours}) > 1


def test_deleted_target_topic_is_mirrored_from_start(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("anew")
    create(west, topic)
    produce(west, topic, range(100))
    start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]})
    arrived(east, topic, [100])
    admin(east).delete_topics([topic])[topic].result(20)
    produce(west, topic, range(100, 150))
    arrived(east, topic, [150])


def test_cluster_into_itself_without_prefix_is_refused(
    west: InProcessBroker, start_mirror: StartMirror
) -> None:
    mirror = start_mirror({"loop": west.bootstrap}, west.bootstrap)
    assert mirror.process is not None
    try:
        assert mirror.process.wait(60) == 2
    except subprocess.TimeoutExpired:
        pytest.fail(mirror.said())
    (line,) = [line for line in mirror.said().splitlines() if line.startswith("millstream-mirror: ")]
    assert "sources: loop" in line
    assert "one cluster" in line
    assert "expected another cluster, or naming Prefixed" in line


def test_cluster_into_itself_with_prefix_is_mirrored(
    west: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("self")
    create(west, topic)
    produce(west, topic, range(10))
    start_mirror(
        {"loop": west.bootstrap}, west.bootstrap, topics={"include": [f".*{topic}"]}, naming="Prefixed"
    )
    arrived(west, f"loop.{topic}", [10])
    names = [name for name in admin(west).list_topics(timeout=10).topics if name.endswith(topic)]
    assert sorted(names) == sorted([topic, f"loop.{topic}"])


def test_port_in_use_ends_worker_with_error(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    taken = west.http.removeprefix("http://")
    with pytest.raises(
        RuntimeError, match=f"status 1:\nmillstream-mirror: http: {taken}: cannot listen there"
    ):
        start_mirror({"west": west.bootstrap}, east.bootstrap, http=taken)
