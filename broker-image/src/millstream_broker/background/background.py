"""A broker's periodic work: retention, checkpoints, generations, compaction (`cleaner`), fsync of closed segments and
by `flush.ms`.

Each is a separate loop that sleeps, decides on the event loop and does blocking work in a thread. A failure is logged
and retried in the next turn; after an unexpected error the loop restarts (`supervision`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import time

from millstream_kafka.protocol.errors import ApiError
from millstream_process import supervision

from ..cluster.generations import Generations
from ..config.config import BrokerConfig
from ..log import upkeep
from ..log.config import FOREVER
from ..log.directory import LogDir, LogDirError
from ..log.manager import LogManager
from ..replication.alter_partition import AlterPartitionManager
from ..replication.manager import ReplicaManager
from ..replication.replicas import Replicas
from ..runtime.slices import cooperatively, yield_to_others
from ..runtime.steps import portions
from .cleaner import Cleaner

FLUSH_ROLLED_S = 0.5
"""How often to check for rolled segments."""
LOOKED_AT = 100
"""Logs whose configuration is checked in one step."""

log = logging.getLogger(__name__)


def start(
    config: BrokerConfig,
    logs: LogManager,
    replicas: Replicas,
    manager: ReplicaManager,
    alter_partition: AlterPartitionManager,
    generations: Generations,
    settle_strays: Callable[[], Awaitable[None]],
) -> Iterator[asyncio.Task[None]]:
    """The loops that run until the broker stops."""

    def every(name: str, key: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return supervision.keep(name, lambda: _every(config, name, key, work))

    yield every("retention", "log.retention.check.interval.ms", lambda: _retain(logs, replicas))
    yield every("checkpoints", "log.flush.offset.checkpoint.interval.ms", lambda: _checkpoint(logs, manager))
    yield every("strays", "log.flush.offset.checkpoint.interval.ms", settle_strays)
    yield supervision.keep("flush by time", lambda: _flush_by_time(logs))
    for home in logs.dirs:
        yield supervision.keep("flush of rolled segments", partial(_flush_rolled, home))
    yield supervision.keep("ISR review", alter_partition.run)
    yield supervision.keep("high watermarks", manager.watermarks.keep)
    yield supervision.keep("states of partitions", lambda: _write_states(logs))
    yield every("generations", "replica.high.watermark.checkpoint.interval.ms", generations.rise_if_grown)
    if config.flag("log.cleaner.enable"):
        yield supervision.keep("cleaner", lambda: Cleaner(config, logs, replicas).run())


async def _every(config: BrokerConfig, name: str, key: str, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(max(config.integer(key), 1) / 1000)
        try:
            await work()
        except (OSError, ApiError, LogDirError) as error:
            log.error("%s: %s", name, error)


def _now_ms() -> int:
    return int(time() * 1000)


async def _retain(logs: LogManager, replicas: Replicas) -> None:
    """Delete segments that retention no longer keeps, and unlink their files."""
    for _ in upkeep.enforce_retention(logs, _now_ms(), replicas.high_watermark):
        await yield_to_others()
    await asyncio.to_thread(logs.remove_deleted)


async def _checkpoint(logs: LogManager, manager: ReplicaManager) -> None:
    await manager.open_missing()
    await asyncio.to_thread(logs.checkpoint)


async def _write_states(logs: LogManager) -> None:
    """Note the states of partitions as soon as they change."""
    changed = asyncio.Event()
    changed.set()
    logs.states.on_change = changed.set
    while True:
        await changed.wait()
        changed.clear()
        await asyncio.to_thread(logs.states.write)


async def _flush_rolled(home: LogDir) -> None:
    """fsync closed segments soon, one at a time in each directory."""

    try:
        while home.failure is None:
            await asyncio.sleep(FLUSH_ROLLED_S)
            if home.rolled:
                await asyncio.to_thread(upkeep.flush_rolled, home)
    except asyncio.CancelledError:
        home.closing = True  # the thread starts nothing more
        raise


async def _flush_by_time(logs: LogManager) -> None:
    """fsync logs by `flush.ms`."""
    while True:
        shortest = FOREVER
        async for some in cooperatively(portions(logs, LOOKED_AT)):
            shortest = min(shortest, *(each.config.flush_ms for each in some))
        await asyncio.sleep(min(max(shortest / 2000, 0.01), 1))
        if shortest == FOREVER:
            continue
        try:
            await asyncio.to_thread(upkeep.flush_due, logs, _now_ms())
        except ApiError as error:
            log.error("%s", error.message)
