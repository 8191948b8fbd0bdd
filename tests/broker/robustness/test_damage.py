"""Files are damaged while the broker is down: it starts, reports what it does without, and loses no record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import iter_batches, read_records

pytestmark = pytest.mark.soak

RECORDS = 60
CONFIG = {"log.segment.bytes": "20000", "log.index.interval.bytes": "500"}
KINDS = {  # of each checkpoint, Kafka's file and ours
    "indexes": "*/*.index",
    "time indexes": "*/*.timeindex",
    "producer snapshots": "*/*.snapshot",
    "leader epochs": "*/leader-epoch-checkpoint",
    "topic ids": "*/partition.metadata",
    "recovery points": "recovery-point-offset-checkpoint*",
    "log starts": "log-start-offset-checkpoint*",
    "high watermarks": "replication-offset-checkpoint*",
    "cleaned": "cleaner-offset-checkpoint*",
    "boot": ".boot-id",
    "generation": ".generation",
}


def damage(path: Path, how: str) -> None:
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(random.Random(path.name).randbytes(max(path.stat().st_size, 24)))


def filled(tmp_path: Path) -> BrokerProcess:
    """Three topics of several segments each, one of them compacted."""
    broker = BrokerProcess(tmp_path, CONFIG).keep_port().start()
    with Wire(broker.bootstrap) as wire:
        wire.create("a", "b", "c")
        for number in range(RECORDS):
            for topic in "abc":
                assert wire.produce(topic, [record(b"%d" % number + b"." * 1000)]).base_offset == number
    return broker


def values(wire: Wire, topic: str) -> Iterator[int]:
    offset = 0
    while offset < wire.end_offset(topic):
        records = wire.fetch(topic, offset).records
        assert isinstance(records, memoryview)
        data = bytes(records)
        for position, header in iter_batches(data):
            for one in read_records(data[position : position + header.size]):
                assert one.offset == offset
                offset += 1
                yield int((one.value or b"").split(b".")[0])


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("how", ["missing", "empty", "garbage"])
def test_everything_but_the_records_is_damaged(tmp_path: Path, how: str, stop: str) -> None:
    with filled(tmp_path) as broker:
        if stop == "clean":
            assert broker.stop() == 0
        else:
            broker.kill()
        for name in ("replication-offset-checkpoint", "replication-offset-checkpoint.by-id"):
            (broker.data / name).touch()
        damaged = [path for pattern in KINDS.values() for path in broker.data.glob(pattern)]
        assert len(damaged) > 30
        for path in damaged:
            damage(path, how)
        broker.start()
        with Wire(broker.bootstrap) as wire:
            for topic in "abc":
                assert list(values(wire, topic)) == list(range(RECORDS))
                assert wire.produce(topic, [record("60.")]).base_offset == RECORDS
        assert "Traceback" not in broker.said()


@pytest.mark.parametrize("kind", ["recovery points", "topic ids"])
def test_what_cannot_be_read_is_said(tmp_path: Path, kind: str) -> None:
    with filled(tmp_path) as broker:
        assert broker.stop() == 0
        path = max(broker.data.glob(KINDS[kind]))  # of two checkpoint files ours, which the broker reads
        damage(path, "garbage")
        (broker.data / ".clean-logs").unlink()  # it has the topic ids, too
        broker.start()
        (line, *_) = [line for line in broker.said().splitlines() if path.name in line]
        assert " WARNING " in line
        with Wire(broker.bootstrap) as wire:
            for topic in "abc":
                assert list(values(wire, topic)) == list(range(RECORDS))


def test_a_clean_stop_that_was_none(tmp_path: Path) -> None:
    """The marker exists but the log is torn: whole batches are served, and the cut is reported."""
    with filled(tmp_path) as broker:
        assert broker.stop() == 0
        assert (broker.data / ".kafka_cleanshutdown").exists()
        last = max((broker.data / "a-0").glob("*.log"))
        if last.stat().st_size < 2000:
            last = sorted((broker.data / "a-0").glob("*.log"))[-2]
        with last.open("r+b") as file:
            file.truncate(last.stat().st_size - 100)
        broker.start()
        with Wire(broker.bootstrap) as wire:
            kept = list(values(wire, "a"))
            assert kept == list(range(len(kept)))
            assert RECORDS - 20 < len(kept) < RECORDS
            assert list(values(wire, "b")) == list(range(RECORDS))
        assert f"{last.name}: truncated at offset {len(kept)}" in broker.said()
        assert "Traceback" not in broker.said()
