"""Our own client: every API in every version that it shares with the broker, and a cluster's life by routing.

With ``COMPAT_PEER=kafka`` this tests the codec against Apache Kafka: it reads our requests and we its responses.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millstream_harness.protocol import APIS
from millstream_harness.scenario import unique
from millstream_kafka.batch import Record, build_batch, read_records
from millstream_kafka.client import ClusterClient, Connection, UnsupportedApi
from millstream_kafka.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_heartbeat,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_strays,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    mirror_append,
    mirror_truncate,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    remove_strays,
    sasl_authenticate,
    sasl_handshake,
    stop_replica,
    sync_group,
    txn_offset_commit,
    update_metadata,
    write_txn_markers,
)
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Struct

pytestmark = pytest.mark.process


@pytest.fixture
async def cluster(bootstrap: str) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(bootstrap, "compat") as client:
        yield client


@pytest.fixture
async def topic(cluster: ClusterClient) -> str:
    return await create_topic(cluster, unique("ours"))


async def create_topic(cluster: ClusterClient, name: str) -> str:
    wanted = create_topics.CreatableTopic(name, num_partitions=2, replication_factor=1)
    response = await cluster.call_controller(create_topics.API, create_topics.CreateTopicsRequest([wanted]))
    assert [(found.name, found.error_code) for found in response.topics] == [(name, ErrorCode.NONE)]
    while True:  # a cluster may be ready for it a moment later
        try:
            answer = await cluster.call_leader(name, 1, fetch.BY_NAME, fetch_request(name))
            if answer.responses[0].partitions[0].error_code == ErrorCode.NONE:
                return name
        except ApiError as error:
            assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # noqa: PT017
        cluster.forget_leaders(name)
        await asyncio.sleep(0.02)


def batch(*values: bytes) -> bytes:
    return build_batch([Record(None, value, 1_700_000_000_000) for value in values])


def produce_request(topic: str, records: bytes | memoryview, acks: int = -1) -> produce.ProduceRequest:
    data = produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(1, records)])
    return produce.ProduceRequest(None, acks, 5000, [data])


def fetch_request(topic: str, offset: int = 0, max_wait_ms: int = 0) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(1, fetch_offset=offset, partition_max_bytes=1_000_000)
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=[fetch.FetchTopic(topic, partitions=[partition])]
    )


async def fetch_values(cluster: ClusterClient, topic: str, offset: int = 0) -> list[bytes | None]:
    """The values of the next records, as soon as there are some."""
    while True:
        response = await cluster.call_leader(topic, 1, fetch.BY_NAME, fetch_request(topic, offset, 5000))
        (partition,) = response.responses[0].partitions
        assert partition.error_code == ErrorCode.NONE
        if partition.records:
            assert isinstance(partition.records, memoryview)
            return [record.value for record in read_records(partition.records)]


async def test_produce_and_fetch(cluster: ClusterClient, topic: str) -> None:
    request = produce_request(topic, memoryview(batch(b"one", b"two")))
    response = await cluster.call_leader(topic, 1, produce.BY_NAME, request)
    (written,) = response.responses[0].partition_responses
    assert (written.error_code, written.base_offset) == (ErrorCode.NONE, 0)
    assert await fetch_values(cluster, topic) == [b"one", b"two"]


async def test_produce_without_acknowledgement(cluster: ClusterClient, topic: str) -> None:
    request = produce_request(topic, batch(b"unacknowledged"), acks=0)
    assert (await cluster.call_leader(topic, 1, produce.BY_NAME, request)).responses == []
    assert await fetch_values(cluster, topic) == [b"unacknowledged"]


async def test_calls_are_pipelined_and_answered_each(cluster: ClusterClient, topic: str) -> None:
    connection = await cluster.connection(await cluster.leader(topic, 1))
    calls = [
        connection.call(produce.BY_NAME, None, produce_request(topic, batch(b"%d" % n))) for n in range(50)
    ]
    answers = [answer.responses[0].partition_responses[0] for answer in await asyncio.gather(*calls)]
    assert [answer.base_offset for answer in answers] == list(range(50))


async def test_a_group_by_its_coordinator(cluster: ClusterClient, topic: str) -> None:
    group = unique("ours-group")
    position = offset_commit.OffsetCommitRequestPartition(1, 42, committed_metadata="mine")
    commit = offset_commit.OffsetCommitRequest(
        group,
        topics=[offset_commit.OffsetCommitRequestTopic(topic, partitions=[position])],
        generation_id_or_member_epoch=-1,
    )
    while True:  # the coordinator may still be starting
        committed = await cluster.call_coordinator(group, offset_commit.BY_NAME, commit)
        error = ErrorCode.of(committed.topics[0].partitions[0].error_code)
        if not error.retriable:
            break
        cluster.forget_coordinator(group)
        await asyncio.sleep(0.02)
    assert error is ErrorCode.NONE
    wanted = offset_fetch.OffsetFetchRequestGroup(
        group, topics=[offset_fetch.OffsetFetchRequestTopics(topic, partition_indexes=[1])]
    )
    found = await cluster.call_coordinator(
        group, offset_fetch.BY_NAME, offset_fetch.OffsetFetchRequest(groups=[wanted])
    )
    (stored,) = found.groups[0].topics[0].partitions
    assert (stored.committed_offset, stored.metadata) == (42, "mine")


async def test_what_does_not_exist(cluster: ClusterClient) -> None:
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await cluster.leader(unique("nowhere"), 0)


def requests(topic: str, group: str) -> dict[Api[Any, Any], Struct]:
    """A request with content for every API, which changes nothing that others use."""
    reassigned = alter_partition_reassignments.ReassignableTopic(
        topic, [alter_partition_reassignments.ReassignablePartition(0, None)]
    )
    added = add_partitions_to_txn.AddPartitionsToTxnTopic(topic, [0])
    committed = txn_offset_commit.TxnOffsetCommitRequestTopic(
        topic, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 5, committed_metadata="note")]
    )
    return {
        produce.BY_NAME: produce_request(topic, batch(b"x")),
        fetch.BY_NAME: fetch_request(topic),
        list_offsets.API: list_offsets.ListOffsetsRequest(
            topics=[
                list_offsets.ListOffsetsTopic(topic, [list_offsets.ListOffsetsPartition(0, timestamp=-1)])
            ]
        ),
        metadata.API: metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)]),
        offset_commit.BY_NAME: offset_commit.OffsetCommitRequest(
            group,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    topic, partitions=[offset_commit.OffsetCommitRequestPartition(0, 1)]
                )
            ],
        ),
        offset_fetch.BY_NAME: offset_fetch.OffsetFetchRequest(
            group,
            [offset_fetch.OffsetFetchRequestTopic(topic, [0])],
            [offset_fetch.OffsetFetchRequestGroup(group, topics=None)],
        ),
        find_coordinator.API: find_coordinator.FindCoordinatorRequest(group, coordinator_keys=[group]),
        join_group.API: join_group.JoinGroupRequest(
            group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="nobody",
            protocol_type="consumer",
            protocols=[join_group.JoinGroupRequestProtocol("range", b"")],
        ),
        heartbeat.API: heartbeat.HeartbeatRequest(group, 1, "nobody"),
        leave_group.API: leave_group.LeaveGroupRequest(
            group, "nobody", [leave_group.MemberIdentity("nobody")]
        ),
        sync_group.API: sync_group.SyncGroupRequest(
            group, 1, "nobody", protocol_type="consumer", protocol_name="range"
        ),
        describe_groups.API: describe_groups.DescribeGroupsRequest([group]),
        list_groups.API: list_groups.ListGroupsRequest(),
        sasl_handshake.API: sasl_handshake.SaslHandshakeRequest("PLAIN"),
        sasl_authenticate.API: sasl_authenticate.SaslAuthenticateRequest(b"\0me\0secret"),
        api_versions.API: api_versions.ApiVersionsRequest("millstream", "1"),
        create_topics.API: create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(unique("v"), 1, 1)]
        ),
        delete_topics.API: delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState("no-such")], ["no-such"], 5000
        ),
        delete_records.API: delete_records.DeleteRecordsRequest(
            [delete_records.DeleteRecordsTopic(topic, [delete_records.DeleteRecordsPartition(0, offset=0)])],
            5000,
        ),
        init_producer_id.API: init_producer_id.InitProducerIdRequest(None, 0),
        offset_for_leader_epoch.API: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic, [offset_for_leader_epoch.OffsetForLeaderPartition(0, leader_epoch=0)]
                )
            ]
        ),
        describe_acls.API: describe_acls.DescribeAclsRequest(1, None, 3, None, None, 1, 1),
        create_acls.API: create_acls.CreateAclsRequest(
            [create_acls.AclCreation(2, topic, 3, "User:me", "*", 3, 3)]
        ),
        delete_acls.API: delete_acls.DeleteAclsRequest(
            [delete_acls.DeleteAclsFilter(2, topic, 3, None, None, 1, 1)]
        ),
        describe_configs.API: describe_configs.DescribeConfigsRequest(
            [describe_configs.DescribeConfigsResource(2, topic, None)],
            include_synonyms=True,
            include_documentation=True,
        ),
        alter_configs.API: alter_configs.AlterConfigsRequest(
            [
                alter_configs.AlterConfigsResource(
                    2, topic, [alter_configs.AlterableConfig("retention.ms", "1000000")]
                )
            ]
        ),
        describe_log_dirs.API: describe_log_dirs.DescribeLogDirsRequest(None),
        create_partitions.API: create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(topic, 1, None)], 5000
        ),
        delete_groups.API: delete_groups.DeleteGroupsRequest(["no-such-group"]),
        elect_leaders.API: elect_leaders.ElectLeadersRequest(
            0, [elect_leaders.TopicPartitions(topic, [0])], 5000
        ),
        incremental_alter_configs.API: incremental_alter_configs.IncrementalAlterConfigsRequest(
            [
                incremental_alter_configs.AlterConfigsResource(
                    2, topic, [incremental_alter_configs.AlterableConfig("retention.ms", 0, "2000000")]
                )
            ]
        ),
        alter_partition_reassignments.API: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            5000, topics=[reassigned]
        ),
        list_partition_reassignments.API: list_partition_reassignments.ListPartitionReassignmentsRequest(
            5000
        ),
        offset_delete.API: offset_delete.OffsetDeleteRequest(
            group,
            [offset_delete.OffsetDeleteRequestTopic(topic, [offset_delete.OffsetDeleteRequestPartition(0)])],
        ),
        describe_cluster.API: describe_cluster.DescribeClusterRequest(),
        describe_topic_partitions.API: describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(topic)]
        ),
        describe_client_quotas.API: describe_client_quotas.DescribeClientQuotasRequest(
            [describe_client_quotas.QuotaComponent("user", 2, None)]
        ),
        alter_client_quotas.API: alter_client_quotas.AlterClientQuotasRequest(
            [
                alter_client_quotas.QuotaAlteration(
                    [describe_client_quotas.QuotaEntity("user", "alice")],
                    [alter_client_quotas.QuotaOperation("producer_byte_rate", 1024.0)],
                )
            ]
        ),
        alter_user_scram_credentials.API: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            [alter_user_scram_credentials.ScramCredentialDeletion(group, 1)]
        ),
        describe_user_scram_credentials.API: (
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
                [describe_user_scram_credentials.UserName("alice")]
            )
        ),
        describe_producers.API: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(topic, [0, 1])]
        ),
        list_transactions.API: list_transactions.ListTransactionsRequest(["Ongoing"]),
        describe_transactions.API: describe_transactions.DescribeTransactionsRequest(["nobody's"]),
        add_partitions_to_txn.API: add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction("nobody's", 1, 0, True, [added])
            ],
            transactional_id="nobody's",
            producer_id=1,
            topics=[added],
        ),
        add_offsets_to_txn.API: add_offsets_to_txn.AddOffsetsToTxnRequest("nobody's", 1, 0, group),
        end_txn.API: end_txn.EndTxnRequest("nobody's", 1, 0, committed=True),
        txn_offset_commit.API: txn_offset_commit.TxnOffsetCommitRequest(
            "nobody's", group, 1, 0, topics=[committed]
        ),
        list_config_resources.API: list_config_resources.ListConfigResourcesRequest(),
        consumer_group_heartbeat.API: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group, "member", -1, subscribed_topic_names=[topic]
        ),
        mirror_append.API: mirror_append.MirrorAppendRequest(
            "source",
            5000,
            [mirror_append.MirrorTopic(topic, uuid.uuid4(), [mirror_append.MirrorPartition(0)])],
        ),
        mirror_truncate.API: mirror_truncate.MirrorTruncateRequest(
            "source",
            [mirror_truncate.TruncatedTopic(topic, uuid.uuid4(), [mirror_truncate.TruncatedPartition(0)])],
        ),
        describe_strays.API: describe_strays.DescribeStraysRequest(),
        remove_strays.API: remove_strays.RemoveStraysRequest(
            [remove_strays.StrayToRemove("/data", topic, 5)]
        ),
        # between brokers: a single one gets no updates
        write_txn_markers.API: write_txn_markers.WriteTxnMarkersRequest(),
        update_metadata.API: update_metadata.UpdateMetadataRequest(),
        stop_replica.API: stop_replica.StopReplicaRequest(),
        controlled_shutdown.API: controlled_shutdown.ControlledShutdownRequest(),
    }


async def test_every_api_in_every_common_version(cluster: ClusterClient, topic: str) -> None:
    """The broker reads our requests (or it would close the connection), and we read its responses."""
    group = unique("ours-group")
    made = requests(topic, group)
    assert {api.key for api in made} == set(APIS)
    node = await cluster.coordinator(group)
    tried = 0
    for api, request in made.items():
        connection = await cluster.connection(node)
        if api.key not in connection.versions:
            with pytest.raises(UnsupportedApi):
                connection.version(api)
            continue
        low, high = connection.versions[api.key]
        for version in range(max(low, api.served[0]), min(high, api.served[1]) + 1):
            response = await connection.call(api, version, request)
            assert isinstance(response, api.response)
            tried += 1
    assert tried > 100


async def test_an_api_versions_of_the_future_is_answered_in_v0(bootstrap: str) -> None:
    host, port = bootstrap.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frame = b"\0\x12\0\x63\0\0\0\x07\xff\xff\0" + b"\x02a\x02b\0"
    writer.write(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    assert answer[:4] == b"\0\0\0\x07"
    response = api_versions.API.decode_response(0, answer, 4)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert any(found.api_key == api_versions.API.key for found in response.api_keys)
    writer.close()
    await writer.wait_closed()


async def test_a_connection_by_itself(bootstrap: str) -> None:
    host, port = bootstrap.split(":")
    connection = await Connection.open(host, int(port), "alone")
    assert connection.versions[metadata.API.key][1] >= 12
    await connection.close()
    assert connection.is_closed
