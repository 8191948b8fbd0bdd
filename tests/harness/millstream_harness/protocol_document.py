"""Writes docs/protocol.md: the APIs and versions that the broker serves, beside Apache Kafka 4.3.

    make docs/protocol.md

The first table is built from the broker's registered handlers, as ApiVersions itself is. Every API of Kafka's that is
missing must be explained here, and the others are served up to Kafka's newest version: ``page`` raises for a gap
without a reason, and for a reason without a gap.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final

from millstream_broker.api import load
from millstream_broker.network.handlers import REGISTERED
from millstream_kafka.protocol.api import Api

KAFKA: Final[dict[str, tuple[int, int, int]]] = {
    "Produce": (0, 0, 13),
    "Fetch": (1, 4, 18),
    "ListOffsets": (2, 1, 11),
    "Metadata": (3, 0, 13),
    "OffsetCommit": (8, 2, 10),
    "OffsetFetch": (9, 1, 10),
    "FindCoordinator": (10, 0, 6),
    "JoinGroup": (11, 0, 9),
    "Heartbeat": (12, 0, 4),
    "LeaveGroup": (13, 0, 5),
    "SyncGroup": (14, 0, 5),
    "DescribeGroups": (15, 0, 6),
    "ListGroups": (16, 0, 5),
    "SaslHandshake": (17, 0, 1),
    "ApiVersions": (18, 0, 4),
    "CreateTopics": (19, 2, 7),
    "DeleteTopics": (20, 1, 6),
    "DeleteRecords": (21, 0, 2),
    "InitProducerId": (22, 0, 5),
    "OffsetForLeaderEpoch": (23, 2, 4),
    "AddPartitionsToTxn": (24, 0, 5),
    "AddOffsetsToTxn": (25, 0, 4),
    "EndTxn": (26, 0, 5),
    "WriteTxnMarkers": (27, 1, 2),
    "TxnOffsetCommit": (28, 0, 5),
    "DescribeAcls": (29, 1, 3),
    "CreateAcls": (30, 1, 3),
    "DeleteAcls": (31, 1, 3),
    "DescribeConfigs": (32, 1, 4),
    "AlterConfigs": (33, 0, 2),
    "AlterReplicaLogDirs": (34, 1, 2),
    "DescribeLogDirs": (35, 1, 5),
    "SaslAuthenticate": (36, 0, 2),
    "CreatePartitions": (37, 0, 3),
    "CreateDelegationToken": (38, 1, 3),
    "RenewDelegationToken": (39, 1, 2),
    "ExpireDelegationToken": (40, 1, 2),
    "DescribeDelegationToken": (41, 1, 3),
    "DeleteGroups": (42, 0, 2),
    "ElectLeaders": (43, 0, 2),
    "IncrementalAlterConfigs": (44, 0, 1),
    "AlterPartitionReassignments": (45, 0, 1),
    "ListPartitionReassignments": (46, 0, 0),
    "OffsetDelete": (47, 0, 0),
    "DescribeClientQuotas": (48, 0, 1),
    "AlterClientQuotas": (49, 0, 1),
    "DescribeUserScramCredentials": (50, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0),
    "DescribeQuorum": (55, 0, 2),
    "UpdateFeatures": (57, 0, 2),
    "DescribeCluster": (60, 0, 2),
    "DescribeProducers": (61, 0, 0),
    "UnregisterBroker": (64, 0, 0),
    "DescribeTransactions": (65, 0, 0),
    "ListTransactions": (66, 0, 2),
    "ConsumerGroupHeartbeat": (68, 0, 1),
    "ConsumerGroupDescribe": (69, 0, 1),
    "ListConfigResources": (74, 0, 1),
    "DescribeTopicPartitions": (75, 0, 0),
    "ShareGroupHeartbeat": (76, 1, 1),
    "ShareGroupDescribe": (77, 1, 1),
    "ShareFetch": (78, 1, 2),
    "ShareAcknowledge": (79, 1, 2),
    "AddRaftVoter": (80, 0, 1),
    "RemoveRaftVoter": (81, 0, 0),
    "InitializeShareGroupState": (83, 0, 0),
    "ReadShareGroupState": (84, 0, 0),
    "WriteShareGroupState": (85, 0, 1),
    "DeleteShareGroupState": (86, 0, 0),
    "ReadShareGroupStateSummary": (87, 0, 1),
    "StreamsGroupHeartbeat": (88, 0, 0),
    "StreamsGroupDescribe": (89, 0, 0),
    "DescribeShareGroupOffsets": (90, 0, 1),
    "AlterShareGroupOffsets": (91, 0, 0),
    "DeleteShareGroupOffsets": (92, 0, 0),
}
"""Response of Apache Kafka 4.3.1 to ApiVersions: name to key, lowest and highest version."""

ZOOKEEPER: Final[dict[str, int]] = {"StopReplica": 5, "UpdateMetadata": 6, "ControlledShutdown": 7}
"""APIs between brokers of a cluster on ZooKeeper, as Apache Kafka had them until 3.9: name to key."""

OWN: Final[dict[str, int]] = {
    "MirrorAppend": 31000,
    "MirrorTruncate": 31001,
    "DescribeStrays": 31002,
    "RemoveStrays": 31003,
}
"""Millstream's own APIs, far from Kafka's keys: name to key. Clients ignore unknown keys."""

ABSENT: Final[list[tuple[str, list[str]]]] = [
    ("Partitions cannot move between log directories of a broker.", ["AlterReplicaLogDirs"]),
    (
        "Delegation tokens need SASL, which brokers do not have.",
        [
            "CreateDelegationToken",
            "RenewDelegationToken",
            "ExpireDelegationToken",
            "DescribeDelegationToken",
        ],
    ),
    (
        "These belong to KRaft's quorum; ZooKeeper coordinates clusters here.",
        ["DescribeQuorum", "UpdateFeatures", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"],
    ),
    (
        "Brokers do not have the newer group protocol (KIP-848); every client also has the classic one. "
        "ConsumerGroupHeartbeat responds with that message, because a client would otherwise wait forever.",
        ["ConsumerGroupDescribe"],
    ),
    (
        "Brokers do not have the group protocol of Streams (KIP-1071); Streams uses the classic one by default.",
        ["StreamsGroupHeartbeat", "StreamsGroupDescribe"],
    ),
    (
        "There are no share groups (KIP-932).",
        [
            "ShareGroupHeartbeat",
            "ShareGroupDescribe",
            "ShareFetch",
            "ShareAcknowledge",
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "WriteShareGroupState",
            "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
            "DescribeShareGroupOffsets",
            "AlterShareGroupOffsets",
            "DeleteShareGroupOffsets",
        ],
    ),
]
"""Missing APIs by reason."""

BROKER: Final = "../broker-image/src/millstream_broker"
PROTOCOL: Final = "../kafka-protocol/src/millstream_kafka/protocol"


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


def summary(api: Api[Any, Any]) -> str:
    """Purpose of the API, from the first line of its module."""
    text = inspect.getdoc(sys.modules[api.request.__module__]) or ""
    return text.split("\n")[0].split(": ", 1)[1].rstrip(".")


def check(served: dict[int, Api[Any, Any]]) -> None:
    """Every gap has its reason, and every reason its gap."""
    names = {api.name for api in served.values()}
    absent = [name for _, group in ABSENT for name in group if name not in names]
    missing = [name for name in KAFKA if name not in names]
    if sorted(absent) != sorted(missing):
        raise ValueError(f"ABSENT explains {sorted(absent)}, absent are {sorted(missing)}")
    older = [
        api.name for api in served.values() if api.name in KAFKA and KAFKA[api.name][2] > api.versions[1]
    ]
    if older:
        raise ValueError(f"versions that Kafka serves are missing: {older}")


DIFFERENT: Final[list[tuple[str, str]]] = [
    (
        "Metadata",
        "The response includes a topic that the request creates; Kafka responds with UNKNOWN_TOPIC_OR_PARTITION first.",
    ),
    (
        "Fetch",
        "A response ends with a whole batch; Kafka may cut the last one. `node_endpoints` is empty: clients know the "
        "address of a new leader from Metadata.",
    ),
    (
        "Produce",
        "A request may have several batches for a partition; Kafka accepts one. Bytes after a batch, unknown "
        "attributes and a producer id without an epoch are refused; Kafka stores or drops them. Compressed records are "
        "decompressed only if a setting requires it, so their number and largest timestamp are not checked otherwise.",
    ),
    (
        "Produce",
        "If single records or a sequence are refused, `log_start_offset` is -1.",
    ),
    (
        "Produce",
        "A follower acknowledges a repeated batch that is below its high watermark. If a leader steps down, waiting "
        "producers get a response by the fate of their records. Kafka responds with NOT_LEADER_OR_FOLLOWER to both.",
    ),
    (
        "Produce",
        "After a temporary refusal of an idempotent batch (too few replicas, a full disk), later batches get the same "
        "error until that batch is repeated. Kafka responds with OUT_OF_ORDER_SEQUENCE_NUMBER, or accepts them from an "
        "unknown producer.",
    ),
    (
        "CreateTopics, DescribeConfigs",
        "Topics have no keys of tiered storage (`remote.…`, `local.…`), and four of Millstream's own, "
        "`millstream.mirror.source`, `millstream.mirror.rejoined`, `millstream.mirror.promoted` and "
        "`millstream.topic.owner`.",
    ),
    (
        "Produce, DeleteRecords",
        "A topic that is a mirror's read-only replica refuses both with POLICY_VIOLATION, and AlterConfigs that "
        "would make it writable, or forget `millstream.mirror.rejoined` or `millstream.mirror.promoted`, by omission "
        "with INVALID_CONFIG.",
    ),
    (
        "InitProducerId",
        "Producer ids come from random blocks above 2^32, and differ between clusters, restored ones too.",
    ),
    (
        "CreatePartitions, Metadata",
        "The first leader epoch of a partition that is added to a topic is random, below 2^20; in Kafka it is 0. If a "
        "restored ZooKeeper forgot an earlier partition of that number, the epochs distinguish the records of the two.",
    ),
    (
        "CreateTopics, AlterConfigs",
        "Segments may be as small as 14 bytes, as in Kafka 3; Kafka 4 requires 1 MiB. The error for an unknown "
        "topic key may suggest the right one.",
    ),
    (
        "AlterConfigs, IncrementalAlterConfigs",
        "An unknown broker key is refused; Kafka keeps it for plugins. Only topics and brokers have configuration: "
        "that of loggers, client metrics and groups is empty. A resource that AlterConfigs names twice is set twice; "
        "Kafka sends no response. A change that contradicts another setting, of the broker or a topic, is refused with "
        "INVALID_CONFIG and the topic's name.",
    ),
    (
        "DescribeConfigs",
        "A broker lists only keys that have an effect here. Sizes of thread pools are not dynamic. "
        "`socket.listen.backlog.size` and `queued.max.request.bytes` have other defaults, and the documentation of "
        "keys is Millstream's own. A resource named more than ten times is refused.",
    ),
    ("FindCoordinator", "Only groups have coordinators."),
    (
        "ListOffsets",
        "A look-up by time that reads a compressed batch with a record larger than `max.decompressed.message.bytes` "
        "gets INVALID_RECORD. Kafka finds the records before the larger one.",
    ),
    (
        "Fetch, ListOffsets",
        "Without ACLs Kafka accepts any `replica_id`. Millstream accepts one only on an authenticated connection of "
        "that broker. Others get TOPIC_AUTHORIZATION_FAILED from Fetch, as from Kafka without the right ClusterAction, "
        "and a consumer's response from ListOffsets.",
    ),
    (
        "ElectLeaders, AlterPartitionReassignments",
        "A broker without ZooKeeper responds to an election of all partitions with an empty list; Kafka lists "
        "the topics.",
    ),
    (
        "all",
        "Errors often have a message where Kafka has none. UNKNOWN_SERVER_ERROR means a bug in the broker.",
    ),
]
"""Responses that differ from Kafka's for the same request: the differences that tests/compat/beside allows."""


