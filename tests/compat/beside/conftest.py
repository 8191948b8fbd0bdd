"""One Millstream broker and one Apache Kafka 4.3.1, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream_harness.beside import Beside
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import is_before
from millstream_harness.kafka import KafkaProcess

CONFIG = {
    "broker.id": "1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "socket.request.max.bytes": "2000000",
    # The records are years old: they must not be deleted in the middle of a test.
    "log.retention.check.interval.ms": "86400000",
}
KAFKA_CONFIG = CONFIG | {"log.initial.task.delay.ms": "86400000"}
# With it Kafka makes min.insync.replicas a cluster setting that cannot be removed.
FEATURES = {"eligible.leader.replicas.version": 0}


@pytest.fixture(scope="package")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    if is_before(4):
        pytest.skip("ours behaves as Kafka 4: of 3.9, only clients and tools are tried")
    folder = tmp_path_factory.mktemp("beside")
    with (
        InProcessBroker(folder / "ours", CONFIG) as ours,
        KafkaProcess(folder / "kafka", KAFKA_CONFIG, FEATURES) as kafka,
    ):
        both = Beside(ours.bootstrap, kafka.bootstrap)
        yield both
        both.close()
