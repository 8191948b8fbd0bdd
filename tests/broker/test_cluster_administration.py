"""A cluster of real broker processes, as administrators and clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.cluster.forwarding import FORWARDED
from millstream_harness.cluster import STABLE, until
from millstream_harness.cluster_load import PATIENT, Writer, create, read_all
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.wire import Wire, record
from millstream_kafka.client import Connection
from millstream_kafka.protocol import (
    controlled_shutdown,
    elect_leaders,
    list_offsets,
    list_partition_reassignments,
    offset_for_leader_epoch,
    stop_replica,
    update_metadata,
)
from millstream_kafka.protocol.controlled_shutdown import ControlledShutdownRequest
from millstream_kafka.protocol.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_partition_reassignments import ListPartitionReassignmentsRequest
from millstream_kafka.protocol.stop_replica import StopReplicaRequest
from millstream_kafka.protocol.update_metadata import UpdateMetadataRequest

pytestmark = pytest.mark.process

# What an administrator does


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Three brokers that no test breaks, each in a rack."""
    cluster = InProcessCluster(tmp_path_factory.mktemp("standing"), config=STABLE)
    for number, one in cluster.brokers.items():
        one.config["broker.rack"] = f"rack-{number % 2}"
    with cluster:
        yield cluster


def test_a_topic_is_deleted_everywhere(standing: InProcessCluster) -> None:
    create(standing, "doomed", 2)
    Writer(standing, "doomed").write(100)
    logs = [one.data / f"doomed-{index}" for one in standing.brokers.values() for index in range(2)]
    until(lambda: all(path.exists() for path in logs), "every replica has a log")
    admin = AdminClient({"bootstrap.servers": standing.bootstrap, **PATIENT})
    admin.delete_topics(["doomed"])["doomed"].result(60)
    until(lambda: not any(path.exists() for path in logs), "no log is left")
    create(standing, "doomed", 1)
    writer = Writer(standing, "doomed")
    writer.write(10)
    assert sorted(read_all(standing, "doomed")) == list(range(10))


def test_replicas_are_spread_over_brokers_and_racks(standing: InProcessCluster) -> None:
    create(standing, "spread", 12, 2)
    standing.await_in_sync("spread", 2)
    partitions = standing.partitions("spread")
    for one in partitions:
        assert {number % 2 for number in one.replica_nodes} == {0, 1}
    leaders = [one.replica_nodes[0] for one in partitions]
    assert {leaders.count(number) for number in (1, 2, 3)} == {4}


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (lambda: NewTopic("bad", 1, 4), "only 3 broker"),
        (lambda: NewTopic("bad", 1, replica_assignment=[[1, 2, 9]]), "no such broker is registered"),
    ],
)
def test_what_cannot_be_created_is_said(
    standing: InProcessCluster, new: Callable[[], Any], problem: str
) -> None:
    admin = AdminClient({"bootstrap.servers": standing.bootstrap, **PATIENT})
    with pytest.raises(KafkaException, match=problem):
        admin.create_topics([new()])["bad"].result(60)


async def test_what_only_the_controller_knows_every_broker_answers(standing: InProcessCluster) -> None:
    await asyncio.to_thread(create, standing, "asked", 1)
    await asyncio.to_thread(standing.await_in_sync, "asked")
    controller = await asyncio.to_thread(standing.controller)
    election = ElectLeadersRequest(0, [TopicPartitions("asked", [0])])
    for number, broker in standing.brokers.items():
        host, port = broker.bootstrap.split(":")
        connection = await Connection.open(host, int(port))
        listed = await connection.call(
            list_partition_reassignments.API, None, ListPartitionReassignmentsRequest()
        )
        assert (listed.error_code, listed.topics) == (0, [])
        elected = await connection.call(elect_leaders.API, None, election)
        (result,) = elected.replica_election_results
        assert result.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED
        await connection.close()
        sent_on = await Connection.open(host, int(port), f"{FORWARDED}9")
        elected = await sent_on.call(elect_leaders.API, None, election)
        assert (elected.error_code == ErrorCode.NOT_CONTROLLER) == (number != controller)
        await sent_on.close()


def test_clients_learn_of_no_log_but_the_leaders(standing: InProcessCluster) -> None:
    """Only brokers may query the log end of any replica, as debugging replicas."""
    create(standing, "ends-of-replicas", 1)
    leader = standing.leader("ends-of-replicas")
    follower = next(one for one in standing.brokers.values() if one is not leader)
    asked = list_offsets.ListOffsetsPartition(0, -1, list_offsets.LATEST)
    request = list_offsets.ListOffsetsRequest(
        list_offsets.DEBUGGING_REPLICA_ID, 0, [list_offsets.ListOffsetsTopic("ends-of-replicas", [asked])]
    )
    standing.await_in_sync("ends-of-replicas")
    with Wire(follower.bootstrap) as wire:
        (answer,) = wire.call(list_offsets.API, 4, request).topics
        assert answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_broker_that_coordinates_itself_is_told_nothing(shared_broker: InProcessBroker) -> None:
    host, port = shared_broker.bootstrap.split(":")
    connection = await Connection.open(host, int(port))
    for api, request in (
        (update_metadata.API, UpdateMetadataRequest(1, 1, 1)),
        (stop_replica.API, StopReplicaRequest(1, 1, 1)),
        (controlled_shutdown.API, ControlledShutdownRequest(1, 1)),
    ):
        refused = await connection.call(api, None, request)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await connection.close()


def test_where_an_epoch_ends_is_not_the_high_watermark(cluster: InProcessCluster) -> None:
    """A leader's high watermark may lag what consumers have read; they must not take that for truncation."""
    create(cluster, "ends", 1)
    cluster.await_in_sync("ends")
    leader = cluster.leader("ends")
    for broker in cluster.brokers.values():
        if broker is not leader:
            broker.kill()
    with Wire(leader.bootstrap) as wire:
        assert wire.produce("ends", [record("a")], acks=1).error_code == 0
        asked = offset_for_leader_epoch.OffsetForLeaderPartition(
            0, -1, cluster.partitions("ends")[0].leader_epoch
        )
        topics = [offset_for_leader_epoch.OffsetForLeaderTopic("ends", [asked])]
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, topics)
        (answer,) = wire.call(offset_for_leader_epoch.API, 4, request).topics
        assert (answer.partitions[0].error_code, answer.partitions[0].end_offset) == (0, 1)
        fetched = wire.fetch("ends", 0)
        assert fetched.high_watermark == 0
