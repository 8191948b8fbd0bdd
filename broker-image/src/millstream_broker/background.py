"""What a broker does from time to time: retention, checkpoints, generations, compaction (`cleaner`), fsync of closed
segments and by `flush.ms`.

Each is a loop of its own that sleeps, decides on the event loop and leaves what blocks to a thread. A failure is
logged and tried again at the next turn; after an error that nobody expected the loop begins again (`supervision`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from . import supervision
from .cleaner import Cleaner
from .log import upkeep
from .log.config import FOREVER
from .log.directory import LogDir, LogDirError
from .log.log import Log
from .protocol.errors import ApiError

if TYPE_CHECKING:
    from .broker import Broker

FLUSH_ROLLED_S = 0.5
"""How often is looked for segments that were closed."""

log = logging.getLogger(__name__)


def start(broker: Broker) -> Iterator[asyncio.Task[None]]:
    """The loops that run as long as the broker does."""

    def every(name: str, key: str, work: Callable[[Broker], Awaitable[None]]) -> asyncio.Task[None]:
        return supervision.keep(name, lambda: _every(broker, name, key, work))

    yield every("retention", "log.retention.check.interval.ms", _retain)
    yield every("checkpoints", "log.flush.offset.checkpoint.interval.ms", _checkpoint)
    yield supervision.keep("flush by time", lambda: _flush_by_time(broker))
    for home in broker.logs.dirs:
        yield supervision.keep("flush of rolled segments", partial(_flush_rolled, home))
    yield supervision.keep("ISR review", broker.replicas.membership.run)
    yield supervision.keep("high watermarks", broker.replicas.keep_watermarks)
    yield every("generations", "replica.high.watermark.checkpoint.interval.ms", _raise_generations)
    if broker.config.flag("log.cleaner.enable"):
        yield supervision.keep("cleaner", lambda: Cleaner(broker).run())


async def _every(broker: Broker, name: str, key: str, work: Callable[[Broker], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(max(broker.config.integer(key), 1) / 1000)
        try:
            await work(broker)
        except (OSError, ApiError, LogDirError) as error:
            log.error("%s: %s", name, error)


def _now_ms() -> int:
    return int(time() * 1000)


async def _retain(broker: Broker) -> None:
    """Delete what retention says, and unlink it."""
    for _ in upkeep.enforce_retention(broker.logs, _now_ms(), broker.replicas.high_watermark):
        await asyncio.sleep(0)
    await asyncio.to_thread(broker.logs.remove_deleted)


async def _checkpoint(broker: Broker) -> None:
    await broker.replicas.open_missing()
    broker.replicas.report_strays()
    await asyncio.to_thread(broker.logs.checkpoint)


async def _raise_generations(broker: Broker) -> None:
    await broker.generations.rise_if_grown()


async def _flush_rolled(home: LogDir) -> None:
    """fsync segments soon after they were closed, one at a time in each directory."""

    try:
        while home.failure is None:
            await asyncio.sleep(FLUSH_ROLLED_S)
            if home.rolled:
                await asyncio.to_thread(upkeep.flush_rolled, home)
    except asyncio.CancelledError:
        home.closing = True  # the thread begins nothing more
        raise


async def _flush_by_time(broker: Broker) -> None:
    """fsync what `flush.ms` asks for."""
    flushed: WeakKeyDictionary[Log, int] = WeakKeyDictionary()
    while True:
        shortest = min((each.config.flush_ms for each in broker.logs), default=FOREVER)
        await asyncio.sleep(min(max(shortest / 2000, 0.01), 1))
        if shortest == FOREVER:
            continue
        try:
            await asyncio.to_thread(upkeep.flush_due, broker.logs, _now_ms(), flushed)
        except ApiError as error:
            log.error("%s", error.message)
