"""Kafka's own DumpLogSegments reads what we write: batches of every codec, indexes, snapshots, transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_harness.java import java_command, run, run_kafka_tool
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.compression import Compression
from millstream_kafka.control_batch import EndTransactionMarker, build_marker

pytestmark = pytest.mark.soak

NOW = 1_700_000_000_000


def write_log(folder: Path) -> Log:
    log = Log.open(folder, LogConfig(segment_bytes=20_000, index_interval_bytes=500), clean=True, now_ms=NOW)
    sequence = 0
    for i in range(400):
        record = Record(
            b"key-%d" % i if i % 3 else None,
            b"v" * 70 if i % 5 else None,
            NOW + i,
            (("h", b"x"), ("n", None)) if i % 2 else (),
        )
        count = i % 4 + 1
        batch = build_batch(
            [record] * count,
            compression=Compression(i % 5),
            producer_id=5,
            producer_epoch=1,
            base_sequence=sequence,
        )
        log.append(batch, leader_epoch=i // 300, now_ms=NOW)
        sequence += count
    assert len(log.segments) >= 2
    return log


def test_dump_log_segments(tmp_path: Path) -> None:
    log = write_log(tmp_path / "t-0")
    end = log.log_end_offset
    log.close()
    # And the indexes that a recovery writes.
    for path in (tmp_path / "t-0").glob("*00.*index"):
        path.unlink()
    log = Log.open(tmp_path / "t-0", log.config, clean=False, now_ms=NOW)
    log.close()
    files = sorted(
        str(path)
        for path in (tmp_path / "t-0").iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
    )
    dump = run_kafka_tool(
        "dump-log", "--deep-iteration", "--print-data-log", "--files", ",".join(files)
    ).stdout
    assert dump.count("| offset: ") == end
    for i in range(0, end, 97):
        assert f"| offset: {i} " in dump
    assert "isvalid: false" not in dump
    assert "ismatch" not in dump
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in dump
    assert "producerId: 5 producerEpoch: 1 " in dump
    assert f"lastSequence: {end - 1} lastOffset: {end - 1}" in dump
    checked = run_kafka_tool("dump-log", "--index-sanity-check", "--files", ",".join(files)).stdout
    assert checked.count("passed sanity check") == sum("index" in file for file in files)


def test_kafka_takes_the_last_batch_of_a_producer(tmp_path: Path) -> None:
    """A snapshot has five batches per producer."""
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    for producer in (5, 6):
        for sequence in range(0, 14, 2):
            records = [Record(b"k", b"v", NOW)] * 2
            log.append(
                build_batch(records, producer_id=producer, producer_epoch=1, base_sequence=sequence),
                leader_epoch=0,
                now_ms=NOW,
            )
    log.close()
    source = str(Path(__file__).parent / "java" / "ProducerState.java")
    done = run(java_command(source, str(tmp_path / "t-0"), "28", str(NOW)))
    assert sorted(done.stdout.splitlines()) == [
        "producer 5 epoch 1 sequences 12 to 13 offsets 12 to 13",
        "producer 6 epoch 1 sequences 12 to 13 offsets 26 to 27",
    ]


def test_dump_log_segments_reads_transactions(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    verifications = log.producers.verifications

    def send(producer: int, sequence: int) -> None:
        verifications.verified(verifications.begin(producer, 2, sequence, bumps_epoch=False))
        batch = build_batch(
            [Record(b"k", b"v", NOW)] * 2,
            producer_id=producer,
            producer_epoch=2,
            base_sequence=sequence,
            transactional=True,
        )
        log.append(batch, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.TRANSACTION)

    def end(producer: int, *, committed: bool) -> None:
        marker = EndTransactionMarker(committed, 4)
        batch = build_marker(marker, producer_id=producer, producer_epoch=2, timestamp=NOW)
        log.append(batch, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.MARKER)

    send(5, 0)  # 0, 1
    send(6, 0)  # 2, 3
    end(5, committed=False)  # 4
    end(6, committed=True)  # 5
    send(6, 2)  # 6, 7
    log.close()
    files = ",".join(str(path) for path in sorted((tmp_path / "t-0").glob("0*")))
    dump = run_kafka_tool("dump-log", "--deep-iteration", "--print-data-log", "--files", files).stdout
    assert "endTxnMarker: ABORT coordinatorEpoch: 4" in dump
    assert "endTxnMarker: COMMIT coordinatorEpoch: 4" in dump
    assert dump.count("isTransactional: true isControl: true") == 2
    assert "version: 0 producerId: 5 firstOffset: 0 lastOffset: 4 lastStableOffset: 2" in dump
    open_one = next(line for line in dump.splitlines() if line.startswith("producerId: 6 "))
    assert "coordinatorEpoch: 4 currentTxnFirstOffset: Optional" in open_one
    assert "[6]" in open_one
