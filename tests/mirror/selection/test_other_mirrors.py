"""Groups of mirrors, as a cluster lists them during a coordinator's failover."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import list_groups, offset_fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsResponse
from millstream_kafka.protocol.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.selection.other_mirrors import AT_ONCE, OtherMirrors

PROGRESS = Progress(5, 7, 0, 5, 5, "topic id", "cluster", 0)


class OneBroker:
    """The part of a client that `OtherMirrors` uses."""

    def __init__(self, groups: int) -> None:
        self.brokers = {1: ""}
        self.groups = [f"millstream-mirror.m{number}.s" for number in range(groups)]
        self.listed = [*self.groups, "app"]
        self.error = ErrorCode.NONE
        self.now = self.most = 0

    async def call_node(self, node: int, api: Any, request: Any) -> ListGroupsResponse:
        assert api is list_groups.API
        return ListGroupsResponse(groups=[ListedGroup(group, "", "Empty") for group in self.listed])

    async def call_coordinator(self, group: str, api: Any, request: Any) -> OffsetFetchResponse:
        assert api is offset_fetch.BY_NAME
        assert group != "app"
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        there = OffsetFetchResponsePartitions(0, PROGRESS.offset, -1, PROGRESS.metadata())
        topics = [OffsetFetchResponseTopics(name, partitions=[there]) for name in ("orders", "payments")]
        known = topics if group in self.groups else []
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group, known, int(self.error))])

    def forget_coordinator(self, group: str) -> None:
        pass


async def test_groups_are_read_a_few_at_a_time() -> None:
    broker = OneBroker(100)
    found = await OtherMirrors(cast(ClusterClient, broker)).progress({"orders"}, besides=broker.groups[0])
    assert found == {group: {("orders", 0): PROGRESS} for group in broker.groups[1:]}
    assert broker.most == AT_ONCE


async def test_unlisted_group_counts_until_deleted() -> None:
    broker = OneBroker(1)
    mirrors = OtherMirrors(cast(ClusterClient, broker))
    there = await mirrors.progress({"orders"})
    assert there == {broker.groups[0]: {("orders", 0): PROGRESS}}
    broker.listed = []
    broker.error = ErrorCode.NOT_COORDINATOR
    with pytest.raises(ApiError, match="reading the positions"):
        await mirrors.progress({"orders"})
    broker.error = ErrorCode.NONE
    assert await mirrors.progress({"orders"}) == there
    broker.groups = []
    assert (await mirrors.progress({"orders"})).get("millstream-mirror.m0.s", {}) == {}
    assert await mirrors.progress({"orders"}) == {}
