"""A log directory of Apache Kafka with transactions: this log finds in it, and rebuilds, what Kafka has written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_harness.kafka import KafkaProcess

pytestmark = pytest.mark.soak

CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
PATIENCE_S = 60.0


def write(bootstrap: str) -> None:
    """Two producers in turn over small segments: committed, aborted, and one that stays open."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("t", 1, 1, config={"segment.bytes": "1048576"})
    admin.create_topics([topic])["t"].result(PATIENCE_S)
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}) for name in "ab"
    ]
    for producer in producers:
        producer.init_transactions(PATIENCE_S)
    for turn in range(20):
        for producer in producers:
            producer.begin_transaction()
            for _ in range(3):
                producer.produce("t", b"v" * 30_000, b"k")
            producer.flush(PATIENCE_S)
        for number, producer in enumerate(producers):
            if (turn + number) % 3:
                producer.abort_transaction(PATIENCE_S)
            else:
                producer.commit_transaction(PATIENCE_S)
    producers[0].begin_transaction()
    producers[0].produce("t", b"open", b"k")
    producers[0].flush(PATIENCE_S)


def test_log_of_kafka_has_the_same_transactions(tmp_path: Path) -> None:
    with KafkaProcess(tmp_path / "kafka", CONFIG) as kafka:
        write(kafka.bootstrap)
        folder = kafka.data / "t-0"
    indexes = {path.name: path.read_bytes() for path in folder.glob("*.txnindex") if path.stat().st_size}
    assert len(indexes) > 1
    copies = [tmp_path / name / "t-0" for name in ("read", "rebuilt", "killed")]
    for copy in copies:
        shutil.copytree(folder, copy)
    for path in (*copies[1].glob("*.txnindex"), *copies[1].glob("*.snapshot")):
        path.unlink()
    for path in copies[2].glob("*.txnindex"):
        path.write_bytes(path.read_bytes()[:-5])
    read = Log.open(copies[0], LogConfig(), clean=True)
    (first,) = read.producers.transactions.open
    assert first == read.log_end_offset - 1
    expected = read.segments.aborted.collect(0, 0, read.log_end_offset)
    assert len(expected) == sum(len(data) for data in indexes.values()) // 34 > 20
    for copy in copies[1:]:
        log = Log.open(copy, LogConfig(), clean=False, page_cache_kept=copy is copies[2])
        assert log.producers.transactions.open == read.producers.transactions.open
        assert log.segments.aborted.collect(0, 0, log.log_end_offset) == expected
        assert {
            path.name: path.read_bytes() for path in copy.glob("*.txnindex") if path.stat().st_size
        } == indexes
        for producer_id, known in read.producers.by_id.items():
            rebuilt = log.producers.by_id[producer_id]
            assert (rebuilt.epoch, rebuilt.coordinator_epoch) == (known.epoch, known.coordinator_epoch)
