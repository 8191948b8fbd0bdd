"""Periodic work on all logs: retention, and fsync of closed segments and by ``flush.ms``.

Retention only renames, so it runs on the loop's thread, in steps short enough that the loop serves between them.
Functions that wait for the disk say so, and run in another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.topic_partition import TopicPartition

from .directory import LogDir
from .log import Log
from .manager import LogManager

logger = logging.getLogger(__name__)

MOST_DELETED = 100
"""Segments that retention removes from a log in one step."""

HighWatermarkOf = Callable[[TopicPartition], int]


def logs_of(manager: LogManager) -> Iterator[tuple[TopicPartition, Log]]:
    """Every log that still exists at its turn: some may be deleted meanwhile."""
    for key, log in manager.logs():
        if not log.is_deleted:
            yield key, log


def enforce_retention(
    manager: LogManager, now_ms: int, high_watermark_of: HighWatermarkOf | None = None
) -> Iterator[int]:
    """Delete old segments, roll old active ones, forget idle producers, in steps; returns how many were deleted."""
    for key, log in logs_of(manager):
        count = MOST_DELETED
        while count == MOST_DELETED and log.offline is None:
            limit = high_watermark_of(key) if high_watermark_of else None
            try:
                count = log.delete_old_segments(now_ms, limit, at_most=MOST_DELETED)
                log.roll_if_old(now_ms)
            except OSError as error:
                logger.error("%s: retention failed: %s", log.directory, log.failed(error).message)
                count = 0
            except Exception:  # an error of one log: the others get their turn
                logger.exception("%s: retention failed", log.directory)
                count = 0
            yield count
        log.expire_producers(now_ms)


def flush_rolled(home: LogDir) -> None:
    """fsync the closed segments that are not on disk yet, so that only active ones are read after a crash.

    Blocking, in one other thread for each directory. Ends when the directory closes.
    """
    while home.failure is None and not home.closing:
        try:
            log = home.rolled.pop()
        except KeyError:
            return
        if _flush(log, Log.flush_closed):
            home.rolled.add(log)


def flush_due(manager: LogManager, now_ms: int) -> None:
    """Flush logs whose flush.ms has passed. Blocking, in one other thread."""
    for _, log in logs_of(manager):
        durability = log.durability
        if not log.unflushed_messages or durability.flushed_ms is None:
            durability.flushed_ms = now_ms
        if log.unflushed_messages and now_ms - durability.flushed_ms >= log.config.flush_ms:
            _flush(log, Log.flush)
            durability.flushed_ms = now_ms


def _flush(log: Log, how: Callable[[Log], int]) -> int:
    """The result of `how`; 0 if it fails, or the log is deleted meanwhile."""
    try:
        return how(log)
    except ApiError as error:
        if not log.is_deleted:
            logger.error("%s", error.message)
        return 0
