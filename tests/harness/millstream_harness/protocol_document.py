"""Writes docs/protocol.md: which APIs and versions the broker answers, beside Apache Kafka 4.1.

    make docs/protocol.md

The first table is made of the broker's registered handlers, as ApiVersions itself is. Whatever Kafka has and we have
not must be explained here: ``page`` raises for a gap without a reason, and for a reason without a gap.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final

from millstream_broker.api import load
from millstream_broker.handlers import REGISTERED
from millstream_kafka.protocol.api import Api

from .protocol import APIS

KAFKA: Final[dict[str, tuple[int, int, int]]] = {
    "Produce": (0, 0, 13),
    "Fetch": (1, 4, 18),
    "ListOffsets": (2, 1, 10),
    "Metadata": (3, 0, 13),
    "OffsetCommit": (8, 2, 9),
    "OffsetFetch": (9, 1, 9),
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
    "WriteTxnMarkers": (27, 1, 1),
    "TxnOffsetCommit": (28, 0, 5),
    "DescribeAcls": (29, 1, 3),
    "CreateAcls": (30, 1, 3),
    "DeleteAcls": (31, 1, 3),
    "DescribeConfigs": (32, 1, 4),
    "AlterConfigs": (33, 0, 2),
    "AlterReplicaLogDirs": (34, 1, 2),
    "DescribeLogDirs": (35, 1, 4),
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
    "ShareFetch": (78, 1, 1),
    "ShareAcknowledge": (79, 1, 1),
    "AddRaftVoter": (80, 0, 0),
    "RemoveRaftVoter": (81, 0, 0),
    "InitializeShareGroupState": (83, 0, 0),
    "ReadShareGroupState": (84, 0, 0),
    "WriteShareGroupState": (85, 0, 0),
    "DeleteShareGroupState": (86, 0, 0),
    "ReadShareGroupStateSummary": (87, 0, 0),
    "DescribeShareGroupOffsets": (90, 0, 0),
    "AlterShareGroupOffsets": (91, 0, 0),
    "DeleteShareGroupOffsets": (92, 0, 0),
}
"""What Apache Kafka 4.1.1 answers to ApiVersions: name to key, lowest and highest version."""

ZOOKEEPER: Final[dict[str, int]] = {"StopReplica": 5, "UpdateMetadata": 6, "ControlledShutdown": 7}
"""What brokers say to each other in a cluster on ZooKeeper, which Apache Kafka had until 3.9: name to key."""

NEWER: Final[dict[str, str]] = {
    "Produce": "v12 adds partitions to a transaction by writing to them (KIP-890), v13 names topics by id (KIP-516)",
    "Fetch": "v13 names topics by id, which clients do without at v12 (KIP-516); v14 to v18 are for tiered storage, "
    "KRaft's replicas and hints of new leaders (KIP-405, KIP-903, KIP-951, KIP-853, KIP-1166)",
    "ListOffsets": "v8 and v9 ask for offsets of tiered storage (KIP-405, KIP-1005), v10 adds a timeout for them",
    "Metadata": "v13 can tell a client to begin again from its bootstrap servers (KIP-1102)",
    "OffsetCommit": "v9 is v8 for members of the newer group protocol (KIP-848)",
    "OffsetFetch": "v9 is v8 for members of the newer group protocol (KIP-848)",
    "FindCoordinator": "v5 is v4 with an error of KIP-890, v6 finds coordinators of share groups (KIP-932)",
    "InitProducerId": "v5 is v4 with an error of KIP-890",
    "AlterPartitionReassignments": "v1 can forbid a change of the replication factor (KIP-860)",
    "DescribeCluster": "v2 lists fenced brokers too (KIP-1073), which KRaft has",
}
"""Versions of Kafka's that are left out, of APIs that are here."""

