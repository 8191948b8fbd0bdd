"""Idempotent batches in flight while too few replicas are in sync, or while leadership moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import STABLE
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.wire import Wire
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process


@pytest.mark.parametrize("codec", ["producer", "gzip"], ids=["appended-at-once", "recompressed-in-a-thread"])
def test_what_follows_a_refused_batch_is_refused_likewise(tmp_path: Path, codec: str) -> None:
    """The first batch finds too few replicas, the second enough; the client resends both."""
    with InProcessCluster(tmp_path, 2, STABLE) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        config = {"min.insync.replicas": "2", "compression.type": codec}
        topic = NewTopic("t", 1, replica_assignment=[[1, 2]], config=config)
        admin.create_topics([topic])["t"].result(30)
        cluster.await_in_sync("t", 2)
        with Wire(cluster.brokers[1].bootstrap) as wire:

            def send(sequence: int) -> tuple[int, int]:
                records = [Record(b"k", b"%d" % sequence, 0)] * 100
                batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
                answer = wire.produce("t", batch, acks=-1)
                return answer.error_code, answer.base_offset

            refused = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
            cluster.brokers[2].stop()
            cluster.await_in_sync("t", 1)
            assert send(0) == refused
            cluster.brokers[2].start()
            cluster.await_in_sync("t", 2)
            assert send(100) == refused
            assert [send(0), send(100), send(200)] == [(0, 0), (0, 100), (0, 200)]
            assert send(100) == (0, 100)
            assert wire.end_offset("t") == 300

            # As after a restart, when the client has lost the responses: the first batch is in the log.
            cluster.brokers[2].stop()
            cluster.await_in_sync("t", 1)
            assert [send(200), send(300)] == [refused, refused]
            cluster.brokers[2].start()
            cluster.await_in_sync("t", 2)
            assert send(400) == refused
            assert [send(200), send(300), send(400)] == [(0, 200), (0, 300), (0, 400)]
            assert wire.end_offset("t") == 500


def test_what_follows_a_batch_that_the_follower_refused_waits_for_it_at_the_new_leader(
    tmp_path: Path,
) -> None:
    """The first batch meets the broker before it leads, the second afterwards."""
    with InProcessCluster(tmp_path, 2, STABLE) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic("t", 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"})
        admin.create_topics([topic])["t"].result(30)
        cluster.await_in_sync("t", 2)

        def send(wire: Wire, sequence: int) -> tuple[int, int]:
            records = [Record(b"k", b"%d" % sequence, 0)] * 100
            batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
            answer = wire.produce("t", batch, acks=-1)
            return answer.error_code, answer.base_offset

        with Wire(cluster.brokers[1].bootstrap) as leader:
            assert send(leader, 0) == (0, 0)
        with Wire(cluster.brokers[2].bootstrap) as next_leader:
            refused = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            assert send(next_leader, 100) == refused
            cluster.brokers[1].stop()
            cluster.await_in_sync("t", 1)
            assert send(next_leader, 200) == refused
            assert [send(next_leader, 100), send(next_leader, 200)] == [(0, 100), (0, 200)]
            assert next_leader.end_offset("t") == 300
