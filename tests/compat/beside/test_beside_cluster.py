"""Requests about the cluster and its brokers, and frames without a response."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from millstream_harness.beside import CLOSED, Beside, raw_request
from millstream_kafka.protocol import (
    alter_partition_reassignments,
    api_versions,
    create_acls,
    delete_acls,
    describe_acls,
    describe_cluster,
    describe_log_dirs,
    elect_leaders,
    list_partition_reassignments,
    sasl_authenticate,
    sasl_handshake,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

NOBODY = UUID(int=1)


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    beside.create("in-folders", partitions=2)


def test_api_versions(beside: Beside) -> None:
    """The lists differ, as docs/protocol.md explains; everything else is the same."""
    for version in beside.versions(api_versions.API):
        for name, software in (("a", "1"), ("", ""), ("a b", "1"), ("-", "1")):
            (answers,) = beside.ask(
                api_versions.API, [version], client_software_name=name, client_software_version=software
            )
            assert answers.ours["error_code"] == answers.kafka["error_code"], (version, name)
            assert set(answers.ours) == set(answers.kafka)
            assert bool(answers.ours["api_keys"]) == bool(answers.kafka["api_keys"])


def test_api_versions_of_an_unknown_version(beside: Beside) -> None:
    for version in (6, 99, 32767):
        for body in (b"\0", b"\0\0\0\0"):
            ours, kafka = (peer.frame(raw_request(18, version, body)) for peer in beside.peers)
            assert ours[:6] == kafka[:6] == struct.pack(">ih", 7, 35)
            for answer in (ours, kafka):
                api_versions.API.decode_response(0, answer, 4)


@pytest.mark.parametrize(
    "frame",
    [
        raw_request(999, 0),
        raw_request(-1, 0),
        raw_request(3, 99),
        raw_request(3, -1),
        raw_request(0, 2),
        raw_request(1, 3),
        raw_request(4, 0),
        raw_request(7, 0),
        raw_request(3, 1, b"\0\0\0\x05"),
        raw_request(3, 1, b"\x7f\xff\xff\xff"),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 2_000_001),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_frames_that_close_the_connection(beside: Beside, frame: bytes) -> None:
    assert [peer.frame(frame) for peer in beside.peers] == [CLOSED, CLOSED]


def test_bytes_behind_a_request(beside: Beside) -> None:
    ours, kafka = (peer.frame(raw_request(3, 1, b"\0\0\0\0behind")) for peer in beside.peers)
    assert (ours == CLOSED) == (kafka == CLOSED)


def test_clusters(beside: Beside) -> None:
    for operations in (False, True):
        for endpoint in (1, 2, 0, 3, -1):
            beside.same(
                describe_cluster.API,
                include_cluster_authorized_operations=operations,
                endpoint_type=endpoint,
            )


def test_folders_of_logs(beside: Beside) -> None:
    for topics in (
        [{"topic": "in-folders", "partitions": [0, 1]}],
        [{"topic": "in-folders", "partitions": [0, 7, -1]}, {"topic": "no-such", "partitions": [0]}],
        [{"topic": "in-folders", "partitions": []}],
        [{"topic": "in-folders", "partitions": [0]}, {"topic": "in-folders", "partitions": [1]}],
        [],
    ):
        beside.same(describe_log_dirs.API, topics=topics)


def test_elections(beside: Beside) -> None:
    for kind in (0, 1):
        for asked in (
            [{"topic": "in-folders", "partitions": [0]}],
            [{"topic": "in-folders", "partitions": [0, 1, 2, -1]}],
            [{"topic": "in-folders", "partitions": []}],
            [{"topic": "no-such", "partitions": [0]}],
            [{"topic": "", "partitions": [0]}],
            [{"topic": "in-folders", "partitions": [0]}, {"topic": "no-such", "partitions": [0, 5]}],
            [],
        ):
            beside.same(elect_leaders.API, election_type=kind, topic_partitions=asked, timeout_ms=10_000)
    for kind in (2, -1):
        asked = [{"topic": "in-folders", "partitions": [0]}]
        beside.same(elect_leaders.API, [1, 2], election_type=kind, topic_partitions=asked, timeout_ms=10_000)


@pytest.mark.parametrize(
    ("name", "index", "replicas"),
    [
        ("in-folders", 0, [1]),
        ("in-folders", 0, None),
        ("in-folders", 0, []),
        ("in-folders", 0, [1, 1]),
        ("in-folders", 0, [2]),
        ("in-folders", 0, [1, 2]),
        ("in-folders", 0, [-1]),
        ("in-folders", 0, [2, 2]),
        ("in-folders", 9, [1]),
        ("in-folders", -1, [1]),
        ("in-folders", 9, None),
        ("no-such", 0, [1]),
        ("no-such", 0, None),
        ("no-such", 0, []),
        ("", 0, [1]),
    ],
)
def test_reassignments(beside: Beside, name: str, index: int, replicas: list[int] | None) -> None:
    asked = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
    beside.same(alter_partition_reassignments.API, topics=asked, timeout_ms=10_000)


def test_reassignments_under_way(beside: Beside) -> None:
    for topics in (
        None,
        [],
        [{"name": "in-folders", "partition_indexes": [0, 1]}],
        [{"name": "in-folders", "partition_indexes": [9]}],
        [{"name": "no-such", "partition_indexes": [0]}],
    ):
        beside.same(list_partition_reassignments.API, topics=topics, timeout_ms=10_000)
    nothing = {"error_message": "An empty text from Kafka here, as from nowhere else."}
    beside.same(alter_partition_reassignments.API, topics=[], timeout_ms=10_000, but=nothing)
    twice = {"name": "in-folders", "partitions": [{"partition_index": 0, "replicas": [1]}]}
    beside.same(alter_partition_reassignments.API, topics=[twice, twice], timeout_ms=10_000)


def test_access_rules(beside: Beside) -> None:
    rule: dict[str, Any] = {
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        "resource_type": 2,
        "resource_name": "t",
    }
    beside.same(create_acls.API, creations=[rule])
    beside.same(create_acls.API, creations=[rule, {**rule, "operation": 99}, {**rule, "principal": "nobody"}])
    beside.same(create_acls.API, creations=[])
    which: dict[str, Any] = {
        "resource_type_filter": 2,
        "resource_name_filter": "t",
        "principal_filter": None,
        "host_filter": None,
        "operation": 3,
        "permission_type": 3,
    }
    beside.same(describe_acls.API, **which)
    beside.same(delete_acls.API, filters=[which])
    beside.same(delete_acls.API, filters=[which, which])
    beside.same(delete_acls.API, filters=[])


def test_sasl_where_nobody_asks_for_it(beside: Beside) -> None:
    beside.same(sasl_handshake.API, mechanism="PLAIN")
    beside.same(sasl_authenticate.API, auth_bytes=b"\0a\0b")
