"""Administration of groups whose coordinator has moved."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.scripted_broker import ScriptedBroker
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import OffsetAndMetadata
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import delete_groups, find_coordinator, metadata, offset_commit
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.header import RequestHeader
from millstream_kafka.protocol.schema import Struct

pytestmark = pytest.mark.process


@pytest.mark.parametrize("request_name", ["commit", "delete_groups"])
async def test_moved_coordinator_is_found_again(request_name: str) -> None:
    """Two brokers; the first is no longer the coordinator."""
    coordinator = 0

    def answer(node: int) -> Any:
        async def answered(header: RequestHeader, request: Any) -> Struct:
            if header.api_key == find_coordinator.API.key:
                found = find_coordinator.Coordinator("g", coordinator, "127.0.0.1", brokers[coordinator].port)
                return find_coordinator.FindCoordinatorResponse(coordinators=[found])
            code = ErrorCode.NOT_COORDINATOR if node == 0 else ErrorCode.NONE
            if header.api_key == offset_commit.BY_NAME.key:
                partition = offset_commit.OffsetCommitResponsePartition(0, code)
                return offset_commit.OffsetCommitResponse(
                    topics=[offset_commit.OffsetCommitResponseTopic("a", partitions=[partition])]
                )
            if header.api_key == delete_groups.API.key:
                return delete_groups.DeleteGroupsResponse(
                    results=[delete_groups.DeletableGroupResult("g", code)]
                )
            return metadata.MetadataResponse(
                brokers=[
                    metadata.MetadataResponseBroker(number, "127.0.0.1", broker.port)
                    for number, broker in enumerate(brokers)
                ]
            )

        return answered

    async def requested() -> object:
        if request_name == "commit":
            return await admin.commit("g", {("a", 0): OffsetAndMetadata(5)})
        return await admin.delete_groups(["g"])

    brokers = [ScriptedBroker(answer(0)), ScriptedBroker(answer(1))]
    async with (
        brokers[0].listening(),
        brokers[1].listening(),
        ClusterClient(f"127.0.0.1:{brokers[0].port}") as client,
    ):
        admin = AdminClient(client)
        with pytest.raises(ApiError, match="NOT_COORDINATOR: group g"):
            await requested()
        coordinator = 1
        assert await requested() in ({}, {"g": None})
