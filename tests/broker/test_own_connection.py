"""A controller tells its own broker without a connection between, and no failure of the broker ends that."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.in_process import connected, create, running


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
