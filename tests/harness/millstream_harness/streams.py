"""Message streams in tests: topics with known records, and connectors with each kind of coordination."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import millstream
from millstream_harness.cluster import ClusterProcesses
from millstream_harness.scenario import unique

STRATEGIES: Final = ("cooperative-sticky", "range", "roundrobin")
WAYS: Final = (*STRATEGIES, "zookeeper")
"""Strategies of the brokers' groups, and coordination in ZooKeeper."""


def fill(cluster: millstream.Cluster, topic: str, counts: Iterable[int], size: int = 0) -> None:
    """Produce this many records "PARTITION-NUMBER" to each partition, one second apart, from 2023 on."""
    with millstream.Producer(cluster) as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                value = f"{partition}-{number}".ljust(size)
                producer.send(
                    topic,
                    value,
                    partition=partition,
                    timestamp=1_700_000_000_000 + number * 1000,
                    headers={"n": b"1"},
                )


def connect(cluster: millstream.Cluster, group: str = "", **options: Any) -> millstream.Connector:
    """A connector whose values are text, by default in a new group."""
    return millstream.connect(
        cluster, group=group or unique("group"), **{"value_deserializer": bytes.decode, **options}
    )


def options_for(way: str, brokers: ClusterProcesses) -> dict[str, Any]:
    """The options of `connect` for one of WAYS; a session does not end because the machine is busy."""
    if way == "zookeeper":
        return {"coordination": "zookeeper", "zookeeper": brokers.connect, "session_timeout_s": 60}
    return {"strategy": way}
