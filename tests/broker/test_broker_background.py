"""A broker's background work: retention, compaction, timed fsyncs, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually, log_bytes
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.protocol import create_topics

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]


def create(wire: Wire, name: str, **config: str) -> None:
    configs = [
        create_topics.CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()
    ]
    request = create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, 1, 1, [], configs)])
    assert wire.call(create_topics.API, 7, request).topics[0].error_code == 0


def start_of(wire: Wire, topic: str) -> int:
    return wire.fetch(topic, wire.end_offset(topic)).log_start_offset


def test_old_and_surplus_segments_are_deleted(start_broker: StartBroker) -> None:
    broker = start_broker({"log.retention.check.interval.ms": "50", "log.segment.bytes": "2000"})
    with Wire(broker.bootstrap) as wire:
        create(wire, "sized", retention_bytes="5000")
        create(wire, "timed", retention_ms="3600000")
        for number in range(50):
            wire.produce("sized", [record("x" * 400)])
            wire.produce("timed", [record("x" * 400, timestamp=None if number > 25 else 1_000_000)])
        eventually(lambda: start_of(wire, "sized"), lambda start: start >= 35, "surplus segments are gone")
        eventually(lambda: start_of(wire, "timed"), lambda start: 16 <= start <= 26, "old segments are gone")
        assert start_of(wire, "sized") < 45
        logs = broker.data / "sized-0"
        eventually(lambda: list(logs.glob("*.deleted")), lambda left: not left, "their files are gone")
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert 35 <= start_of(wire, "sized") < 45


def test_compacted_topics_keep_the_last_value_of_each_key(start_broker: StartBroker) -> None:
    broker = start_broker({"log.cleaner.backoff.ms": "50"})
    with Wire(broker.bootstrap) as wire:
        create(
            wire, "latest", cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0.1"
        )
        for number in range(100):
            wire.produce("latest", [record(b"%d " % number + b"x" * 100, key=b"%d" % (number % 5))])

        def kept() -> dict[int, bytes]:
            found: dict[int, bytes] = {}
            offset = 0
            while offset < 100:
                data = wire.fetch("latest", offset).records
                assert isinstance(data, memoryview)
                while len(data):
                    size = int.from_bytes(data[8:12], "big") + 12
                    for one in read_records(data[:size]):
                        found[one.offset] = one.key or b""
                        offset = max(offset, one.offset + 1)
                    data = data[size:]
            return found

        found = eventually(kept, lambda records: len(records) < 40, "old values are gone")
        assert {found[offset] for offset in range(95, 100)} == {b"0", b"1", b"2", b"3", b"4"}
        assert all(found[offset] == b"%d" % (offset % 5) for offset in found)
        assert wire.produce("latest", build_batch([record("no key")])).error_code != 0


def test_compaction_of_several_topics_with_little_of_everything(start_broker: StartBroker) -> None:
    """Two threads, each with memory for three keys; a throttle; and a topic that is due only by its records' age."""
    broker = start_broker(
        {
            "log.cleaner.backoff.ms": "20",
            "log.cleaner.threads": "2",
            "log.cleaner.dedupe.buffer.size": "1080",
            "log.cleaner.io.max.bytes.per.second": "500000",
        }
    )
    long_ago = int(time.time() * 1000) - 10_000
    with Wire(broker.bootstrap) as wire:
        small = {"cleanup_policy": "compact", "segment_bytes": "2000"}
        names = ["first", "second", "third"]
        for name in names:
            create(wire, name, min_cleanable_dirty_ratio="0.01", **small)
        create(
            wire,
            "aged",
            min_cleanable_dirty_ratio="1",
            max_compaction_lag_ms="5000",
            cleanup_policy="compact",
        )
        for number in range(100):
            for name in (*names, "aged"):
                batch = [record(b"x" * 100, key=b"%d" % (number % 10), timestamp=long_ago)]
                assert wire.produce(name, batch).error_code == 0
        wire.produce("aged", [record("now", key=b"now")])  # the segment is older than max.compaction.lag.ms

        def bytes_of(name: str) -> float:
            return log_bytes(broker.data / f"{name}-0")

        # Ten keys of 180 bytes, the active segment, and the rest that one pass leaves to the next.
        for name, most in ((names[0], 7000), (names[1], 7000), (names[2], 7000), ("aged", 2500)):
            eventually(
                lambda name=name: bytes_of(name), lambda size, most=most: size < most, f"{name} is compacted"
            )
            assert [one.key for one in records_of(wire, name)][-2:] == (
                [b"9", b"now"] if name == "aged" else [b"8", b"9"]
            )


def records_of(wire: Wire, topic: str) -> list[Record]:
    found: list[Record] = []
    offset, end = 0, wire.end_offset(topic)
    while offset < end:
        data = wire.fetch(topic, offset).records
        assert isinstance(data, memoryview)
        for position, header in iter_batches(data):
            found += read_records(data[position : position + header.size])
            offset = header.next_offset
    return found


def test_flush_ms_and_checkpoints_reach_the_disk(start_broker: StartBroker) -> None:
    broker = start_broker({"log.flush.interval.ms": "20", "log.flush.offset.checkpoint.interval.ms": "50"})
    with Wire(broker.bootstrap) as wire:
        wire.create("flushed")
        wire.produce("flushed", [record("a"), record("b")])
        path = broker.data / "recovery-point-offset-checkpoint"
        eventually(
            lambda: path.read_text() if path.exists() else "",
            lambda text: "flushed 0 2" in text,
            "it is on the disk",
        )
