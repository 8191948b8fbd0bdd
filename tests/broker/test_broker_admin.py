"""Administration, request by request: changes, refusals, and the message of each refusal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream_harness.coordination_file import nodes_in
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import eventually, unique
from millstream_harness.wire import Wire, record
from millstream_kafka.protocol import (
    alter_configs,
    alter_partition_reassignments,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    metadata,
    sasl_authenticate,
    sasl_handshake,
)
from millstream_kafka.protocol.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process

StartBroker = Callable[..., InProcessBroker]
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def wire(shared_broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(shared_broker.bootstrap) as one:
        yield one


@pytest.fixture
def topic(wire: Wire) -> str:
    name = unique("admin")
    wire.create(name)
    return name


def create(wire: Wire, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
    request = create_topics.CreateTopicsRequest(list(topics), 60_000, validate_only)
    return wire.call(create_topics.API, 7, request).topics


def names(wire: Wire) -> set[str]:
    return {topic.name or "" for topic in wire.call(metadata.API, 12, metadata.MetadataRequest(None)).topics}


def test_a_created_topic_is_described_at_once(wire: Wire) -> None:
    name = unique("created")
    (result,) = create(wire, CreatableTopic(name, 3, 1, [], [CreatableTopicConfig("retention.ms", "1000")]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    configs = {config.name: (config.value, config.config_source) for config in result.configs or []}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["segment.bytes"] == ("1073741824", 5)
    by_id = metadata.MetadataRequest([metadata.MetadataRequestTopic(result.topic_id, None)])
    (described,) = wire.call(metadata.API, 12, by_id).topics
    assert (described.name, len(described.partitions), described.is_internal) == (name, 3, False)
    assert {(one.leader_id, tuple(one.isr_nodes)) for one in described.partitions} == {(1, (1,))}
    unknown = metadata.MetadataRequest([metadata.MetadataRequestTopic(UUID(int=5), None)])
    assert wire.call(metadata.API, 12, unknown).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("topic", "error", "said"),
    [
        (
            CreatableTopic("x" * 250, 1, 1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "longer than the max allowed length 249",
        ),
        (CreatableTopic("a b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "other than ASCII alphanumerics"),
        (CreatableTopic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..' is not allowed"),
        (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS, "invalid non-positive value"),
        (CreatableTopic("t", 10**9, 1), ErrorCode.INVALID_PARTITIONS, "at most 100000"),
        (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "must be larger than 0"),
        (CreatableTopic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker(s) are registered"),
        (
            CreatableTopic("t", 1, 1, [CreatableReplicaAssignment(0, [1])]),
            ErrorCode.INVALID_REQUEST,
            "numPartitions was not set to -1",
        ),
        (
            CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(1, [1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "consecutive 0-based integer sequence",
        ),
        (
            CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [7])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "includes broker 7, but no such broker is registered",
        ),
        (
            CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [1, 1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "includes the broker 1 more than once",
        ),
        (
            CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "empty replica list",
        ),
        (
            CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("retention", "1")]),
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: retention",
        ),
        (
            CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("retention.ms", "week")]),
            ErrorCode.INVALID_CONFIG,
            "Invalid value week for configuration retention.ms: Not a number of type LONG",
        ),
        (
            CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("retention.ms", None)]),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported",
        ),
    ],
)
def test_topics_that_cannot_be_are_refused(
    wire: Wire, topic: CreatableTopic, error: ErrorCode, said: str
) -> None:
    before = names(wire)
    for validate_only in (True, False):
        (result,) = create(wire, topic, validate_only=validate_only)
        assert ErrorCode.of(result.error_code) is error
        assert said in (result.error_message or "")
    assert names(wire) == before


def test_each_topic_of_a_request_succeeds_or_fails_by_itself(wire: Wire) -> None:
    good, twice = unique("good"), unique("twice")
    asked = [CreatableTopic(good, -1, -1), CreatableTopic(twice, 1, 1), CreatableTopic(twice, 2, 1)]
    assert [(one.name, one.error_code) for one in create(wire, *asked)] == [
        (good, 0),
        (twice, ErrorCode.INVALID_REQUEST),
    ]
    assert [one.error_code for one in create(wire, CreatableTopic(good, 1, 1))] == [
        ErrorCode.TOPIC_ALREADY_EXISTS
    ]
    assert create(wire, CreatableTopic(twice, 1, 1), validate_only=True)[0].error_code == 0
    assert twice not in names(wire)


def test_names_that_metrics_would_confuse_are_refused(wire: Wire) -> None:
    name = unique("some.name")
    assert create(wire, CreatableTopic(name, 1, 1))[0].error_code == 0
    (result,) = create(wire, CreatableTopic(name.replace(".", "_"), 1, 1))
    assert ErrorCode.of(result.error_code) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert f"collides with existing topic: {name}" in (result.error_message or "")


def test_manual_assignment(wire: Wire) -> None:
    name = unique("assigned")
    assignment = [CreatableReplicaAssignment(index, [1]) for index in (1, 0)]
    (result,) = create(wire, CreatableTopic(name, -1, -1, assignment))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_topics_are_deleted_by_name_and_by_id(wire: Wire, topic: str) -> None:
    (by_id,) = create(wire, CreatableTopic(unique("by-id"), 2, 1))
    state = delete_topics.DeleteTopicState
    asked = [state(topic), state(None, by_id.topic_id), state("absent"), state(None, UUID(int=9))]
    answer = wire.call(delete_topics.API, 6, delete_topics.DeleteTopicsRequest(asked))
    assert [(one.name, one.error_code) for one in answer.responses] == [
        (topic, 0),
        (by_id.name, 0),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert not {topic, by_id.name} & names(wire)


def test_deletion_can_be_switched_off(start_broker: StartBroker) -> None:
    broker = start_broker({"delete.topic.enable": "false", "auto.create.topics.enable": "false"})
    with Wire(broker.bootstrap) as wire:
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name="t")])
        assert wire.call(metadata.API, 12, asked).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create(wire, CreatableTopic("t", 1, 1))
        asked_ = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("t")])
        assert (
            wire.call(delete_topics.API, 6, asked_).responses[0].error_code
            == ErrorCode.TOPIC_DELETION_DISABLED
        )


def test_files_of_a_deleted_topic_go(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Wire(broker.bootstrap) as wire:
        create(wire, CreatableTopic("gone", 5, 1))
        assert len(list(broker.data.glob("gone-*"))) == 5
        wire.call(
            delete_topics.API, 6, delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("gone")])
        )
        eventually(lambda: list(broker.data.glob("gone*")), lambda left: not left, "its folders are gone")
        eventually(
            lambda: nodes_in(broker.data).keys(),
            lambda paths: not any("/gone" in path for path in paths),
            "the deletion is over",
        )


def grow(
    wire: Wire, name: str, count: int, *assignments: list[int], validate_only: bool = False
) -> tuple[int, str]:
    assigned = [create_partitions.CreatePartitionsAssignment(one) for one in assignments] or None
    asked = create_partitions.CreatePartitionsTopic(name, count, assigned)
    answer = wire.call(
        create_partitions.API, 3, create_partitions.CreatePartitionsRequest([asked], 60_000, validate_only)
    )
    return answer.results[0].error_code, answer.results[0].error_message or ""


def test_partitions_grow_and_never_shrink(wire: Wire, topic: str) -> None:
    assert grow(wire, topic, 4, validate_only=True) == (0, "")
    assert grow(wire, topic, 3) == (0, "")
    assert wire.produce(topic, [record("a")], partition=2).error_code == 0
    assert grow(wire, topic, 3) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s).")
    assert grow(wire, topic, 2)[0] == ErrorCode.INVALID_PARTITIONS
    assert grow(wire, topic, 5, [1])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(wire, topic, 4, [8])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(wire, topic, 4, [1]) == (0, "")
    assert grow(wire, "absent", 4)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def deleted_before(wire: Wire, topic: str, offset: int) -> tuple[int, int]:
    asked = delete_records.DeleteRecordsTopic(topic, [delete_records.DeleteRecordsPartition(0, offset)])
    answer = wire.call(delete_records.API, 2, delete_records.DeleteRecordsRequest([asked], 60_000))
    return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].low_watermark


@pytest.mark.parametrize(
    ("policy", "result"),
    [
        ("", (0, 1)),
        ("delete,delete", (0, 1)),
        ("compact,delete", (0, 1)),
        ("compact", (ErrorCode.POLICY_VIOLATION, -1)),
        ("compact,compact", (ErrorCode.POLICY_VIOLATION, -1)),
    ],
)
def test_records_are_deleted_unless_the_topic_is_only_compacted(
    wire: Wire, topic: str, policy: str, result: tuple[int, int]
) -> None:
    assert alter(wire, TOPIC, topic, ("cleanup.policy", SET, policy)) == (0, "")
    shown = described(wire, TOPIC, topic)["cleanup.policy"].value
    assert shown == ",".join(dict.fromkeys(policy.split(",")))
    wire.produce(topic, [record("a", key=b"k"), record("b", key=b"k")])
    assert deleted_before(wire, topic, 1) == result


def test_records_are_deleted_up_to_an_offset(wire: Wire, topic: str) -> None:
    for _ in range(5):
        wire.produce(topic, [record("a")])

    def delete(offset: int, name: str = topic) -> tuple[int, int]:
        return deleted_before(wire, name, offset)

    assert delete(3) == (0, 3)
    assert delete(2) == (0, 3), "it never goes back"
    assert wire.fetch(topic, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert wire.fetch(topic, 3).log_start_offset == 3
    assert delete(6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 5)
    assert delete(0, "absent") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def described(
    wire: Wire, kind: int, name: str, *keys: str
) -> dict[str, describe_configs.DescribeConfigsResourceResult]:
    asked = describe_configs.DescribeConfigsResource(kind, name, list(keys) or None)
    answer = wire.call(describe_configs.API, 4, describe_configs.DescribeConfigsRequest([asked], True, True))
    assert answer.results[0].error_code == 0, answer.results[0].error_message
    return {config.name: config for config in answer.results[0].configs}


def alter(
    wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None], check: bool = False
) -> tuple[int, str]:
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], check)
    (answer,) = wire.call(incremental_alter_configs.API, 1, request).responses
    return answer.error_code, answer.error_message or ""


def test_topic_configs_are_changed_one_by_one(wire: Wire, topic: str) -> None:
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "5000"), check=True) == (0, "")
    assert described(wire, TOPIC, topic)["retention.ms"].value == "604800000"
    assert alter(
        wire, TOPIC, topic, ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")
    ) == (0, "")
    configs = described(wire, TOPIC, topic)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
    assert [(one.name, one.source) for one in configs["retention.ms"].synonyms] == [("retention.ms", 1)]
    assert [(one.name, one.source) for one in configs["max.message.bytes"].synonyms] == [
        ("message.max.bytes", 5)
    ]
    assert configs["retention.ms"].documentation
    assert configs["cleanup.policy"].value == "delete,compact"
    assert alter(
        wire, TOPIC, topic, ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")
    ) == (0, "")
    configs = described(wire, TOPIC, topic, "retention.ms", "cleanup.policy")
    assert {name: config.value for name, config in configs.items()} == {
        "cleanup.policy": "compact",
        "retention.ms": "604800000",
    }


def test_a_topic_config_takes_effect_at_once(wire: Wire, topic: str) -> None:
    assert alter(wire, TOPIC, topic, ("max.message.bytes", SET, "100")) == (0, "")
    assert wire.produce(topic, [record("x" * 200)]).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(wire, TOPIC, topic, ("max.message.bytes", DELETE, None)) == (0, "")
    assert wire.produce(topic, [record("x" * 200)]).error_code == 0


def test_a_list_stays_short_enough_to_be_shown(wire: Wire, topic: str) -> None:
    """Requests and responses have strings of at most 32,767 bytes; a list could grow beyond by appending."""
    key = "leader.replication.throttled.replicas"
    first, more = (",".join(f"{one}:1" for one in range(start, start + 4000)) for start in (0, 4000))
    assert alter(wire, TOPIC, topic, (key, SET, first)) == (0, "")
    code, message = alter(wire, TOPIC, topic, (key, APPEND, more))
    assert code == ErrorCode.INVALID_CONFIG
    assert message.startswith(f"{key} would have ")
    assert described(wire, TOPIC, topic)[key].value == first


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ([("retention.m", SET, "5")], ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        (
            [("retention.ms", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for configuration retention.ms",
        ),
        (
            [("retention.ms", APPEND, "5")],
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("retention.ms", SET, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        ([("retention.ms", 9, "5")], ErrorCode.INVALID_REQUEST, "retention.ms: unknown operation 9"),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            ErrorCode.INVALID_REQUEST,
            "duplicate config keys",
        ),
        ([("cleanup.policy", APPEND, "keep")], ErrorCode.INVALID_CONFIG, "must be one of: compact, delete"),
        (
            [("segment.ms", SET, "10"), ("segment.bytes", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for configuration segment.bytes",
        ),
    ],
)
def test_wrong_topic_configs_change_nothing(
    wire: Wire, topic: str, changes: list[tuple[str, int, str | None]], error: ErrorCode, said: str
) -> None:
    code, message = alter(wire, TOPIC, topic, *changes)
    assert ErrorCode.of(code) is error
    assert said in message
    assert all(config.config_source != 1 for config in described(wire, TOPIC, topic).values())


def test_altering_all_configs_replaces_them(wire: Wire, topic: str) -> None:
    alter(wire, TOPIC, topic, ("retention.ms", SET, "5000"))
    configs = [alter_configs.AlterableConfig("segment.bytes", "1000000")]
    resource = alter_configs.AlterConfigsResource(TOPIC, topic, configs)
    (answer,) = wire.call(alter_configs.API, 2, alter_configs.AlterConfigsRequest([resource])).responses
    assert answer.error_code == 0
    changed = {
        name: one.value for name, one in described(wire, TOPIC, topic).items() if one.config_source == 1
    }
    assert changed == {"segment.bytes": "1000000"}


def test_broker_configs_are_changed_while_it_runs(start_broker: StartBroker) -> None:
    broker = start_broker({"log.retention.hours": "2"})
    with Wire(broker.bootstrap) as wire:
        wire.create("t")
        assert described(wire, TOPIC, "t")["retention.ms"].value == "7200000"
        assert alter(
            wire, BROKER, "", ("log.retention.ms", SET, "1000"), ("message.max.bytes", SET, "300")
        ) == (0, "")
        assert alter(wire, BROKER, "1", ("log.retention.ms", SET, "2000")) == (0, "")
        assert described(wire, TOPIC, "t")["retention.ms"].value == "2000"
        assert wire.produce("t", [record("x" * 500)]).error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        entry = described(wire, BROKER, "1")["log.retention.ms"]
        assert (entry.value, entry.config_source, entry.read_only) == ("2000", 2, False)
        assert [(one.value, one.source) for one in entry.synonyms][:2] == [("2000", 2), ("1000", 3)]
        assert described(wire, BROKER, "1")["log.retention.hours"].config_source == 4
        assert described(wire, BROKER, "1")["log.dirs"].read_only
        assert set(described(wire, BROKER, "")) == {"log.retention.ms", "message.max.bytes"}
        assert alter(wire, BROKER, "1", ("log.retention.ms", DELETE, None)) == (0, "")
        assert described(wire, TOPIC, "t")["retention.ms"].value == "1000"
        code, said = alter(wire, BROKER, "1", ("log.dirs", SET, "/x"))
        assert (code, said) == (
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: [log.dirs]",
        )
        code, said = alter(wire, BROKER, "5", ("log.retention.ms", SET, "1"))
        assert "expected 1, but received 5" in said
        assert alter(wire, 99, "x", ("a", SET, "b"))[0] in (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_CONFIG,
        )


def test_the_cluster_and_its_disks_are_described(
    shared_broker: InProcessBroker, wire: Wire, topic: str
) -> None:
    wire.produce(topic, [record("a")])
    cluster = wire.call(describe_cluster.API, 1, describe_cluster.DescribeClusterRequest(True))
    assert (cluster.controller_id, [one.broker_id for one in cluster.brokers]) == (1, [1])
    assert f"{cluster.brokers[0].host}:{cluster.brokers[0].port}" == shared_broker.bootstrap
    assert len(cluster.cluster_id) == 22
    assert cluster.cluster_authorized_operations > 0
    controllers = wire.call(describe_cluster.API, 1, describe_cluster.DescribeClusterRequest(False, 2))
    assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    asked = [describe_log_dirs.DescribableLogDirTopic(topic, [0])]
    (found,) = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(asked)).results
    assert found.log_dir == str(shared_broker.data)
    assert (
        found.topics[0].partitions[0].partition_size
        == os.stat(shared_broker.data / f"{topic}-0" / "00000000000000000000.log").st_size
    )
    assert found.total_bytes > found.usable_bytes > 0
    (all_,) = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None)).results
    assert topic in {one.name for one in all_.topics}


def test_elections_and_reassignments_of_one_broker(wire: Wire, topic: str) -> None:
    partitions = [elect_leaders.TopicPartitions(topic, [0, 9])]
    elected = wire.call(elect_leaders.API, 2, elect_leaders.ElectLeadersRequest(0, partitions))
    assert [one.error_code for one in elected.replica_election_results[0].partition_result] == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert (
        wire.call(elect_leaders.API, 2, elect_leaders.ElectLeadersRequest(0, None)).replica_election_results
        == []
    )

    def move(replicas: list[int] | None, index: int = 0) -> int:
        moved = alter_partition_reassignments.ReassignablePartition(index, replicas)
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            60_000, topics=[alter_partition_reassignments.ReassignableTopic(topic, [moved])]
        )
        answer = wire.call(alter_partition_reassignments.API, 0, request)
        return answer.responses[0].partitions[0].error_code

    assert move([1]) == 0
    assert move(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert move([2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move([]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move([1], index=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    moving = wire.call(
        list_partition_reassignments.API, 0, list_partition_reassignments.ListPartitionReassignmentsRequest()
    )
    assert (moving.error_code, moving.topics) == (0, [])


def test_what_needs_security_says_that_there_is_none(wire: Wire) -> None:
    acls = wire.call(describe_acls.API, 3, describe_acls.DescribeAclsRequest(1, None, 3, None, None, 1, 1))
    assert (acls.error_code, acls.error_message) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )
    creation = create_acls.AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    created = wire.call(create_acls.API, 3, create_acls.CreateAclsRequest([creation, creation]))
    assert [one.error_code for one in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deletion = delete_acls.DeleteAclsFilter(2, "t", 3, None, None, 3, 3)
    deleted = wire.call(delete_acls.API, 3, delete_acls.DeleteAclsRequest([deletion]))
    assert [one.error_code for one in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]
    shaken = wire.call(sasl_handshake.API, 1, sasl_handshake.SaslHandshakeRequest("PLAIN"))
    assert shaken.error_code == ErrorCode.ILLEGAL_SASL_STATE
    let_in = wire.call(sasl_authenticate.API, 2, sasl_authenticate.SaslAuthenticateRequest(b"secret"))
    assert let_in.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_probes_and_metrics(shared_broker: InProcessBroker, wire: Wire, topic: str) -> None:
    wire.produce(topic, [record("a"), record("b")])
    assert shared_broker.get("/healthz") == (200, "ok\n")
    assert shared_broker.get("/readyz") == (200, "ready\n")
    assert shared_broker.get("/nowhere") == (404, "expected one of /healthz, /readyz, /metrics\n")
    status, text = shared_broker.get("/metrics")
    assert status == 200
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["millstream_log_end_offset", "0", topic] == 2
    assert samples["millstream_log_bytes", topic] > 70
    assert samples["millstream_request_seconds_count", "Produce"] >= 1
    assert samples["millstream_request_seconds_bucket", "+Inf", "Produce"] >= 1
    assert samples["millstream_received_bytes_total",] > 0
    assert samples["millstream_sent_bytes_total",] > 0
    assert samples["millstream_connections",] >= 1
    assert samples["millstream_tasks",] >= 1
    assert samples["millstream_offline_partitions",] == 0
    assert samples["process_resident_memory_bytes",] > 0


def test_several_log_directories_are_filled_evenly(start_broker: StartBroker, tmp_path: object) -> None:
    broker = start_broker({"log.dirs": f"{tmp_path}/one,{tmp_path}/two"})
    with Wire(broker.bootstrap) as wire:
        create(wire, CreatableTopic("spread", 4, 1))
        answer = wire.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None))
        assert [len(one.topics[0].partitions) for one in answer.results] == [2, 2]
        for partition in range(4):
            assert wire.produce("spread", [record("a")], partition=partition).error_code == 0
    broker.restart()
    with Wire(broker.bootstrap) as wire:
        assert [wire.end_offset("spread", partition) for partition in range(4)] == [1] * 4
