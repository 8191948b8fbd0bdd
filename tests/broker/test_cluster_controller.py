"""The controller of a real cluster: with a thousand partitions, and as Prometheus sees it."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import STABLE, until
from millstream_harness.cluster_load import PATIENT
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster

pytestmark = pytest.mark.soak

TOPICS, PARTITIONS = 10, 100


def metric(broker: InProcessBroker, name: str) -> float:
    """A metric's value; -1 if it is missing, or nobody answers."""
    try:
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as response:
            found = re.search(rf"^millstream_{name} (\S+)$", response.read().decode(), re.MULTILINE)
    except OSError:
        return -1
    return float(found[1]) if found else -1


def test_the_controller_of_a_thousand_partitions_dies(tmp_path: Path) -> None:
    """Partitions that it led have leaders within two seconds on an idle machine; this one may be busy."""
    config = {**STABLE, "log.index.size.max.bytes": "4096"}
    with InProcessCluster(tmp_path, config=config) as cluster:
        names = [f"t{number}" for number in range(TOPICS)]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        created = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in names])
        for future in created.values():
            future.result(60)
        for name in names:
            cluster.await_in_sync(name)
        controller = cluster.controller()
        assert [
            number for number, one in cluster.brokers.items() if metric(one, "active_controller") == 1
        ] == [controller]
        assert metric(cluster.brokers[controller], "leaderless_partitions") == 0

        cluster.brokers[controller].kill()
        others = {number: one for number, one in cluster.brokers.items() if number != controller}
        until(
            lambda: 1 in [metric(one, "active_controller") for one in others.values()],
            "another broker is the controller",
        )
        elected = time.monotonic()

        def all_led() -> bool:
            topics = [one for one in cluster.metadata(*names).topics if one.name in names]
            leaders = [one.leader_id for topic in topics for one in topic.partitions]
            return len(leaders) == TOPICS * PARTITIONS and all(leader in others for leader in leaders)

        until(all_led, "every partition is led by a broker that lives")
        print(f"{TOPICS * PARTITIONS} partitions had leaders {time.monotonic() - elected:.2f} s later")
        (successor,) = [one for one in others.values() if metric(one, "active_controller") == 1]
        assert metric(successor, "leaderless_partitions") == 0
        assert metric(successor, "not_preferred_leaders") > 300

        cluster.brokers[controller].start()
        for name in names:
            cluster.await_in_sync(name)
