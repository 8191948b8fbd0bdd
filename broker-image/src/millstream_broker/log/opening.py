"""Opening and closing the logs of all directories, in threads."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.topic_partition import TopicPartition

from . import checkpoints, folders
from .config import LogConfig
from .directory import LogDir, LogDirError, describe
from .files import FileCache
from .log import Log

logger = logging.getLogger(__name__)

SYNC_AT_CLOSE_BYTES = 64 << 20  # a clean stop fsyncs when no more than this is unwritten,
SYNC_AT_CLOSE_S = 0.5  # and for at most this long (except for fsyncs in progress)
_THREADS = 4
_AT_ONCE = 20
"""Most logs to hand to a thread at once."""


class LogFolder(NamedTuple):
    """The folder of a log, in one of the directories."""

    home: LogDir
    path: Path
    key: TopicPartition


def open_logs(
    found: list[LogFolder],
    dirs: Collection[LogDir],
    config_of: Callable[[str], LogConfig],
    files: FileCache,
) -> list[tuple[LogFolder, Log | OSError]]:
    """Open the logs in these folders, verifying if necessary; returns them, or the errors. Blocking."""
    for home in dirs:
        home.load_checkpoints()
    config_of = functools.cache(config_of)

    def opened(folder: LogFolder) -> Log | OSError:
        if folder.home not in dirs:
            return OSError("its log directory is offline")
        try:
            return _open_log(folder, config_of(folder.key[0]), files)
        except OSError as error:
            return error
        except ApiError as error:
            return OSError(error.message)

    # Handing a log to a thread costs about as much as opening it; but a log that must be read takes long.
    size = max(1, min(_AT_ONCE, len(found) // (8 * _THREADS)))
    portions = [found[start : start + size] for start in range(0, len(found), size)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="open-log") as pool:
        done = pool.map(lambda some: [(folder, opened(folder)) for folder in some], portions)
        return [each for portion in done for each in portion]


def _open_log(folder: LogFolder, config: LogConfig, files: FileCache) -> Log:
    home, path, key = folder
    summary = home.summary(path)
    topic_id = folders.read_topic_id(path) if summary is None else summary.topic_id
    known = home.checkpointed(key, topic_id)
    start = known.get(checkpoints.LOG_START_OFFSETS, 0)
    log = Log.open(
        path,
        config,
        clean=home.clean,
        recovery_point=known.get(checkpoints.RECOVERY_POINTS, 0),
        log_start_offset=start if home.is_identified else 0,
        page_cache_kept=home.same_boot,
        files=files,
        home=home,
        topic_id=topic_id,
        summary=summary,
        lost_aborted=home.lost_aborted(path) if summary is None else (),
    )
    if not home.is_identified:
        if start > log.log_end_offset:
            logger.warning(
                "%s: the log start %d is beyond its end %d: ignored", path, start, log.log_end_offset
            )
        else:
            log.delete_records_before(start)
    log.first_dirty_offset = min(known.get(checkpoints.CLEANER_OFFSETS, 0), log.log_end_offset)
    log.last_high_watermark = min(known.get(checkpoints.HIGH_WATERMARKS, 0), log.log_end_offset)
    log.unconfirmed = (path / folders.STRAY_NOTE).exists()
    return log


def close_logs(
    dirs: Collection[LogDir],
    *,
    sync_limit: int = SYNC_AT_CLOSE_BYTES,
    sync_for_s: float = SYNC_AT_CLOSE_S,
) -> None:
    """Close every log, write the marker of a clean stop, and unlock. Blocking, but does not wait for gigabytes."""
    logs = [log for home in dirs for log in home.all_logs().values()]
    deadline = time.monotonic() + sync_for_s

    def flush(log: Log) -> bool:
        try:
            while time.monotonic() < deadline and log.unflushed_messages:
                if not log.flush_closed():
                    log.flush()
        except ApiError as error:
            logger.error("%s", error.message)
        return not log.unflushed_messages

    def close(log: Log) -> bool:
        try:
            log.close()
        except OSError as error:
            logger.error("%s: not closed cleanly: %s", log.directory, describe(error))
            return False
        return log.offline is None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="close-log") as pool:
        synced = sum(log.unflushed_bytes for log in logs) <= sync_limit and all(list(pool.map(flush, logs)))
        for home in dirs:
            if not home.is_locked:
                continue
            clean = all(list(pool.map(close, home.all_logs().values())))
            try:
                home.checkpoint()
                if clean:
                    home.mark_clean(synced=synced)
            except (OSError, LogDirError) as error:
                logger.error("%s: cannot write the clean shutdown marker: %s", home.path, error)
            home.unlock()
