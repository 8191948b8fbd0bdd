"""Three brokers in three racks, whose leaders name the replica in a client's rack (KIP-392)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .broker import AnyBroker
from .cluster import STABLE
from .in_process_cluster import InProcessCluster
from .wire import Wire

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
CONFIG = {**STABLE, "replica.selector.class": RACK_AWARE}


@contextmanager
def cluster_in_racks(folder: Path) -> Iterator[InProcessCluster]:
    """Broker N is in ``rack-N``. There is the topic t: one partition with three replicas, which are in sync."""
    cluster = InProcessCluster(folder, config=CONFIG)
    for number in cluster.brokers:
        cluster.brokers[number] = cluster.broker(number, **{"broker.rack": f"rack-{number}"})
    with cluster, Wire(cluster.brokers[1].bootstrap) as wire:
        wire.create("t")
        cluster.await_in_sync("t")
        yield cluster


def sent_bytes(broker: AnyBroker) -> float:
    """Bytes that it has sent over all connections since its start."""
    _, page = broker.get("/metrics")
    found = re.search(r"^millstream_sent_bytes\S* (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])
