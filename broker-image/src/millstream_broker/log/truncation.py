"""Truncates a follower's log to where it agrees with its leader's.

The order makes a crash or a failure safe at any point:

1. The replacement is read and prepared. A failure changes nothing.
2. Checkpoints stop claiming that the removed part is on disk or compacted: other records will have its offsets.
3. Files change, while nothing flushes. A failure takes the half-truncated log offline; reopening repairs it.
4. A log start beyond the new end moves down in the checkpoint, too, because a restart would hide later records. Not
   sooner, because that would show records that DeleteRecords removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import recovery
from .producer_state import ProducerStateManager
from .state import LogState


def truncate_to(log: LogState, offset: int, now_ms: int) -> None:
    """See ``Log.truncate_to``. Blocking. OSError."""
    if offset >= log.log_end_offset:
        log.forget_epochs_from(offset)
        return
    segments, start, end = log.segments, log.log_start_offset, offset
    index, keeps = segments.index_of(offset), offset >= segments.first_offset
    found = next(segments[index].headers_from(offset), None)
    if found is not None:
        end = min(offset, found[1].base_offset)
    try:
        log.claim_nothing_behind(end)
        empty = None if keeps else segments.prepare(end, now_ms, log.config.index_interval_bytes)
        with _all_or_offline(log), log.durability.lock:
            segments.truncations += 1
            if empty is not None:
                segments.replace_all(empty)
            else:
                segments.set_aside(index + 1, len(segments))
                if found is not None:
                    segments.active.truncate(found[0])
                # The segment may have been closed long ago; now it and its indexes grow again.
                recovery.check_tail(segments.active, from_offset=end - 1, checksums=False)
                segments.changed()
            segments.remove_deleted_files()
            log.durability.forget_producers(end)
            segments.aborted.truncate_to(end)
            snapshots = recovery.tidy(segments.path).snapshots
            producers = recovery.restore_producers(segments, snapshots, end, now_ms)
            producers.keep_last_seen(log.producers)
            log.ends_at(end, producers)
    finally:
        log.release_claims()
    if log.log_start_offset < start:
        with _all_or_offline(log):
            log.checkpoint()
    log.forget_epochs_from(end)


def truncate_fully_and_start_at(log: LogState, offset: int, now_ms: int) -> None:
    """See ``Log.truncate_fully_and_start_at``. Blocking. OSError."""
    segments = log.segments
    empty = segments.prepare(offset, now_ms, log.config.index_interval_bytes)
    with _all_or_offline(log), log.durability.lock:
        segments.truncations += 1
        log.durability.forget_producers()
        recovery.remove_snapshots(segments.path)
        segments.replace_all(empty)
        segments.remove_deleted_files()
        log.log_start_offset = log.first_dirty_offset = offset
        log.ends_at(offset, ProducerStateManager())
        log.durable_start = offset
        log.durability.offset = offset
    log.forget_epochs_from(0)


@contextlib.contextmanager
def _all_or_offline(log: LogState) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not log.is_deleted:
            log.offline = error
        raise