ABSENT: Final[list[tuple[str, list[str]]]] = [
    (
        "Transactions come with the transaction coordinator. Until then FindCoordinator and InitProducerId answer a "
        "transactional id with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which ends every client's attempt at once, and "
        "idempotent producers work.",
        ["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "TxnOffsetCommit"],
    ),
    (
        "What an administrator asks of running transactions comes with transactions; ListTransactions lists none.",
        ["DescribeTransactions"],
    ),
    ("Partitions do not move between the log folders of a broker.", ["AlterReplicaLogDirs"]),
    (
        "Delegation tokens: nothing here needs them.",
        [
            "CreateDelegationToken",
            "RenewDelegationToken",
            "ExpireDelegationToken",
            "DescribeDelegationToken",
        ],
    ),
    ("Quotas come with security; DescribeClientQuotas finds none.", ["AlterClientQuotas"]),
    (
        "SCRAM credentials come with security; DescribeUserScramCredentials finds none.",
        ["AlterUserScramCredentials"],
    ),
    (
        "KRaft's quorum and its features: clusters are coordinated by ZooKeeper.",
        ["DescribeQuorum", "UpdateFeatures", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"],
    ),
    (
        "The newer group protocol, in which the broker assigns (KIP-848); every client has the classic one. "
        "ConsumerGroupHeartbeat says so: a client that waits for it would otherwise wait endlessly.",
        ["ConsumerGroupDescribe"],
    ),
    (
        "Share groups (KIP-932), a queue beside the log.",
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
    (
        "Clients use Metadata where this is not there.",
        ["DescribeTopicPartitions"],
    ),
]
"""APIs of Kafka's that are left out, by reason."""

SOURCE: Final = "../broker-image/src"


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


def summary(api: Api[Any, Any]) -> str:
    """What the API is for, from the first line of its module."""
    text = inspect.getdoc(sys.modules[api.request.__module__]) or ""
    return text.split("\n")[0].split(": ", 1)[1].rstrip(".")


def check(served: dict[int, Api[Any, Any]]) -> None:
    """Every gap has its reason, and every reason its gap."""
    names = {api.name for api in served.values()}
    absent = [name for _, group in ABSENT for name in group if name not in names]
    missing = [name for name in KAFKA if name not in names]
    if sorted(absent) != sorted(missing):
        raise ValueError(f"ABSENT explains {sorted(absent)}, absent are {sorted(missing)}")
    clients = [api for api in APIS.values() if api.name not in ZOOKEEPER]
    older = [api.name for api in clients if KAFKA[api.name][2] > api.versions[1]]
    if sorted(older) != sorted(NEWER):
        raise ValueError(f"NEWER explains {sorted(NEWER)}, older than Kafka's are {sorted(older)}")


DIFFERENT: Final[list[tuple[str, str]]] = [
    ("Metadata", "A topic that it creates is in the answer; Kafka says UNKNOWN_TOPIC_OR_PARTITION first."),
    ("Fetch", "Batches are never cut: an answer ends with a whole one."),
    (
        "Produce",
        "Several batches for a partition in one request are stored; Kafka takes one. Bytes behind a batch, attributes "
        "without a meaning and a producer id without an epoch are refused, which Kafka stores or drops. Compressed "
        "records are not decompressed to be counted, nor their largest timestamp checked, while nothing asks for it.",
    ),
    (
        "Produce",
        "Where records are refused one by one, or a sequence is, `log_start_offset` is -1; a request with a "
        "transactional id is refused whatever it carries.",
    ),
    (
        "Produce",
        "Of a cluster, a follower acknowledges what its leader has safe of a batch that it is asked for again, and who "
        "waits when a leader steps down is answered by what becomes of the records; Kafka says NOT_LEADER_OR_FOLLOWER.",
    ),
    (
        "Produce",
        "An idempotent batch that follows one which was refused for the moment (too few replicas, a full disk) is "
        "refused with the same error until that one comes again; Kafka says OUT_OF_ORDER_SEQUENCE_NUMBER, or takes it "
        "from a producer that it does not know.",
    ),
    ("CreateTopics, DescribeConfigs", "Topics have no keys of tiered storage (`remote.…`, `local.…`)."),
    (
        "CreateTopics, AlterConfigs",
        "Segments may be as small as 14 bytes, as in Kafka 3; Kafka 4 wants a MiB. An unknown topic key may be "
        "answered with the key that was meant.",
    ),
    (
        "AlterConfigs, IncrementalAlterConfigs",
        "An unknown broker key is refused; Kafka keeps it for plugins. Only topics and brokers have configuration: "
        "that of loggers, client metrics and groups is empty. A resource that AlterConfigs names twice is set twice; "
        "Kafka gives no answer. Settings are checked together with everything they apply to: a change that contradicts "
        "another setting is refused with INVALID_CONFIG, which names the topic.",
    ),
    (
        "DescribeConfigs",
        "A broker has the keys that mean something here; what sizes pools of threads cannot be changed while it runs. "
        "`socket.listen.backlog.size` and `queued.max.request.bytes` have defaults of their own; documentation is "
        "in words of our own. A resource that is named more than ten times is refused.",
    ),
    ("FindCoordinator", "Only groups have coordinators."),
    (
        "Fetch, ListOffsets",
        "Without authorisation Kafka believes any `replica_id`. Here it counts on connections that have proven to be "
        "that broker's: others get TOPIC_AUTHORIZATION_FAILED from Fetch, as from Kafka where the "
        "client lacks ClusterAction, and a consumer's answer from ListOffsets.",
    ),
    (
        "ElectLeaders, AlterPartitionReassignments",
        "A broker without ZooKeeper answers an election of everything with nothing, where Kafka lists the topics.",
    ),
    (
        "all",
        "An error often has a message where Kafka has none, and UNKNOWN_SERVER_ERROR is for broken brokers.",
    ),
]
"""Answers to the same request that are not Kafka's: what tests/compat/beside finds and allows."""


def page(served: dict[int, Api[Any, Any]]) -> str:
    """The whole of docs/protocol.md for a broker that has handlers for ``served``."""
    check(served)
    lines = [
        "# Kafka's protocol in Millstream",
        "",
        "Written by `make docs/protocol.md` from the broker's registered handlers; a test",
        "holds it to them. The versions beside ours are what Apache Kafka 4.1.1 answers to ApiVersions.",
        "",
        "How a message is laid out, version by version, stands in [`protocol/`]"
        f"({SOURCE}/millstream_kafka/protocol), what the broker does with it in [`api/`]"
        f"({SOURCE}/millstream_broker/api): one module an API.",
        "",
        f"## What is there: {len(served)} APIs",
        "",
        "| Key | API | Millstream | Kafka | What it does |",
        "|---:|---|---|---|---|",
    ]
    for key, api in sorted(served.items()):
        module = api.request.__module__.rsplit(".", 1)[1]
        ours = versions(*api.versions)
        theirs = "–" if api.name in ZOOKEEPER else versions(*KAFKA[api.name][1:])
        link = f"[{api.name}]({SOURCE}/millstream_kafka/protocol/{module}.py)"
        lines.append(f"| {key} | {link} | {ours} | {theirs} | {summary(api)} |")
    names = {api.name for api in served.values()}
    lines += [
        "",
        "Produce is advertised from version 0 and served from 3, as Kafka 4 does it: librdkafka before 2.11.1 stops",
        "compressing otherwise. Older versions than Kafka 4's are there where they cost nothing. StopReplica,",
        "UpdateMetadata and ControlledShutdown are between brokers, as Kafka 3.9 has them on ZooKeeper; a connection",
        "that has not proven to be a broker's ([how](clusters.md)) gets CLUSTER_AUTHORIZATION_FAILED.",
        "",
        "## What is left out",
        "",
        "Newer versions of what is there; clients take the highest that both sides have:",
        "",
        "| API | Versions | Why |",
        "|---|---|---|",
    ]
    for api in sorted(served.values(), key=lambda api: api.key):
        if api.name in NEWER:
            gap = versions(api.versions[1] + 1, KAFKA[api.name][2])
            lines.append(f"| {api.name} | {gap} | {NEWER[api.name]} |")
    lines += ["", "APIs that Kafka 4.1 has and Millstream has not:", "", "| APIs | Why |", "|---|---|"]
    for reason, group in ABSENT:
        if absent := [name for name in group if name not in names]:
            lines.append(f"| {', '.join(absent)} | {reason} |")
    lines += [
        "",
        "## What is answered otherwise",
        "",
        "[Tests](../tests/compat/beside) send the same requests, good and bad, to Apache Kafka 4.1.1 and compare the",
        "answers field by field. What differs and is meant to:",
        "",
        "| API | How |",
        "|---|---|",
        *(f"| {name} | {how} |" for name, how in DIFFERENT),
        "",
        "Nothing is claimed as a feature in ApiVersions: without `transaction.version` clients use classic",
        "transactions. Unknown tagged fields are ignored everywhere (KIP-482).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    load()
    sys.stdout.write(page({key: found.api for key, found in REGISTERED.items()}))


if __name__ == "__main__":
    main()
