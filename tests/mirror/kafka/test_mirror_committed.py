"""The groups of a cluster while one of its coordinators still loads its own."""

from __future__ import annotations

from math import inf
from typing import cast

import pytest

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import list_groups
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millstream_mirror.kafka.group_offsets import groups_in


class TwoBrokers:
    """The part of a client that `groups_in` uses. The second broker returns this error so often, and some groups."""

    def __init__(self, error: ErrorCode, times: float = inf) -> None:
        self.brokers = {1: "", 2: ""}
        self._error = error
        self._left = times

    async def call_node(
        self, node: int, api: Api[ListGroupsRequest, ListGroupsResponse], request: ListGroupsRequest
    ) -> ListGroupsResponse:
        assert api is list_groups.API
        is_loading = node == 2 and self._left > 0
        self._left -= is_loading
        groups = [
            ListedGroup(f"group-{node}-{part}", "consumer", "Stable")
            for part in range(1 if is_loading else 2)
        ]
        return ListGroupsResponse(error_code=int(self._error) if is_loading else 0, groups=groups)


def brokers(error: ErrorCode, times: float = inf) -> ClusterClient:
    return cast(ClusterClient, TwoBrokers(error, times))


LOADS = pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
)
ALL = ["group-1-0", "group-1-1", "group-2-0", "group-2-1"]


async def test_groups_of_all_brokers_are_listed() -> None:
    assert [one.group_id for one in await groups_in(brokers(ErrorCode.NONE, 0))] == ALL


@LOADS
async def test_loading_broker_is_queried_again(error: ErrorCode) -> None:
    assert [one.group_id for one in await groups_in(brokers(error, 3))] == ALL


@LOADS
async def test_incomplete_list_of_groups_is_an_error(error: ErrorCode) -> None:
    with pytest.raises(ApiError, match="listing the groups of broker 2") as caught:
        await groups_in(brokers(error))
    assert caught.value.code is error


async def test_refusing_broker_is_not_queried_again() -> None:
    with pytest.raises(ApiError, match="listing the groups of broker 2"):
        await groups_in(brokers(ErrorCode.GROUP_AUTHORIZATION_FAILED, 1))
