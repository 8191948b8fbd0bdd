"""Idempotent producers in a cluster: retries after truncation, retention and an election."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import STABLE, ClusterProcesses, until
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.produce import PartitionProduceResponse

pytestmark = pytest.mark.process

CONFIG = {
    **STABLE,  # a paused replica stays in the ISR
    "min.insync.replicas": "1",
    "log.retention.check.interval.ms": "50",
}


def test_a_follower_that_was_truncated_knows_the_producers(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """A leader takes a record that its follower never gets, dies, is cut, and leads again after a retention round."""
    sent = build_batch([record("once")], producer_id=7, producer_epoch=0, base_sequence=0)
    with ClusterProcesses(tmp_path, 2, CONFIG, zookeeper=shared_zookeeper) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name in ("t", "probe"):
            admin.create_topics([NewTopic(name, 1, 2)])[name].result(60)
            cluster.await_in_sync(name, 2)

        def produce(topic: str, batch: bytes, acks: int = -1) -> PartitionProduceResponse:
            with Wire(cluster.leader(topic).bootstrap) as wire:
                answer = wire.produce(topic, batch, acks=acks)
            assert answer.error_code == 0
            return answer

        assert produce("t", sent).base_offset == 0
        first = cluster.leader("t")
        (second,) = (one for one in cluster.brokers.values() if one is not first)
        with Wire(first.bootstrap) as wire:
            second.pause()
            for offset in (1, 2):  # the open fetch may return the first record
                assert wire.produce("t", [record("never replicated")], acks=1).base_offset == offset
            first.kill()
        second.resume()
        until(lambda: cluster.leader("t") is second, "the other one leads")
        end = produce("t", build_batch([record("in its place")]), acks=1).base_offset + 1
        assert end < 4
        first.start()
        cluster.await_in_sync("t", 2)
        assert f"truncated from offset 3 to {end - 1}" in first.said()
        cluster.await_in_sync("probe", 2)
        for round_number in range(2):  # a round whose end is seen began after the truncation
            produce("probe", build_batch([Record(b"k", b"too old", 1)]))
            until(
                lambda: not (first.data / "probe-0" / f"{round_number:020d}.log").exists(),  # noqa: B023
                "there was a retention round",
            )
        second.kill()
        until(lambda: cluster.leader("t") is first, "the first one leads again")
        assert produce("t", sent, acks=1).base_offset == 0
        with Wire(first.bootstrap) as wire:
            assert wire.end_offset("t") == end
