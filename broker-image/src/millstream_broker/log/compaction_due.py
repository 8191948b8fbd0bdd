"""Which log to compact next: the dirtiest of those that are due. See ``compaction``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from millstream_kafka.topic_partition import TopicPartition

from .compaction import Allowance, Compaction, give_up
from .log import Log

logger = logging.getLogger(__name__)


def due(log: Log, now_ms: int, high_watermark: int) -> tuple[float, int] | None:
    """The share of dirty bytes in the compactable part of the log, and its end; None if it is not due yet.

    It is due if the share exceeds min.cleanable.dirty.ratio, or a dirty record is older than max.compaction.lag.ms.
    """
    if log.uncleanable:
        return None
    end = _cleanable_end(log, now_ms, high_watermark)
    clean = dirty = 0
    late = False
    for segment in log.segments:
        if segment.base_offset >= end:
            break
        if log.segments.end_of(segment, log.log_end_offset) <= log.first_dirty_offset:
            clean += segment.size
        else:
            dirty += segment.size
            late = late or 0 <= segment.rolling_timestamp() < now_ms - log.config.max_compaction_lag_ms
    if not dirty:
        return None
    share = dirty / (clean + dirty)
    return (share, end) if late or share > log.config.min_cleanable_dirty_ratio else None


def _cleanable_end(log: Log, now_ms: int, high_watermark: int) -> int:
    """Closed segments below the high watermark, as long as they are older than min.compaction.lag.ms."""
    lag = log.config.min_compaction_lag_ms
    for segment in log.segments.from_offset(log.first_dirty_offset):
        end = log.segments.end_of(segment, log.log_end_offset)
        too_new = lag > 0 and segment.max_timestamp > now_ms - lag
        if segment is log.segments.active or end > high_watermark or too_new:
            return segment.base_offset
    return log.log_end_offset


def dirtiest(
    logs: Iterable[tuple[TopicPartition, Log]],
    now_ms: int,
    high_watermark_of: Callable[[TopicPartition], int] | None = None,
    *,
    allowance: Allowance | None = None,
    busy: Collection[Log] = (),
) -> Compaction | None:
    """The compaction of the dirtiest log that is due and not ``busy``; None if there is none."""
    found: list[tuple[float, int, Log]] = []
    for key, log in logs:
        if not log.config.compacts or log.offline is not None or log.truncating or log in busy:
            continue
        limit = high_watermark_of(key) if high_watermark_of else log.log_end_offset
        limit = log.producers.transactions.last_stable_offset(limit, log.log_start_offset)
        try:
            if (share_and_end := due(log, now_ms, limit)) is not None:
                found.append((*share_and_end, log))
        except OSError as error:
            logger.error("%s: %s", log.directory, log.failed(error).message)
        except Exception as error:
            give_up(log, error)
    if not found:
        return None
    _, end, log = max(found, key=lambda each: each[0])
    return Compaction(log, end, now_ms=now_ms, allowance=allowance)
