"""What a broker does from time to time: retention, checkpoints, generations, compaction (`cleaner`), fsync of closed
segments and by `flush.ms`.

Each is a loop of its own that sleeps, decides on the event loop and leaves what blocks to a thread. A failure is
logged and tried again at the next turn; so is an error that nobody expected, with its stack: no loop ends before it is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from time import time
from typing import TYPE_CHECKING, Any

from .cleaner import Cleaner
from .log import upkeep
from .log.config import FOREVER
from .log.directory import LogDir, LogDirError
from .protocol.errors import ApiError

if TYPE_CHECKING:
    from .broker import Broker

FLUSH_ROLLED_S = 0.5
"""How often is looked for segments that were closed."""

RESTART_S = 1.0
"""Pause before background work that failed unexpectedly begins again."""

log = logging.getLogger(__name__)


def work_of(broker: Broker) -> Iterator[Coroutine[Any, Any, None]]:
    """The loops to run as long as the broker does."""
    yield _every(broker, "log.retention.check.interval.ms", _retain)
    yield _every(broker, "log.flush.offset.checkpoint.interval.ms", _checkpoint)
    yield lasting(lambda: _flush_by_time(broker))
    for home in broker.logs.dirs:
        yield _flush_rolled(home)
    yield lasting(broker.replicas.membership.run)
    yield lasting(broker.replicas.keep_watermarks)
    yield _every(broker, "replica.high.watermark.checkpoint.interval.ms", _raise_generations)
    if broker.config.flag("log.cleaner.enable"):
        yield lasting(Cleaner(broker).run)


async def lasting(work: Callable[[], Awaitable[None]], pause_s: float = RESTART_S) -> None:
    """Begin ``work`` again, after a pause, when it ends by an error that it did not expect."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("background work failed, it begins again in %s s", pause_s)
            await asyncio.sleep(pause_s)


async def _every(broker: Broker, key: str, work: Callable[[Broker], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(max(broker.config.integer(key), 1) / 1000)
        try:
            await work(broker)
        except (OSError, ApiError, LogDirError) as error:
            log.error("%s: %s", work.__name__.strip("_"), error)
        except Exception:
            log.exception("%s", work.__name__.strip("_"))


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

    async def flush() -> None:
        while home.failure is None:
            await asyncio.sleep(FLUSH_ROLLED_S)
            if home.rolled:
                await asyncio.to_thread(upkeep.flush_rolled, home)

    try:
        await lasting(flush)
    finally:
        home.closing = True  # the thread begins nothing more


async def _flush_by_time(broker: Broker) -> None:
    """fsync what `flush.ms` asks for."""
    flushed: dict[Any, int] = {}
    while True:
        shortest = min((each.config.flush_ms for each in broker.logs), default=FOREVER)
        await asyncio.sleep(min(max(shortest / 2000, 0.01), 1))
        if shortest == FOREVER:
            continue
        try:
            await asyncio.to_thread(upkeep.flush_due, broker.logs, _now_ms(), flushed)
        except ApiError as error:
            log.error("%s", error.message)
