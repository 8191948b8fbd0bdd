"""KIP-392 on three real brokers in three racks: consumers read from the replica in their rack, or the leader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.java import run_kafka_tool
from millstream_harness.racks import cluster_in_racks, sent_bytes
from millstream_harness.wire import Wire, fetch_request, record
from millstream_kafka.protocol import fetch, list_offsets
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import PartitionData
from millstream_kafka.protocol.list_offsets import LATEST, ListOffsetsPartition, ListOffsetsTopic

pytestmark = pytest.mark.soak

VALUE = "x" * 10_000
TEN_MINUTES_MS = 600_000


@dataclass
class Racks:
    cluster: InProcessCluster
    leader: InProcessBroker
    follower: InProcessBroker
    follower_id: int

    @property
    def rack(self) -> str:
        """The follower's rack."""
        return f"rack-{self.follower_id}"

    def produce(self, count: int) -> None:
        with Wire(self.leader.bootstrap) as wire:
            for _ in range(count):
                wire.produce("t", [record(VALUE)], acks=-1)

    def fetch(
        self, broker: InProcessBroker, offset: int, *, version: int = 12, wait_ms: int = 0
    ) -> PartitionData:
        request = fetch_request("t", offset, wait_ms=wait_ms)
        request.rack_id = self.rack
        with Wire(broker.bootstrap) as wire:
            data: PartitionData = wire.call(fetch.API, version, request).responses[0].partitions[0]
        return data

    def await_high_watermark(self, offset: int) -> None:
        """Wait until the follower's high watermark is ``offset``."""
        until(
            lambda: self.fetch(self.follower, 0).high_watermark == offset, "the follower knows what is safe"
        )


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    with cluster_in_racks(tmp_path) as cluster:
        leader = cluster.leader("t")
        follower_id = next(number for number, one in cluster.brokers.items() if one is not leader)
        yield Racks(cluster, leader, cluster.brokers[follower_id], follower_id)


def test_who_is_nearer_answers(racks: Racks) -> None:
    racks.produce(2)
    until(
        lambda: racks.fetch(racks.leader, 0).preferred_read_replica >= 0, "the leader knows of its follower"
    )
    told = racks.fetch(racks.leader, 0, wait_ms=TEN_MINUTES_MS)
    assert (told.error_code, told.preferred_read_replica, len(told.records or b"")) == (
        0,
        racks.follower_id,
        0,
    )
    racks.await_high_watermark(2)
    read = racks.fetch(racks.follower, 0, wait_ms=TEN_MINUTES_MS)
    assert (read.error_code, read.preferred_read_replica, read.high_watermark) == (0, -1, 2)
    assert len(read.records or b"") > 2 * len(VALUE)
    beyond = racks.fetch(racks.follower, 3, wait_ms=TEN_MINUTES_MS)
    assert beyond.error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "the leader may have it"
    assert racks.fetch(racks.leader, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert racks.fetch(racks.follower, -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    old = racks.fetch(racks.follower, 0, version=10)
    assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "its client does not know of replicas"
    with Wire(racks.follower.bootstrap) as wire:
        asked = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, LATEST)])]
        answer = wire.call(list_offsets.API, 5, list_offsets.ListOffsetsRequest(-1, topics=asked))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_poll_of_a_follower_ends_when_a_record_is_safe(racks: Racks) -> None:
    with Wire(racks.follower.bootstrap) as wire:
        for number in range(5):
            wire.send(fetch.API, 12, fetch_request("t", number, wait_ms=TEN_MINUTES_MS))
            racks.produce(1)
            (data,) = wire.receive().responses[0].partitions
            assert (data.error_code, data.high_watermark) == (0, number + 1)
            assert len(data.records or b"") > len(VALUE)


def test_librdkafka_reads_in_its_rack_and_elsewhere_when_that_is_gone(racks: Racks) -> None:
    racks.produce(100)
    racks.await_high_watermark(100)
    before = sent_bytes(racks.follower)
    config = {
        "bootstrap.servers": racks.cluster.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "client.rack": racks.rack,
        "fetch.message.max.bytes": 50_000,
        "log_level": 0,
    }
    consumer = Consumer(config)
    try:
        consumer.subscribe(["t"])
        offsets: list[int] = []

        def read(count: int) -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                offsets.append(message.offset() or 0)
            return len(offsets) >= count

        until(lambda: read(100), "all is read", 60)
        assert sent_bytes(racks.follower) - before > 90 * len(VALUE)
        racks.follower.kill()
        racks.produce(20)
        until(lambda: read(120), "all is read from another replica", 60)
        assert offsets == list(range(120))
    finally:
        consumer.close()


def test_javas_consumer_reads_in_its_rack(racks: Racks, kafka_jars: Path) -> None:
    racks.produce(100)
    racks.await_high_watermark(100)
    before = sent_bytes(racks.follower)
    said = run_kafka_tool(
        "console-consumer",
        *("--bootstrap-server", racks.cluster.bootstrap, "--topic", "t", "--from-beginning"),
        *("--max-messages", "100", "--timeout-ms", "60000"),
        *("--consumer-property", f"client.rack={racks.rack}"),
        *("--consumer-property", "max.partition.fetch.bytes=50000"),
    ).stdout
    assert [line for line in said.splitlines() if not line.startswith("Option ")] == [VALUE] * 100
    assert sent_bytes(racks.follower) - before > 90 * len(VALUE)
