"""A broker that follows partitions of one leader. The test responds for the leader and moves the clock."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.coordination import BrokerRecord
from millstream_broker.replication.fetcher import Fetcher
from millstream_broker.replication.follower import Follower
from millstream_broker.replication.purgatory import Purgatory
from millstream_broker.replication.throttle import Throttle
from millstream_harness.replica import (
    THEM,
    US,
    Call,
    Clock,
    PlayedHome,
    PlayedPeers,
    asked,
    broker_record,
    led_by,
    open_log,
    topic,
)
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchResponse,
    PartitionData,
)

RATE = 1000
"""Bytes a second that throttled replicas may fetch."""


class Fetching:
    """Broker 1, which follows partitions of `t` that broker 2 leads."""

    def __init__(self, folder: Path, clock: Clock, config: Mapping[str, str]) -> None:
        self.folder = folder
        self.clock = clock
        self.peers = PlayedPeers()
        self.leader: BrokerRecord | None = broker_record(THEM)
        self.config = BrokerConfig(config)
        self.fetcher = Fetcher(self.peers, THEM, self.config, lambda: self.leader, Throttle(lambda: RATE))  # type: ignore[arg-type]

    def follow(
        self, *indexes: int, isr: tuple[int, ...] = (US, THEM), home: PlayedHome | None = None
    ) -> list[Follower]:
        followers = []
        for index in indexes:
            record = topic("t", *[led_by(THEM, epoch=3, isr=isr)] * (index + 1))
            log = open_log(self.folder / f"t-{index}", home=home)
            followers.append(Follower(record, index, log, 0, Purgatory()))
            self.fetcher.add(followers[-1])
        return followers

    async def asked(self) -> Call:
        return await self.peers.asked()

    async def answered(self, response: FetchResponse) -> Call:
        """Respond to the pending request; returns the next one."""
        (await self.asked()).answer(response)
        return await self.asked()


@contextlib.asynccontextmanager
async def fetching(folder: Path, clock: Clock, *indexes: int, **config: str) -> AsyncIterator[Fetching]:
    found = Fetching(folder, clock, {key.replace("_", "."): value for key, value in config.items()})
    found.follow(*indexes)
    found.fetcher.start()
    try:
        yield found
    finally:
        await found.fetcher.close()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name.startswith("millstream")]


def session_of(call: Call) -> tuple[int, int]:
    return call.request.session_id, call.request.session_epoch


def partitions_of(call: Call) -> list[int]:
    return sorted(index for _, index in asked(call.request))


def failed(index: int = 0, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> PartitionData:
    return PartitionData(index, code)
