"""The broker for every client's test: Millstream, or with ``COMPAT_PEER=kafka`` Apache Kafka itself.

Running the same tests against Apache Kafka shows that they only require what Kafka does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kafka import KafkaProcess

# The tests start their members one after the other, so a new group need not wait three seconds for more of them;
# kafka-python needs a moment, though: it may assign partitions before it has requested the topic's metadata.
CONFIG = {
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "5",
    # The clients' records are years old: they must not be deleted in the middle of a test.
    "log.retention.check.interval.ms": "86400000",
}


@pytest.fixture(scope="session")
def compat_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker | KafkaProcess]:
    folder = tmp_path_factory.mktemp("compat-broker")
    peer = os.environ.get("COMPAT_PEER", "millstream")
    process = KafkaProcess(folder, CONFIG) if peer == "kafka" else InProcessBroker(folder, CONFIG)
    with process as broker:
        yield broker


@pytest.fixture
def bootstrap(compat_broker: InProcessBroker | KafkaProcess) -> str:
    return compat_broker.bootstrap
