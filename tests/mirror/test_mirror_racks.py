"""Workers with a rack fetch from the replica in it (KIP-392), on three real brokers, and from the leader without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, arrived, produce
from millstream_harness.racks import cluster_in_racks, sent_bytes

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
RECORDS = 20_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with cluster_in_racks(tmp_path) as cluster:
        yield cluster


def test_replica_in_rack_is_read_before_leader(
    cluster: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    leader = cluster.leader("t")
    number, follower = next((n, one) for n, one in cluster.brokers.items() if one is not leader)
    third = next(one for one in cluster.brokers.values() if one not in (leader, follower))
    produce(leader, "t", range(RECORDS))
    cluster.await_in_sync("t")
    before = {id(one): sent_bytes(one) for one in (leader, follower)}
    mirror = start_mirror(
        {"west": leader.bootstrap},
        east.bootstrap,
        security={"west": {"rack": f"rack-{number}"}},
        topics={"include": ["t"]},
        name="racks",
    )
    arrived(east, "t", [RECORDS])
    of_follower = sent_bytes(follower) - before[id(follower)]
    of_leader = sent_bytes(leader) - before[id(leader)]
    mirrored = sum(
        float(line.split()[-1])
        for line in mirror.get("/metrics").splitlines()
        if line.startswith("millstream_mirror_bytes_total{")
    )
    assert mirrored > 500_000
    assert of_follower > mirrored
    assert of_leader < mirrored / 2

    # The follower fails: workers read from the leader. It continues to lead, because the third broker is in sync.
    follower.kill()
    produce(third, "t", range(RECORDS, RECORDS + 1000))
    arrived(east, "t", [RECORDS + 1000])
    follower.restart()
    produce(third, "t", range(RECORDS + 1000, RECORDS + 2000))
    arrived(east, "t", [RECORDS + 2000])

    # A killed worker starts at the leader, skips the target's records, and continues: no record is there twice.
    mirror.kill()
    produce(third, "t", range(RECORDS + 2000, RECORDS + 3000))
    mirror.start()
    arrived(east, "t", [RECORDS + 3000])
