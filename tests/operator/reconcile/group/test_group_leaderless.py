"""ConsumerGroups of a cluster in which a partition has no leader."""

from __future__ import annotations

from contextlib import closing

import pytest

from millstream_harness.cluster import until
from millstream_harness.group_looks import Looks
from millstream_harness.in_memory import stored
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.manifests import group
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import LATEST, AdminError, NewTopic, Partition

pytestmark = pytest.mark.process

FINE, LOST = Partition("fine", 0), Partition("lost", 0)
COMMITTED = {"on-fine": [FINE], "on-lost": [LOST], "on-both": [FINE, LOST]}


def test_a_partition_without_a_leader_hides_the_lag_of_its_groups_only(cluster: InProcessCluster) -> None:
    with closing(KafkaAdmin(cluster.bootstrap)) as admin:
        admin.create_topics([NewTopic("fine", 1, 3, {}), NewTopic("lost", 1, 1, {})])
        cluster.await_in_sync("fine")
        cluster.await_in_sync("lost", replicas=1)
        for name, partitions in COMMITTED.items():
            until(
                lambda name=name, partitions=partitions: (
                    admin.commit(name, dict.fromkeys(partitions, 0)) is None
                ),
                f"the coordinator of {name} has loaded its groups",
            )
        cluster.leader("lost").kill()
        until(lambda: led(admin, "fine") and not led(admin, "lost"), "only one topic has a leader")

        looks = Looks(admin)
        groups = [stored(group(name)) for name in COMMITTED]
        until(
            lambda: looks.look(*groups) and looks.condition("on-fine")[0] == "True",
            "the client has left the broker that is gone",
        )
        words = "lost-0 has no leader: start a broker that has a replica"
        for name in ("on-lost", "on-both"):
            assert looks.condition(name) == ("False", "ClusterNotReady", words)
        assert {key.name for key in looks.services.metrics.lags.all()} == {"on-fine"}
        with pytest.raises(AdminError, match="lost-0 has no leader"):
            admin.offsets({FINE: LATEST, LOST: LATEST})


def led(admin: KafkaAdmin, topic: str) -> bool:
    return all(one.leader_id >= 0 for one in admin.described([topic])[topic].partitions)
