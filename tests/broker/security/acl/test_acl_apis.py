"""CreateAcls, DescribeAcls and DeleteAcls, on a broker with an authorizer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from millstream_broker.broker import Broker
from millstream_broker.security.acl.filters import AclFilter
from millstream_harness.in_process import connected, running
from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import create_acls, delete_acls, describe_acls
from millstream_kafka.protocol.create_acls import AclCreation, CreateAclsRequest
from millstream_kafka.protocol.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from millstream_kafka.protocol.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream_kafka.protocol.errors import ErrorCode

TOPIC, CLUSTER = 2, 4
LITERAL, PREFIXED = 3, 4
READ, WRITE, ALTER, DESCRIBE = 3, 4, 7, 8
DENY, ALLOW = 2, 3
ANONYMOUS = "User:ANONYMOUS"


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    async with running(tmp_path, config) as broker:
        yield broker


async def allow(broker: Broker, *operations: AclOperation) -> None:
    """Allow everybody operations on the cluster."""
    entries = {AccessControlEntry("User:*", "*", operation, PermissionType.ALLOW) for operation in operations}
    cluster = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
    assert await broker.coordination.change_acls({cluster: lambda stored: frozenset(entries)}) == {}


async def create(client: Connection, *rules: AclCreation) -> list[tuple[int, str | None]]:
    answer = await client.call(create_acls.API, 3, CreateAclsRequest(list(rules)))
    return [(result.error_code, result.error_message) for result in answer.results]


async def describe(client: Connection, *wanted: object) -> DescribeAclsResponse:
    return await client.call(describe_acls.API, 3, DescribeAclsRequest(*wanted))


async def delete(client: Connection, *wanted: DeleteAclsFilter) -> DeleteAclsResponse:
    return await client.call(delete_acls.API, 3, DeleteAclsRequest(list(wanted)))


def everything() -> tuple[object, ...]:
    return 1, None, 1, None, None, 1, 1


async def names(client: Connection, *wanted: object) -> list[str]:
    return sorted(resource.resource_name for resource in (await describe(client, *wanted)).resources)


async def test_access_rules_need_describe_and_alter_on_the_cluster(broker: Broker) -> None:
    rule = AclCreation(TOPIC, "t", LITERAL, ANONYMOUS, "*", READ, ALLOW)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with connected(broker) as client:
        assert [code for code, _ in await create(client, rule, rule)] == [refused, refused]
        assert (await describe(client, *everything())).error_code == refused
        deleted = await delete(client, DeleteAclsFilter(*everything()))
        assert [result.error_code for result in deleted.filter_results] == [refused]
        await allow(broker, AclOperation.DESCRIBE)
        assert (await describe(client, *everything())).error_code == 0
        assert [code for code, _ in await create(client, rule)] == [refused]
        await allow(broker, AclOperation.ALTER)
        assert await create(client, rule, rule) == [(0, ""), (0, "")]
        assert (await describe(client, *everything())).error_code == 0, "Alter includes Describe"


async def test_created_rules_are_in_force_at_once_and_until_they_are_deleted(broker: Broker) -> None:
    await allow(broker, AclOperation.ALTER)
    version = broker.authorizer.version
    async with connected(broker) as client:
        rules = [
            AclCreation(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW),
            AclCreation(TOPIC, "orders", LITERAL, "User:bob", "10.0.0.1", WRITE, DENY),
            AclCreation(TOPIC, "ord", PREFIXED, "User:alice", "*", WRITE, ALLOW),
            AclCreation(TOPIC, "*", LITERAL, "User:carol", "*", 2, ALLOW),
        ]
        assert await create(client, *rules) == [(0, "")] * 4
        assert broker.authorizer.version > version
        assert await names(client, TOPIC, "orders", LITERAL, None, None, 1, 1) == ["orders"]
        assert await names(client, TOPIC, "orders", 2, None, None, 1, 1) == ["*", "ord", "orders"]
        assert await names(client, TOPIC, None, 1, "User:alice", None, 1, 1) == ["ord", "orders"]
        assert await names(client, 1, None, 1, None, "10.0.0.1", 1, 1) == ["orders"]
        assert await names(client, 1, None, 1, None, None, 2, 1) == ["*"]
        assert await names(client, 1, None, 1, None, None, 1, DENY) == ["orders"]
        of_alice = DeleteAclsFilter(TOPIC, None, 1, "User:alice", None, 1, 1)
        deleted = await delete(client, of_alice, DeleteAclsFilter(TOPIC, "none", 1, None, None, 1, 1))
        assert [len(result.matching_acls) for result in deleted.filter_results] == [2, 0]
        assert await names(client, TOPIC, None, 1, None, None, 1, 1) == ["*", "orders"]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (AclCreation(TOPIC, "", LITERAL, ANONYMOUS, "*", READ, ALLOW), "Invalid empty resource name"),
        (
            AclCreation(CLUSTER, "other", LITERAL, ANONYMOUS, "*", ALTER, ALLOW),
            "only valid name for the CLUSTER",
        ),
        (AclCreation(1, "t", LITERAL, ANONYMOUS, "*", READ, ALLOW), "Invalid resourceType ANY"),
        (AclCreation(99, "t", LITERAL, ANONYMOUS, "*", READ, ALLOW), "Invalid resourceType UNKNOWN"),
        (AclCreation(TOPIC, "t", 2, ANONYMOUS, "*", READ, ALLOW), "Invalid patternType MATCH"),
        (AclCreation(TOPIC, "t", LITERAL, ANONYMOUS, "*", 1, ALLOW), "Invalid operation ANY"),
        (AclCreation(TOPIC, "t", LITERAL, ANONYMOUS, "*", READ, 1), "Invalid permissionType ANY"),
        (AclCreation(TOPIC, "t", LITERAL, "alice", "*", READ, ALLOW), "no colon is present"),
    ],
)
async def test_impossible_rules_are_refused_and_others_of_the_request_stored(
    broker: Broker, rule: AclCreation, problem: str
) -> None:
    await allow(broker, AclOperation.ALTER)
    good = AclCreation(TOPIC, "good", LITERAL, "User:alice", "*", READ, ALLOW)
    async with connected(broker) as client:
        (refused, stored) = await create(client, rule, good)
        assert refused[0] == ErrorCode.INVALID_REQUEST
        assert problem in (refused[1] or "")
        assert stored == (0, "")
        assert await names(client, *everything()) == ["good", CLUSTER_NAME]


async def test_filters_with_unknown_numbers_are_refused(broker: Broker) -> None:
    await allow(broker, AclOperation.ALTER)
    async with connected(broker) as client:
        answer = await describe(client, 77, None, 1, None, None, 1, 1)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "resource type 77" in (answer.error_message or "")
        deleted = await delete(client, DeleteAclsFilter(1, None, 1, None, None, 1, 0))
        assert [result.error_code for result in deleted.filter_results] == [ErrorCode.INVALID_REQUEST]
        assert await names(client, *everything()) == [CLUSTER_NAME]


def test_a_filter_of_a_name_matches_by_its_pattern_type() -> None:
    patterns = [
        ResourcePattern(ResourceType.TOPIC, "abc"),
        ResourcePattern(ResourceType.TOPIC, "ab", PatternType.PREFIXED),
        ResourcePattern(ResourceType.TOPIC, "abc", PatternType.PREFIXED),
        ResourcePattern(ResourceType.TOPIC, "*"),
        ResourcePattern(ResourceType.GROUP, "abc"),
    ]

    def matched(pattern_type: int, name: str | None = "abc") -> list[int]:
        wanted = AclFilter.of(DescribeAclsRequest(TOPIC, name, pattern_type, None, None, 1, 1))
        return [at for at, pattern in enumerate(patterns) if wanted.matches_pattern(pattern)]

    assert matched(LITERAL) == [0]
    assert matched(PREFIXED) == [2]
    assert matched(1) == [0, 2]
    assert matched(2) == [0, 1, 2, 3]
    assert matched(1, None) == [0, 1, 2, 3]
