"""The groups of a cluster while one of its coordinators still loads its own."""

from __future__ import annotations

from typing import cast

import pytest

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import list_groups
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millstream_mirror.committed import groups_in


class TwoBrokers:
    """The part of a client that `groups_in` uses. The second broker returns this error, and some groups."""

    def __init__(self, error: ErrorCode) -> None:
        self.brokers = {1: "", 2: ""}
        self._errors = {1: ErrorCode.NONE, 2: error}

    async def call_node(
        self, node: int, api: Api[ListGroupsRequest, ListGroupsResponse], request: ListGroupsRequest
    ) -> ListGroupsResponse:
        assert api is list_groups.API
        group = ListedGroup(f"group-{node}", "consumer", "Stable")
        return ListGroupsResponse(error_code=int(self._errors[node]), groups=[group])


def brokers(error: ErrorCode) -> ClusterClient:
    return cast(ClusterClient, TwoBrokers(error))


async def test_all_brokers_together_list_the_groups() -> None:
    assert [one.group_id for one in await groups_in(brokers(ErrorCode.NONE))] == ["group-1", "group-2"]


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
)
async def test_a_part_of_the_groups_is_not_taken_for_all(error: ErrorCode) -> None:
    with pytest.raises(ApiError, match="listing the groups of broker 2") as caught:
        await groups_in(brokers(error))
    assert caught.value.code is error
