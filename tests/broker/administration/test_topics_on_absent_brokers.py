"""A manual assignment may name a broker that is down, as in Kafka: its replicas follow when it is back."""

from __future__ import annotations

from pathlib import Path

from millstream_harness import loop_client
from millstream_harness.in_process_cluster import LoopCluster
from millstream_harness.jumping_clock import jumping_clock
from millstream_harness.members import until
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import create_partitions, create_topics
from millstream_kafka.protocol.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from millstream_kafka.protocol.create_topics import CreatableReplicaAssignment, CreatableTopic
from millstream_kafka.protocol.errors import ErrorCode


async def create(client: ClusterClient, topic: str, *replicas: list[int]) -> tuple[int, str | None]:
    assigned = [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(replicas)]
    request = create_topics.CreateTopicsRequest([CreatableTopic(topic, -1, -1, assigned, [])], 30_000)
    (result,) = (await client.call_controller(create_topics.API, request)).topics
    return result.error_code, result.error_message


@jumping_clock
async def test_replicas_on_a_broker_that_is_down_follow_when_it_is_back(tmp_path: Path) -> None:
    async with (
        LoopCluster(tmp_path, 3, {"min.insync.replicas": "1"}) as cluster,
        ClusterClient(cluster.bootstrap, "test") as client,
    ):
        await loop_client.create(client, "before")
        await cluster.agreed("before", accepted=lambda record: len(record.isr) == 3)
        await cluster.brokers[3].kill()
        await until(lambda: 3 not in cluster.state(1).brokers and 3 not in cluster.state(2).brokers)
        assert await create(client, "t", [3, 1], [2, 3]) == (0, None)
        for index, leader in enumerate([1, 2]):
            record = await cluster.agreed("t", index)
            assert (record.leader, record.isr) == (leader, (leader,))
            await loop_client.write(client, "t", ["a"], index)
        wanted = CreatePartitionsTopic("t", 3, [CreatePartitionsAssignment([1, 3])])
        request = create_partitions.CreatePartitionsRequest([wanted], 30_000)
        (grown,) = (await client.call_controller(create_partitions.API, request)).results
        assert grown.error_code == 0, grown.error_message
        await cluster.brokers[3].start()
        for index in range(3):
            await cluster.agreed("t", index, accepted=lambda record: len(record.isr) == 2)
        await cluster.brokers[1].kill()
        await cluster.agreed("t", accepted=lambda record: record.leader == 3)
        client.forget_leaders()
        assert await loop_client.read(client, "t") == ["a"]


@jumping_clock
async def test_a_partition_needs_a_broker_that_runs_and_no_stranger(tmp_path: Path) -> None:
    async with LoopCluster(tmp_path) as cluster, ClusterClient(cluster.bootstrap, "test") as client:
        await loop_client.create(client, "before")
        await cluster.brokers[3].kill()
        await until(lambda: 3 not in cluster.state(1).brokers and 3 not in cluster.state(2).brokers)
        invalid, words = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes"
        assert await create(client, "t", [1, 2], [3]) == (
            invalid,
            f"{words} partitions with different replication factors.",
        )
        assert await create(client, "t", [1], [3]) == (
            invalid,
            "All brokers specified in the manual partition assignment for partition 1 are down.",
        )
        assert await create(client, "t", [1, 9]) == (
            invalid,
            f"{words} broker 9, but no such broker is registered.",
        )
