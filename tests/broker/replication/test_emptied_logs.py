"""Replicas of a compacted log that has lost all its records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import STABLE, until
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.wire import Wire
from millstream_kafka.batch import DELETE_HORIZON, BatchHeader, Record, build_batch, read_header

pytestmark = pytest.mark.process

OFTEN = {"log.retention.check.interval.ms": "100", "log.cleaner.backoff.ms": "50"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


def header(cluster: InProcessCluster) -> BatchHeader:
    """The header of the first batch that a reader gets from the leader."""
    with Wire(cluster.leader("t").bootstrap) as wire:
        found = wire.fetch("t", 0).records
    assert isinstance(found, memoryview)
    return read_header(found)


def test_a_replica_that_lost_its_disk_is_in_sync_again(tmp_path: Path) -> None:
    """It has nothing left to copy but the end of the log."""
    with InProcessCluster(tmp_path, config=STABLE | OFTEN) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic("t", 1, replica_assignment=[[1, 2, 3]], config=COMPACTED)
        admin.create_topics([topic])["t"].result(30)
        cluster.await_in_sync("t")
        with Wire(cluster.brokers[1].bootstrap) as wire:
            assert wire.produce("t", build_batch([Record(b"k", None, 0)] * 3), acks=-1).error_code == 0
        until(lambda: header(cluster).attributes & DELETE_HORIZON, "a pass has noted the deletions")
        for one in cluster.brokers.values():  # each broker compacts the whole log once more
            one.kill()
            for path in one.data.glob("cleaner-offset-checkpoint*"):
                path.unlink()
            one.start()
            cluster.await_in_sync("t")
        until(lambda: header(cluster).record_count == 0, "compaction has removed every record")
        lost = cluster.brokers[2]
        lost.kill()
        shutil.rmtree(lost.data)
        cluster.await_in_sync("t", 2)
        lost.start()
        cluster.await_in_sync("t")
