"""Access rules in a real ZooKeeper, with names that no node may have."""

from __future__ import annotations

import asyncio

import pytest

from millstream_broker.coordination.acls import Acls
from millstream_harness.members import members
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.acl import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

pytestmark = pytest.mark.process

READ = AccessControlEntry("User:CN=a,O=b", "*", AclOperation.READ, PermissionType.ALLOW)
NAMES = [
    *(
        "*",
        "team/a",
        "/",
        ".",
        "..",
        "%",
        "%:",
        "%:x",
        "a b",
        "ü",
        "\x01",
        "\x7f",
        "\x85",
        "\ue000",
        "\ufff5",
    ),
    *("zookeeper", "😀", "a" * 249),
]


async def test_every_name_is_stored_and_reaches_the_others(shared_zookeeper: ZooKeeperProcess) -> None:
    async with members(shared_zookeeper.own_tree(), 1, 2) as (one, two):
        noted = asyncio.Event()
        mine = Acls(one.coordination._nodes, lambda path: None)
        others = Acls(two.coordination._nodes, lambda path: noted.set())
        await mine.load()
        await others.load()
        patterns = [
            ResourcePattern(ResourceType.GROUP, name, pattern_type)
            for name in NAMES
            for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
        ]
        assert await mine.change({pattern: lambda stored: stored | {READ} for pattern in patterns}) == {}
        await noted.wait()
        while others.rules != mine.rules:
            noted.clear()
            await others.read_notes()
            if others.rules != mine.rules:
                await noted.wait()
        assert others.rules == {pattern: frozenset({READ}) for pattern in patterns}
        await mine.change({pattern: lambda stored: stored - {READ} for pattern in patterns})
        late = Acls(two.coordination._nodes, lambda path: None)
        await two.coordination._nodes.sync()
        await late.load()
        assert late.rules == {}
