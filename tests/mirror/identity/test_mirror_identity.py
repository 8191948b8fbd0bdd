"""Mode Identity between real brokers: the target's logs equal the source's, and requests show their source."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import (
    Looks,
    MirrorProcess,
    Peer,
    admin,
    arrived,
    create,
    produce,
    read_batches,
    stored,
)
from millstream_harness.mirror_conditions import conditions_of, is_degraded
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import read_header, read_records
from millstream_kafka.mirror_source import KEY

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]


def start(
    start_mirror: StartMirror, source: Peer, target: Peer, *topics: str, **config: Any
) -> MirrorProcess:
    """A mirror with its own name: it need not wait until the members of another test's are gone."""
    config = {"name": unique("mirror"), "mode": "Identity", "topics": {"include": [*topics]}, **config}
    return start_mirror({"west": source.bootstrap}, target.bootstrap, **config)


def configuration(broker: Peer, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin(broker).describe_configs([resource])[resource].result(20)
    return {name: entry.value for name, entry in found.items() if entry.source == 1}


def configure(broker: Peer, topic: str, **config: str | None) -> None:
    """Set, or with None delete, settings of a topic; keys have `_` for `.`."""
    changes = [
        ConfigEntry(
            key.replace("_", "."),
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin(broker).incremental_alter_configs([resource])[resource].result(20)


def promote(broker: Peer, topic: str) -> None:
    """Promote as docs/identity-mirrors.md describes."""
    command = [str(Path(sys.executable).parent / "millstream"), "-b", broker.bootstrap]
    subprocess.run([*command, "config", "reset", f"topic/{topic}", KEY], check=True, timeout=60)


def error_of(mirror: MirrorProcess, *parts: str) -> str:
    def said() -> str:
        error: str = mirror.status()["sources"][0]["lastError"]
        return error

    return eventually(said, lambda error: all(part in error for part in parts), f"an error with {parts}")


def test_replica_has_equal_batches_with_every_codec(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("same")
    create(west, topic, 2, retention_ms="123456789", segment_bytes="20000")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(west, topic, range(1000), 2, compression_type=codec, linger_ms=5)
    mirror = start(start_mirror, west, east, topic)
    arrived(east, topic, [2500, 2500])
    produce(west, topic, range(1000), 2)
    arrived(east, topic, [3000, 3000])
    for partition in (0, 1):
        assert stored(east, topic, partition) == stored(west, topic, partition) != b""
    there = configuration(east, topic)
    cluster, _, topic_id = there.pop(KEY).partition("/")
    assert there == {"retention.ms": "123456789", "segment.bytes": "20000"} == configuration(west, topic)
    described = admin(west).describe_topics(TopicCollection([topic]))[topic].result(20)
    assert topic_id == str(described.topic_id).replace("+", "-").replace("/", "_")
    assert cluster == admin(west).list_topics(timeout=10).cluster_id
    status = eventually(mirror.status, lambda status: status["lag"]["records"] == 0, "lag")
    assert [(one["reachable"], one["lastError"]) for one in status["sources"]] == [(True, "")]
    assert 'millstream_mirror_records_total{source="west"} 6000' in mirror.get("/metrics")


def test_replica_follows_partitions_and_configuration(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("follows")
    create(west, topic, 1, retention_ms="1000000")
    start(start_mirror, west, east, topic)
    arrived(east, topic, [0])
    configure(west, topic, retention_ms="2000000", cleanup_policy="compact,delete", min_insync_replicas="1")
    admin(west).create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    wanted = {"retention.ms": "2000000", "cleanup.policy": "compact,delete"}

    def there() -> dict[str, str]:
        return {key: value for key, value in configuration(east, topic).items() if key != KEY}

    eventually(there, lambda found: found == wanted, "the configuration follows")
    produce(west, topic, range(300), 3)
    arrived(east, topic, [100, 100, 100])
    configure(east, topic, retention_ms="5")
    configure(west, topic, cleanup_policy=None)
    eventually(
        there, lambda found: found == {"retention.ms": "2000000"}, "the target's own setting is undone"
    )


def test_deleted_records_disappear_from_replica(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Even if nothing is left, and if the worker comes late."""
    topic, emptied = unique("starts"), unique("emptied")
    for each in (topic, emptied):
        create(west, each)
        produce(west, each, range(100))
    delete_before(west, emptied, 100)
    mirror = start(start_mirror, west, east, topic, emptied)
    arrived(east, topic, [100])
    arrived(east, emptied, [100])
    assert start_of(east, emptied) == 100
    delete_before(west, topic, 40)
    eventually(lambda: start_of(east, topic), lambda found: found == 40, "the start follows")
    mirror.stop()
    produce(west, topic, range(100))
    delete_before(west, topic, 150)
    produce(west, emptied, range(10))
    mirror.start()
    arrived(east, topic, [200])
    arrived(east, emptied, [110])
    eventually(lambda: start_of(east, topic), lambda found: found == 150, "the start follows")
    status = mirror.status()["sources"][0]
    assert status["gaps"] == [{"partition": f"{topic}-0", "from": 100, "until": 150, "stopped": False}]
    assert status["missingRecords"] == 50


def test_gap_stops_partition_with_on_gap_stop(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("stops")
    create(west, topic, 2)
    produce(west, topic, range(20), 2)
    mirror = start(start_mirror, west, east, topic, onGap="Stop")
    arrived(east, topic, [10, 10])
    mirror.stop()
    produce(west, topic, range(20), 2)
    delete_before(west, topic, 15)
    mirror.start()
    arrived(east, topic, [10, 20])
    error = error_of(mirror, f"{topic}-0: the source deleted offsets 10 to 14", "onGap to SkipToEarliest")
    assert mirror.said().count(error) == 1
    assert mirror.status()["sources"][0]["gaps"][0]["stopped"] is True
    assert start_of(east, topic) == 0


def delete_before(broker: Peer, topic: str, offset: int) -> None:
    where = TopicPartition(topic, 0, offset)
    admin(broker).delete_records([where])[where].result(20)


def start_of(broker: Peer, topic: str) -> int:
    where = TopicPartition(topic, 0)
    spec: Any = OffsetSpec
    offset: int = admin(broker).list_offsets({where: spec.earliest()})[where].result(20).offset
    return offset


async def test_promoted_topic_accepts_producers_of_source(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("promoted")
    create(west, topic)
    produce(west, topic, range(50), enable_idempotence=True)
    mirror = start(start_mirror, west, east, topic)
    arrived(east, topic, [50])
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        _produce_one(east, topic)
    promote(east, topic)
    produce(east, topic, range(50, 80), enable_idempotence=True)
    produce(west, topic, range(1000, 1010))
    of_source = eventually(
        lambda: mirror.status()["sources"][0],
        lambda one: one["promoted"] == [topic] and one["topics"] == 0,
        "the worker leaves it alone",
    )
    assert (of_source["lastError"], of_source["problems"]) == ("", [])
    assert 'millstream_mirror_promoted_topics{source="west"} 1' in mirror.get("/metrics")
    arrived(east, topic, [80])
    ours, theirs = await read_batches(east.bootstrap, topic, 0), await read_batches(west.bootstrap, topic, 0)
    mirrored = [batch for batch in ours if read_header(batch).base_offset < 50]
    assert mirrored == theirs[: len(mirrored)]
    epochs = [read_header(batch).partition_leader_epoch for batch in ours]
    assert epochs == sorted(epochs)
    assert epochs[-1] > read_header(mirrored[-1]).partition_leader_epoch
    with pytest.raises(KafkaException, match="can be set only when a topic is created"):
        configure(east, topic, **{KEY: "elsewhere/AAAAAAAAQACAAAAAAAAAAQ"})


def _produce_one(broker: Peer, topic: str) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce(topic, b"v", on_delivery=lambda error, message: failed.append(error))
    assert producer.flush(60) == 0, "the client does not try for five minutes"
    if failed[0] is not None:
        raise KafkaException(failed[0])


def test_existing_topic_is_left_alone(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, other = unique("there"), unique("beside")
    for each in (topic, other):
        create(west, each)
        produce(west, each, range(30))
    create(east, topic, 1, retention_ms="777777")
    produce(east, topic, range(5))
    mirror = start(start_mirror, west, east, topic, other)
    arrived(east, other, [30])
    error_of(
        mirror,
        f"topic {topic}: exists in the target and is not a replica",
        "exclude it, delete it in the target",
    )
    arrived(east, topic, [5])
    assert configuration(east, topic) == {"retention.ms": "777777"}
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [30])


def test_recreated_source_topic_is_not_appended(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("anew")
    create(west, topic)
    produce(west, topic, range(30))
    mirror = start(start_mirror, west, east, topic)
    arrived(east, topic, [30])
    admin(west).delete_topics([topic])[topic].result(20)
    create(west, topic)
    produce(west, topic, range(10))
    error_of(mirror, f"topic {topic} was deleted and created again in the source", "promote it")
    assert mirror.status()["sources"][0]["replaced"] == [topic]
    produce(west, topic, range(50))
    arrived(east, topic, [30])
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [60])
    assert stored(east, topic, 0) == stored(west, topic, 0)


def test_replica_of_targets_topic_is_refused_as_loop(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("loop")
    looks = Looks(east, west, topic)
    create(west, topic)
    produce(west, topic, range(30))
    there = start(start_mirror, west, east, topic)
    arrived(east, topic, [30])
    back = start_mirror(
        {"east": east.bootstrap},
        west.bootstrap,
        name=unique("back"),
        mode="Identity",
        topics={"include": [topic, looks.pattern]},
    )
    looks.twice()
    message = (
        f"topic {topic}: left out: its records come from the target: it is a read-only replica in the source, by group"
        f" millstream-mirror.{there.config['name']}.west: exclude it here, or promote it in the source to reverse the"
        " direction"
    )
    assert is_degraded(back, "MirrorLoop") == message
    eventually(
        lambda: conditions_of(there).get("Degraded", ("",) * 3), lambda now: now[0] == "False", "not degraded"
    )
    there.stop()
    delete(west, topic)
    looks.twice()
    assert is_degraded(back, "MirrorLoop") == message
    assert topic not in admin(west).list_topics(timeout=10).topics
    there.start()
    promote(east, topic)
    arrived(west, topic, [30])
    eventually(
        lambda: conditions_of(back).get("Ready", ("",) * 3),
        lambda now: now[0] == "True",
        "no loop any more",
    )


def delete(broker: Peer, topic: str) -> None:
    admin(broker).delete_topics([topic])[topic].result(20)


def test_replica_positions_are_copied_unchanged(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("positions"), unique("app")
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    delete_before(west, topic, 20)
    commit(west, group, topic, 33, 7)
    mirror = start(start_mirror, west, east, topic, groups={"include": [group]})
    arrived(east, topic, [50, 50])
    follows(east, group, topic, 33, 7)
    mirror.pause()
    produce(west, topic, range(100, 120), 2)
    commit(west, group, topic, 60, 3)
    mirror.resume()
    follows(east, group, topic, 60, 3)


def test_deleted_replica_is_recreated_with_positions(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("again"), unique("app")
    create(west, topic)
    produce(west, topic, range(100))
    commit(west, group, topic, 60)
    start(start_mirror, west, east, topic, groups={"include": [group]})
    arrived(east, topic, [100])
    follows(east, group, topic, 60)
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [100])
    follows(east, group, topic, 60)
    assert stored(east, topic, 0) == stored(west, topic, 0)


def test_concurrent_workers_leave_replica_equal(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, name = unique("crowd"), unique("one")
    create(west, topic, 4)
    mirrors = [start(start_mirror, west, east, topic, name=each) for each in (name, name, unique("another"))]
    for number in range(10):
        produce(west, topic, range(number * 400, number * 400 + 400), 4, batch_num_messages=10)
    arrived(east, topic, [1000] * 4)
    mirrors[0].kill()
    produce(west, topic, range(4000, 4400), 4)
    arrived(east, topic, [1100] * 4)
    for partition in range(4):
        assert stored(east, topic, partition) == stored(west, topic, partition)


def test_compaction_is_no_divergence(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, late = unique("compacted"), unique("late")
    eager = {
        "cleanup_policy": "compact",
        "segment_bytes": "3000",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "1",
    }
    for each in (topic, late):
        create(west, each, **eager)
        produce(west, each, range(500), batch_num_messages=20)
    mirror = start(start_mirror, west, east, topic)
    arrived(east, topic, [500])
    for number in range(3):
        mirror.stop()
        produce(west, topic, range(500 + number * 200, 700 + number * 200), batch_num_messages=20)
        is_compacted(west, topic)
        mirror.start()
        arrived(east, topic, [700 + number * 200])
    is_compacted(west, late)
    other = start(start_mirror, west, east, late)
    arrived(east, late, [500])
    is_compacted(east, topic)
    for each, worker in ((topic, mirror), (late, other)):
        assert worker.status()["sources"][0]["lastError"] == ""
        ours, theirs = latest(east, each), latest(west, each)
        assert ours == theirs
        assert len(ours) == 50


def is_compacted(broker: Peer, topic: str) -> None:
    """Wait until few of the records are left."""

    def count() -> int:
        batches = asyncio.run(read_batches(broker.bootstrap, topic, 0))
        return sum(read_header(batch).record_count for batch in batches)

    eventually(count, lambda records: records <= 200, "the cleaner")


def latest(broker: Peer, topic: str) -> dict[bytes | None, tuple[int, bytes | None]]:
    """Offset and value of each key's last record."""
    return {
        record.key: (record.offset, record.value)
        for batch in asyncio.run(read_batches(broker.bootstrap, topic, 0))
        for record in read_records(batch)
    }
