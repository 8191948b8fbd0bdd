"""A partition of 20,000 segments, and 2000 partitions: open files stay bounded, a restart is quick, memory is small.

The tests print their measurements (`pytest -s`); docs/limits.md has the figures. `MILLSTREAM_SEGMENTS` sets the number
of segments.
"""

from __future__ import annotations

import os
import random
import select
import time
from pathlib import Path

import pytest

from millstream_broker.coordination import OVERRIDE
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.manager import LogManager
from millstream_harness.broker import BrokerProcess
from millstream_harness.process import cpu_s, open_files, resident_mb
from millstream_harness.wire import Wire, record
from millstream_kafka.batch import build_batch, read_records
from millstream_kafka.protocol import list_offsets

pytestmark = pytest.mark.soak

SEGMENTS = int(os.environ.get("MILLSTREAM_SEGMENTS", "20000"))
SEGMENT_BYTES = 200
FIRST_MS = 1_700_000_000_000
OPEN_FILES = 1024
READS = 1500
PARTITIONS = 2000


def write_segments(folder: Path) -> None:
    """One record per segment: its value is its number, its timestamp a second after the previous one."""
    manager = LogManager([folder], LogConfig(segment_bytes=SEGMENT_BYTES), files=FileCache(64))
    manager.lock()
    manager.identify(1, "many-segments")
    manager.start()
    log = manager.get_or_create("many", 0)
    for number in range(SEGMENTS):
        now_ms = FIRST_MS + number * 1000
        batch = build_batch([record(b"%060d" % number, timestamp=now_ms)])
        log.append(bytearray(batch), leader_epoch=0, now_ms=now_ms)
    assert len(log.segments) == SEGMENTS
    manager.close()


def value_at(wire: Wire, offset: int) -> int:
    records = wire.fetch("many", offset, partition_max_bytes=1, version=11).records
    assert isinstance(records, memoryview)
    (found,) = read_records(records)
    assert found.offset == offset
    return int(found.value or b"")


def offset_of_time(wire: Wire, timestamp: int) -> int:
    asked = list_offsets.ListOffsetsPartition(0, -1, timestamp)
    request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic("many", [asked])])
    return wire.call(list_offsets.API, 7, request).topics[0].partitions[0].offset


def serves_during_a_look_up(broker: BrokerProcess) -> None:
    """The first look-up by time reads the end of every time index; meanwhile another client gets responses."""
    last = list_offsets.ListOffsetsPartition(0, -1, FIRST_MS + (SEGMENTS - 1) * 1000)
    request = list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic("many", [last])])
    with Wire(broker.bootstrap) as patient, Wire(broker.bootstrap) as other:
        patient.socket.settimeout(60)
        other.end_offset("many")
        begun = time.monotonic()
        patient.send(list_offsets.API, 7, request)
        served, waited = 0, 0.0
        while not select.select([patient.socket], [], [], 0)[0]:
            asked = time.monotonic()
            other.end_offset("many")
            served, waited = served + 1, max(waited, time.monotonic() - asked)
        assert served > 1, "the loop looked up before it answered"
        assert patient.receive().topics[0].partitions[0].offset == SEGMENTS - 1
        print(
            f"first look-up by time: {time.monotonic() - begun:.2f} s; another one meanwhile: {waited:.3f} s at most"
        )


def look(broker: BrokerProcess, how: str, begun: float) -> None:
    """Read at random places and measure the cost."""
    ready = time.monotonic() - begun
    chance = random.Random(1)
    serves_during_a_look_up(broker)
    with Wire(broker.bootstrap) as wire:
        assert wire.end_offset("many") >= SEGMENTS
        before = open_files(broker.pid)
        begun = time.monotonic()
        for offset in chance.sample(range(SEGMENTS), READS):
            assert value_at(wire, offset) == offset
        reads = (time.monotonic() - begun) / READS
        begun = time.monotonic()
        for number in (0, 1, SEGMENTS // 2, SEGMENTS - 1):
            assert offset_of_time(wire, FIRST_MS + number * 1000 - 500) == number
        lookups = (time.monotonic() - begun) / 4
    print(
        f"{SEGMENTS} segments, {how}: ready in {ready:.2f} s, {reads * 1e3:.2f} ms a read,"
        f" {lookups * 1e3:.0f} ms a look-up by time, {resident_mb(broker.pid):.1f} MB,"
        f" {before} then {open_files(broker.pid)} open files"
    )
    assert open_files(broker.pid) <= OPEN_FILES + 40
    assert resident_mb(broker.pid) < 25 + 20 + SEGMENTS * 0.002


@pytest.mark.timeout(300 + SEGMENTS // 50)
def test_many_segments(tmp_path: Path) -> None:
    adopts = {OVERRIDE: "true"}  # the log has no journal
    settings = {"log.segment.bytes": str(SEGMENT_BYTES), "log.retention.ms": "-1", **adopts}
    broker = BrokerProcess(tmp_path, settings)
    write_segments(broker.data)
    begun = time.monotonic()
    with broker:
        look(broker, "after a clean stop", begun)
        with Wire(broker.bootstrap) as wire:
            assert wire.produce("many", [record("more")]).base_offset == SEGMENTS
        broker.kill()
        begun = time.monotonic()
        look(broker.start(), "after kill -9", begun)
        assert broker.stop() == 0
        assert "Traceback" not in broker.said()


def test_many_partitions_that_nobody_uses(tmp_path: Path) -> None:
    """Each costs a few numbers: no open file, no thread, no turn of the loop."""
    with BrokerProcess(tmp_path, {"num.partitions": str(PARTITIONS)}) as broker:
        alone = resident_mb(broker.pid)
        with Wire(broker.bootstrap) as wire:
            wire.create("idle")
            assert wire.produce("idle", [record("a")], partition=PARTITIONS - 1).base_offset == 0
        assert broker.stop() == 0
        broker.start()
        begun, used = time.monotonic(), cpu_s(broker.pid)
        with Wire(broker.bootstrap) as wire:
            assert wire.end_offset("idle", PARTITIONS - 1) == 1
        time.sleep(2)  # an idle broker's cost shows only over time
        took = (cpu_s(broker.pid) - used) / (time.monotonic() - begun)
        growth = resident_mb(broker.pid) - alone
        print(
            f"{PARTITIONS} idle partitions: {growth:.1f} MB, {took:.1%} of a core, {open_files(broker.pid)} open files"
        )
        assert growth < PARTITIONS * 0.02
        assert open_files(broker.pid) < 50
        assert took < 0.2
