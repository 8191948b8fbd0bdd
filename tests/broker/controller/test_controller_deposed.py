"""Requests to a controller that steps down while it reads them, between two slices."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_broker.api import alter_partition_reassignments as altering
from millstream_broker.api import elect_leaders as electing
from millstream_broker.api import list_partition_reassignments as listing
from millstream_broker.config.config import BrokerConfig
from millstream_broker.controller.driver import ControllerDriver
from millstream_harness.controller import topic
from millstream_harness.controller_surroundings import MemoryStore, Peers
from millstream_harness.virtual_time import turns, virtual_time
from millstream_kafka.protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream_kafka.protocol.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


class Deposed:
    """A controllership that is over by the second look."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller: ControllerDriver | None = controller

    @property
    def controller(self) -> ControllerDriver | None:
        controller, self._controller = self._controller, None
        return controller


@pytest.mark.parametrize(
    ("handle", "request_"),
    [
        (electing.handle, ElectLeadersRequest(0, [TopicPartitions("t", [0])], 1000)),
        (
            altering.handle,
            AlterPartitionReassignmentsRequest(
                1000, topics=[ReassignableTopic("t", [ReassignablePartition(0, [1])])]
            ),
        ),
        (
            listing.handle,
            ListPartitionReassignmentsRequest(1000, [ListPartitionReassignmentsTopics("t", [0])]),
        ),
    ],
    ids=["ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments"],
)
def test_a_request_meets_the_end_of_a_controllership(handle: Any, request_: Any) -> None:
    @virtual_time
    async def meets() -> None:
        peers = Peers()
        driver = ControllerDriver(
            peers.broker_id, peers.connect, BrokerConfig(), MemoryStore((1, 2), topic("t", (1, 2)))
        )
        driver.start()
        await turns()
        await driver.stop()
        with pytest.raises(ApiError) as error:
            await handle(None, Deposed(driver), None, request_)
        assert error.value.code is ErrorCode.NOT_CONTROLLER

    meets()
