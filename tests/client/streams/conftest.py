"""A broker for the streams of a module, and a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millstream
from millstream.topics import create_topic
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[millstream.Cluster]:
    """A broker whose groups do not wait for more members."""
    config = {"group.initial.rebalance.delay.ms": "0"}
    with InProcessBroker(tmp_path_factory.mktemp("streams"), config) as broker:
        yield millstream.Cluster(broker.bootstrap)


@pytest.fixture
def topic(cluster: millstream.Cluster) -> str:
    """A new topic of three partitions."""
    name = unique("streams")
    create_topic(cluster, name, partitions=3)
    return name