def page(served: dict[int, Api[Any, Any]]) -> str:
    """The whole of docs/protocol.md for a broker that has handlers for ``served``."""
    check(served)
    lines = [
        "# Kafka's protocol in Millstream",
        "",
        "Written by `make docs/protocol.md` from the broker's registered handlers; a test",
        "holds it to them. The column Kafka shows the response of Apache Kafka 4.3.1 to ApiVersions.",
        "",
        "Each API has two modules: the format of its messages by version in [`protocol/`]"
        f"({PROTOCOL}), the broker's handler in [`api/`]({BROKER}/api).",
        "",
        f"## Served: {len(served)} APIs",
        "",
        "| Key | API | Millstream | Kafka | What it does |",
        "|---:|---|---|---|---|",
    ]
    for key, api in sorted(served.items()):
        module = api.request.__module__.rsplit(".", 1)[1]
        ours = versions(*api.versions)
        theirs = "–" if api.name in ZOOKEEPER or api.name in OWN else versions(*KAFKA[api.name][1:])
        link = f"[{api.name}]({PROTOCOL}/{module}.py)"
        lines.append(f"| {key} | {link} | {ours} | {theirs} | {summary(api)} |")
    names = {api.name for api in served.values()}
    lines += [
        "",
        "Produce is advertised from version 0 and served from 3, as in Kafka 4, because librdkafka before 2.11.1 stops",
        "compressing otherwise. Some versions older than Kafka 4's are served because they cost nothing. StopReplica,",
        "UpdateMetadata and ControlledShutdown are requests between brokers, as in Kafka 3.9 with ZooKeeper. On a",
        "connection that is not [authenticated as a broker's](clusters.md#broker-authentication) they fail with",
        "CLUSTER_AUTHORIZATION_FAILED. [Identity mirrors](identity-mirrors.md) write by MirrorAppend and",
        "MirrorTruncate, `millstream stray` reads and removes [strays](clusters.md#strays) by DescribeStrays and",
        "RemoveStrays: APIs of Millstream's own.",
        "",
        "## Missing APIs",
        "",
        "APIs of Kafka 4.3 that Millstream does not serve:",
        "",
        "| APIs | Why |",
        "|---|---|",
    ]
    for reason, group in ABSENT:
        if absent := [name for name in group if name not in names]:
            lines.append(f"| {', '.join(absent)} | {reason} |")
    lines += [
        "",
        "## Different responses",
        "",
        "[Tests](../tests/compat/beside) send the same valid and invalid requests to Apache Kafka 4.3.1 and compare",
        "the responses field by field. These differences are intended:",
        "",
        "| API | How |",
        "|---|---|",
        *(f"| {name} | {how} |" for name, how in DIFFERENT),
        "",
        "ApiVersions lists one feature, `transaction.version`, always at its highest level, 2. Unknown tagged fields",
        "are ignored everywhere (KIP-482).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    load()
    sys.stdout.write(page({key: found.api for key, found in REGISTERED.items()}))


if __name__ == "__main__":
    main()
