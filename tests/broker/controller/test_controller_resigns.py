"""The controller meets a bug, over a real ZooKeeper."""

from __future__ import annotations

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.controller import driver
from millstream_broker.controller.driver import ControllerDriver
from millstream_broker.controller.messages import ElectionType
from millstream_broker.security.mechanisms.inter_broker import InterBroker
from millstream_harness.members import led_topic, members, until
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol.errors import ApiError, ErrorCode

pytestmark = pytest.mark.process


async def test_a_controller_that_fails_resigns(
    shared_zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting requests fail at once, and the next controller knows everything."""
    monkeypatch.setattr(driver, "RESIGN_PAUSE_S", 0.1)
    async with members(shared_zookeeper.own_tree(), 1, 2) as (one, two):
        await led_topic(one)
        store = await one.elected()
        coordination = one.coordination
        peers = InterBroker(1, "PLAINTEXT", coordination.secret, lambda: coordination.broker_epoch)
        failing = ControllerDriver(1, peers.connect, BrokerConfig(), store)
        failing.start()
        one.coordination.campaigns = False
        assert await failing.list_reassignments(None, 10) == {}

        def fail(event: object) -> list[object]:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(failing.machine, "handle", fail)
        with pytest.raises(ApiError) as refused:
            await failing.elect_leaders(ElectionType.PREFERRED, None, 10)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        newer = await two.elected()
        assert newer.epoch == store.epoch + 1
        await until(lambda: one.depositions == 1)
        await failing.stop()
        assert "t" in (await two.load()).topics
        assert "this broker resigns" in caplog.text
        assert "ZeroDivisionError: a bug" in caplog.text
