"""A controller sends requests to its own broker without a connection, and no failure of the broker ends that."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.cluster.own_connection import OwnConnection
from millstream_harness.in_process import connected, create, running
from millstream_kafka.protocol import list_offsets
from millstream_kafka.protocol.list_offsets import (
    DEBUGGING_REPLICA_ID,
    ListOffsetsPartition,
    ListOffsetsTopic,
)


async def test_a_controller_asks_its_own_broker_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        update, failures = broker.cluster.update, []

        async def fail_once(request: object) -> None:
            if not failures:
                failures.append(request)
                raise ZeroDivisionError("a bug")
            await update(request)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.cluster, "update", fail_once)
        await create(client, "t")
        assert failures
        assert "UpdateMetadata version 7 failed" in caplog.text
        assert broker.replicas.partition("t", 0).record.leader == broker.replicas.broker_id


async def test_it_asks_its_own_broker_where_logs_end(tmp_path: Path) -> None:
    """Such a handler may answer in slices, as it does for many logs; that makes no difference to a controller."""
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", 2)
        connection = OwnConnection(broker.handlers, broker.inter_broker_listener, 0, 0)
        asked = [ListOffsetsTopic("t", [ListOffsetsPartition(index, -1, -1) for index in range(2)])]
        request = list_offsets.ListOffsetsRequest(DEBUGGING_REPLICA_ID, 0, asked)
        answer = await connection.call(list_offsets.API, 7, request)
        assert [(one.error_code, one.offset) for one in answer.topics[0].partitions] == [(0, 0), (0, 0)]
