"""Requests that need rights, one row for each API, and way of naming what it needs.

A row has the rights that its request needs, so that a test can send it without any right, with single ones, and with
denials. In its strings `{n}` is a number that no earlier request had. A name that ends with `*` stands for a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    consumer_group_heartbeat,
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
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from millstream_kafka.protocol.api import Api

from .beside import Its

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
Needed = tuple[AclOperation, ResourceType, str]
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DELETE, ALTER, DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE

EXISTING, OTHER = "existing", "other"
"""Two topics of one partition, with a record each."""
WORDS = "Kafka prints the whole request, and names its class."


class Row(NamedTuple):
    name: str
    api: Api[Any, Any]
    needs: list[Needed]
    fields: Mapping[str, Any]
    versions: list[int] | None = None
    but: Mapping[str, str] = {}
    """Fields that differ if the first right is missing, and why."""
    is_enough: bool = True
    """Whether the first right suffices. If not, the request stays refused, and `but` always applies."""
    is_complete: bool = True
    """Whether it may be sent with all rights, which may destroy what the next row needs."""


OF_NOBODY = {"transactional_id": "tx-{n}", "producer_id": 1, "producer_epoch": 0}
"""A producer that no coordinator knows."""


def on_cluster(operation: AclOperation) -> Needed:
    return operation, CLUSTER, CLUSTER_NAME


def records() -> bytes:
    return bytes(build_batch([Record(b"key", b"value")]))


def _produced(**topic: Any) -> dict[str, Any]:
    data = [{**topic, "partition_data": [{"index": 0, "records": records()}]}]
    return {"acks": -1, "timeout_ms": 5000, "topic_data": data}


def _produced_in_a_transaction() -> dict[str, Any]:
    batch = build_batch(
        [Record(b"key", b"value")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    data = [{"name": EXISTING, "partition_data": [{"index": 0, "records": bytes(batch)}]}]
    return {"transactional_id": "tx-{n}", "acks": -1, "timeout_ms": 5000, "topic_data": data}


def _fetched(**topic: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100, "current_leader_epoch": -1}
    return {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{**topic, "partitions": [partition]}],
    }


def _committed(**topic: Any) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": "group-{n}",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [{**topic, "partitions": [partition]}],
    }


def _rules(name: str) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": "User:somebody",
        "host": "*",
        "operation": READ,
        "permission_type": 3,
    }


MISSING = "missing-{n}"
BOTH = [{"name": EXISTING}, {"name": OTHER}, {"name": MISSING}]
GROUPS: list[Needed] = [(READ, GROUP, "group-*")]

ROWS = [
    Row("produce", produce.API, [(WRITE, TOPIC, EXISTING)], _produced(name=EXISTING), list(range(3, 13))),
    Row(
        "produce by id",
        produce.API,
        [(WRITE, TOPIC, EXISTING)],
        _produced(topic_id=Its(f"id of {EXISTING}")),
        [13],
    ),
    Row("produce to nothing", produce.API, [(WRITE, TOPIC, "missing-*")], _produced(name=MISSING), [9]),
    Row("fetch", fetch.API, [(READ, TOPIC, EXISTING)], _fetched(topic=EXISTING), list(range(4, 13))),
    Row(
        "fetch by id",
        fetch.API,
        [(READ, TOPIC, EXISTING)],
        _fetched(topic_id=Its(f"id of {EXISTING}")),
        [13, 17],
    ),
    Row("fetch nothing", fetch.API, [(READ, TOPIC, "missing-*")], _fetched(topic=MISSING), [11]),
    Row("fetch with Describe", fetch.API, [(DESCRIBE, TOPIC, EXISTING)], _fetched(topic=EXISTING), [11]),
    Row(
        "list offsets",
        list_offsets.API,
        [(DESCRIBE, TOPIC, EXISTING), (READ, TOPIC, OTHER)],
        {
            "replica_id": -1,
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
                for name in (EXISTING, OTHER, MISSING)
            ],
        },
        list(range(1, 12)),
    ),
    Row(
        "offsets of leader epochs",
        offset_for_leader_epoch.API,
        [(DESCRIBE, TOPIC, EXISTING), on_cluster(CLUSTER_ACTION)],
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": name,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
                for name in (EXISTING, OTHER)
            ],
        },
    ),
    Row(
        "metadata",
        metadata.API,
        [(DESCRIBE, TOPIC, EXISTING), (READ, TOPIC, OTHER), (DESCRIBE, TOPIC, "missing-*")],
        {"topics": BOTH, "allow_auto_topic_creation": False},
    ),
    Row(
        "metadata with operations",
        metadata.API,
        [
            (DESCRIBE, TOPIC, EXISTING),
            (ALTER_CONFIGS, TOPIC, EXISTING),
            on_cluster(DESCRIBE),
            on_cluster(ALTER),
        ],
        {
            "topics": BOTH,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        [8, 9, 10],
    ),
    Row(
        "metadata by id",
        metadata.API,
        [(DESCRIBE, TOPIC, EXISTING)],
        {
            "topics": [{"name": None, "topic_id": Its(f"id of {EXISTING}")}],
            "allow_auto_topic_creation": False,
        },
        [12, 13],
    ),
    Row("metadata of all topics", metadata.API, [(DESCRIBE, TOPIC, EXISTING)], {"topics": None}, [1, 9, 12]),
    Row(
        "metadata creates",
        metadata.API,
        [(DESCRIBE, TOPIC, "made-*"), (CREATE, TOPIC, "made-*")],
        {"topics": [{"name": "made-{n}"}], "allow_auto_topic_creation": True},
        [9],
        is_complete=False,
    ),
    Row(
        "describe topic partitions",
        describe_topic_partitions.API,
        [(DESCRIBE, TOPIC, EXISTING), (ALTER, TOPIC, OTHER)],
        {"topics": BOTH, "response_partition_limit": 10},
    ),
    Row(
        "describe partitions of all topics",
        describe_topic_partitions.API,
        [(DESCRIBE, TOPIC, EXISTING)],
        {"topics": [], "response_partition_limit": 10},
    ),
    Row(
        "commit",
        offset_commit.API,
        [*GROUPS, (READ, TOPIC, EXISTING)],
        _committed(name=EXISTING),
        list(range(2, 10)),
    ),
    Row(
        "commit by id",
        offset_commit.API,
        [*GROUPS, (READ, TOPIC, EXISTING)],
        _committed(topic_id=Its(f"id of {EXISTING}")),
        [10],
    ),
    Row(
        "fetch positions",
        offset_fetch.API,
        [(DESCRIBE, GROUP, "group-*"), (DESCRIBE, TOPIC, EXISTING)],
        {"group_id": "group-{n}", "topics": [{"name": EXISTING, "partition_indexes": [0, 1]}]},
        list(range(1, 8)),
    ),
    Row(
        "fetch positions of groups",
        offset_fetch.API,
        [(DESCRIBE, GROUP, "group-*"), (DESCRIBE, TOPIC, EXISTING)],
        {
            "groups": [
                {"group_id": "group-{n}", "topics": [{"name": EXISTING, "partition_indexes": [0]}]},
                {"group_id": "another", "topics": [{"name": EXISTING, "partition_indexes": [0]}]},
            ]
        },
        [8, 9],
    ),
    Row(
        "fetch positions by id",
        offset_fetch.API,
        [(DESCRIBE, GROUP, "group-*"), (DESCRIBE, TOPIC, EXISTING)],
        {
            "groups": [
                {
                    "group_id": "group-{n}",
                    "topics": [{"topic_id": Its(f"id of {EXISTING}"), "partition_indexes": [0]}],
                }
            ]
        },
        [10],
    ),
    Row(
        "fetch all positions",
        offset_fetch.API,
        [(DESCRIBE, GROUP, "committed"), (DESCRIBE, TOPIC, EXISTING), (DESCRIBE, TOPIC, OTHER)],
        {"groups": [{"group_id": "committed", "topics": None}]},
        [8],
    ),
    Row(
        "delete positions",
        offset_delete.API,
        [(DELETE, GROUP, "committed"), (READ, TOPIC, EXISTING)],
        {
            "group_id": "committed",
            "topics": [{"name": name, "partitions": [{"partition_index": 7}]} for name in (EXISTING, OTHER)],
        },
    ),
    Row(
        "find a coordinator",
        find_coordinator.API,
        [(DESCRIBE, GROUP, "group-*")],
        {"key": "group-{n}", "key_type": 0},
        [0, 1, 2, 3],
    ),
    Row(
        "find coordinators",
        find_coordinator.API,
        [(DESCRIBE, GROUP, "group-*"), (READ, GROUP, "another")],
        {"coordinator_keys": ["group-{n}", "another"], "key_type": 0},
        [4, 5, 6],
    ),
    Row(
        "join",
        join_group.API,
        GROUPS,
        {
            "group_id": "group-{n}",
            "session_timeout_ms": 1,
            "rebalance_timeout_ms": 1,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    Row(
        "sync",
        sync_group.API,
        GROUPS,
        {
            "group_id": "group-{n}",
            "generation_id": 1,
            "member_id": "nobody",
            "protocol_type": "consumer",
            "protocol_name": "range",
        },
    ),
    Row(
        "heartbeat",
        heartbeat.API,
        GROUPS,
        {"group_id": "group-{n}", "generation_id": 1, "member_id": "nobody"},
    ),
    Row(
        "leave",
        leave_group.API,
        GROUPS,
        {"group_id": "group-{n}", "member_id": "nobody", "members": [{"member_id": "nobody"}]},
    ),
    Row(
        "describe groups",
        describe_groups.API,
        [(DESCRIBE, GROUP, "committed"), (DELETE, GROUP, "group-*"), (READ, GROUP, "committed")],
        {"groups": ["committed", "group-{n}", "another"], "include_authorized_operations": True},
    ),
    Row("list groups", list_groups.API, [(DESCRIBE, GROUP, "committed"), on_cluster(DESCRIBE)], {}),
    Row(
        "delete groups",
        delete_groups.API,
        [(DELETE, GROUP, "group-*")],
        {"groups_names": ["group-{n}", "another"]},
    ),
    Row(
        "create topics",
        create_topics.API,
        [(CREATE, TOPIC, "made-*"), on_cluster(CREATE)],
        {
            "topics": [
                {"name": "made-{n}", "num_partitions": 1, "replication_factor": 1},
                {"name": EXISTING, "num_partitions": 1, "replication_factor": 1},
            ],
            "timeout_ms": 5000,
            "validate_only": True,
        },
        [2, 4, 5, 6, 7],
    ),
    Row(
        "delete topics",
        delete_topics.API,
        [(DELETE, TOPIC, "missing-*"), on_cluster(DELETE), (DESCRIBE, TOPIC, "missing-*")],
        {"topics": [{"name": MISSING}], "topic_names": [MISSING], "timeout_ms": 5000},
    ),
    Row(
        "delete topics by id",
        delete_topics.API,
        [(DESCRIBE, TOPIC, EXISTING), (READ, TOPIC, EXISTING)],
        {"topics": [{"topic_id": Its(f"id of {EXISTING}"), "name": None}], "timeout_ms": 5000},
        [6],
    ),
    Row(
        "create partitions",
        create_partitions.API,
        [(ALTER, TOPIC, EXISTING)],
        {
            "topics": [{"name": name, "count": 1, "assignments": None} for name in (EXISTING, OTHER)],
            "timeout_ms": 5000,
            "validate_only": True,
        },
    ),
    Row(
        "delete records",
        delete_records.API,
        [(DELETE, TOPIC, EXISTING)],
        {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}
                for name in (EXISTING, OTHER)
            ],
            "timeout_ms": 5000,
        },
    ),
    Row(
        "describe producers",
        describe_producers.API,
        [(READ, TOPIC, EXISTING)],
        {"topics": [{"name": name, "partition_indexes": [0]} for name in (EXISTING, OTHER)]},
    ),
    Row(
        "describe configuration",
        describe_configs.API,
        [(DESCRIBE_CONFIGS, TOPIC, EXISTING), (ALTER_CONFIGS, TOPIC, OTHER), on_cluster(DESCRIBE_CONFIGS)],
        {
            "resources": [
                {"resource_type": 2, "resource_name": EXISTING, "configuration_keys": ["retention.ms"]},
                {"resource_type": 2, "resource_name": OTHER, "configuration_keys": ["retention.ms"]},
                {"resource_type": 4, "resource_name": "1", "configuration_keys": ["log.retention.bytes"]},
                {"resource_type": 32, "resource_name": "committed", "configuration_keys": []},
            ]
        },
    ),
    Row(
        "alter configuration",
        incremental_alter_configs.API,
        [(ALTER_CONFIGS, TOPIC, EXISTING), on_cluster(ALTER_CONFIGS)],
        {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": key, "config_operation": 0, "value": "5000000"}],
                }
                for kind, name, key in (
                    (2, EXISTING, "retention.ms"),
                    (4, "1", "log.cleaner.backoff.ms"),
                    (32, "committed", "consumer.session.timeout.ms"),
                )
            ],
            "validate_only": True,
        },
    ),
    Row(
        "replace configuration",
        alter_configs.API,
        [(ALTER_CONFIGS, TOPIC, EXISTING)],
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": EXISTING,
                    "configs": [{"name": "retention.ms", "value": "5000000"}],
                }
            ],
            "validate_only": True,
        },
    ),
    Row(
        "reassign",
        alter_partition_reassignments.API,
        [on_cluster(ALTER)],
        {
            "timeout_ms": 5000,
            "topics": [{"name": EXISTING, "partitions": [{"partition_index": 0, "replicas": None}]}],
        },
        but={"error_message": WORDS},
    ),
    Row(
        "list reassignments",
        list_partition_reassignments.API,
        [on_cluster(DESCRIBE)],
        {"timeout_ms": 5000, "topics": None},
        but={"error_message": WORDS},
    ),
    Row(
        "elect leaders",
        elect_leaders.API,
        [on_cluster(ALTER)],
        {
            "election_type": 0,
            "topic_partitions": [{"topic": EXISTING, "partitions": [0]}],
            "timeout_ms": 5000,
        },
        but={"error_message": WORDS},
    ),
    Row(
        "describe log directories",
        describe_log_dirs.API,
        [on_cluster(DESCRIBE)],
        {"topics": [{"topic": "no-such-topic", "partitions": [0]}]},
    ),
    Row(
        "an idempotent producer",
        init_producer_id.API,
        [on_cluster(IDEMPOTENT_WRITE), (WRITE, TOPIC, "any-*"), (WRITE, TOPIC, EXISTING)],
        {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
        list(range(3, 6)),
    ),
    Row(
        "a transactional producer",
        init_producer_id.API,
        [(DESCRIBE, TRANSACTIONAL_ID, "tx-*"), on_cluster(IDEMPOTENT_WRITE), (WRITE, TOPIC, EXISTING)],
        {
            "transactional_id": "tx-{n}",
            "transaction_timeout_ms": 1000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    ),
    Row(
        "produce in a transaction",
        produce.API,
        [(WRITE, TOPIC, EXISTING), (DESCRIBE, TRANSACTIONAL_ID, "tx-*")],
        _produced_in_a_transaction(),
        [3, 9, 12],
    ),
    Row(
        "find the coordinator of a transaction",
        find_coordinator.API,
        [(DESCRIBE, TRANSACTIONAL_ID, "tx-*")],
        {"key": "tx-{n}", "coordinator_keys": ["tx-{n}"], "key_type": 1},
        [1, 3, 4, 6],
        but={"error_message": WORDS},
    ),
    Row(
        "add partitions to a transaction",
        add_partitions_to_txn.API,
        [(WRITE, TRANSACTIONAL_ID, "tx-*"), (WRITE, TOPIC, EXISTING)],
        {**OF_NOBODY, "topics": [{"name": EXISTING, "partitions": [0]}]},
        [0, 2, 3],
    ),
    Row(
        "add partitions to transactions, as a broker",
        add_partitions_to_txn.API,
        [on_cluster(CLUSTER_ACTION)],
        {"transactions": [{**OF_NOBODY, "topics": [{"name": EXISTING, "partitions": [0]}]}]},
        [4, 5],
    ),
    Row(
        "add offsets to a transaction",
        add_offsets_to_txn.API,
        [(WRITE, TRANSACTIONAL_ID, "tx-*"), (READ, GROUP, "group-*")],
        {**OF_NOBODY, "group_id": "group-{n}"},
    ),
    Row(
        "end a transaction",
        end_txn.API,
        [(WRITE, TRANSACTIONAL_ID, "tx-*")],
        {**OF_NOBODY, "committed": True},
    ),
    Row(
        "commit offsets in a transaction",
        txn_offset_commit.API,
        [(WRITE, TRANSACTIONAL_ID, "tx-*"), (READ, GROUP, "group-*"), (READ, TOPIC, EXISTING)],
        {
            **OF_NOBODY,
            "group_id": "group-{n}",
            "topics": [
                {
                    "name": EXISTING,
                    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
                }
            ],
        },
    ),
    Row(
        "end transactions in logs",
        write_txn_markers.API,
        [on_cluster(ALTER), on_cluster(CLUSTER_ACTION)],
        {"markers": []},
    ),
    Row(
        "describe transactions",
        describe_transactions.API,
        [(DESCRIBE, TRANSACTIONAL_ID, "tx-*"), (DESCRIBE, TOPIC, EXISTING)],
        {"transactional_ids": ["tx-{n}"]},
    ),
    Row("list transactions", list_transactions.API, [(DESCRIBE, TRANSACTIONAL_ID, "tx-*")], {}),
    Row(
        "a member of the newer group protocol",
        consumer_group_heartbeat.API,
        [(DESCRIBE, GROUP, "group-*"), (DESCRIBE, TOPIC, EXISTING)],
        {"group_id": "group-{n}", "member_id": "nobody", "subscribed_topic_names": [EXISTING]},
    ),
    Row(
        "describe the cluster",
        describe_cluster.API,
        [on_cluster(DESCRIBE), on_cluster(ALTER)],
        {"include_cluster_authorized_operations": True},
    ),
    Row(
        "list configured resources",
        list_config_resources.API,
        [on_cluster(DESCRIBE_CONFIGS)],
        {"resource_types": [4]},
        [1],
    ),
    Row(
        "describe quotas",
        describe_client_quotas.API,
        [on_cluster(DESCRIBE_CONFIGS)],
        {"components": [{"entity_type": "user", "match_type": 0, "match": "nobody"}]},
        but={"error_message": WORDS},
    ),
    Row(
        "alter quotas",
        alter_client_quotas.API,
        [on_cluster(ALTER_CONFIGS)],
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 5.0}],
                }
            ],
            "validate_only": True,
        },
    ),
    Row(
        "alter SCRAM users",
        alter_user_scram_credentials.API,
        [on_cluster(ALTER)],
        {
            "deletions": [{"name": "nobody", "mechanism": 1}],
            "upsertions": [
                {
                    "name": "",
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": b"salt",
                    "salted_password": bytes(32),
                }
            ],
        },
        but={"error_message": WORDS},
    ),
    Row(
        "describe SCRAM users",
        describe_user_scram_credentials.API,
        [on_cluster(DESCRIBE)],
        {"users": [{"name": "nobody"}]},
        but={"error_message": WORDS, "results": "Kafka repeats the error for each user, without a name."},
    ),
    Row(
        "describe access rules",
        describe_acls.API,
        [on_cluster(DESCRIBE)],
        {
            "resource_type_filter": TOPIC,
            "resource_name_filter": "no-such",
            "pattern_type_filter": 3,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        },
        but={"error_message": WORDS},
    ),
    Row(
        "create access rules",
        create_acls.API,
        [on_cluster(ALTER)],
        {"creations": [_rules("ruled"), {**_rules(""), "resource_name": ""}]},
        but={"error_message": WORDS},
    ),
    Row(
        "delete access rules",
        delete_acls.API,
        [on_cluster(ALTER)],
        {
            "filters": [
                {
                    "resource_type_filter": TOPIC,
                    "resource_name_filter": "no-such",
                    "pattern_type_filter": 3,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
        but={"error_message": WORDS},
    ),
]
