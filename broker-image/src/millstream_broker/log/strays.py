"""Strays: logs that fit no topic, although nobody deleted them. A broker serves none of them, and removes none.

A log becomes a stray if coordination has no topic with its topic id, if its name belongs to another topic, if this
broker is not among its partition's replicas, or if there is a more complete log of the same partition. Its folder gets
the name ``TOPIC-N.TOPICID-stray`` (Kafka's suffix), in the same log directory. If a topic of that very id comes back,
with this broker among the replicas, the stray is its log again. Otherwise it stays until somebody removes the folder.

``.stray`` in the folder keeps what the checkpoints had about the log:

    {"version": 1, "log_start_offset": 100, "recovery_point": 5000, "high_watermark": 5200}
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.topic_partition import TopicPartition

from . import folders
from .config import LogConfig
from .files import FileCache, read_file, write_atomically
from .log import Log
from .state import Home, LogState

NOTE = ".stray"

logger = logging.getLogger(__name__)


class Stray(NamedTuple):
    """A stray in a log directory; a long topic's name is shortened."""

    path: Path
    topic: str
    partition: int
    topic_id: uuid.UUID | None


class LogEnd(NamedTuple):
    """How complete a log is; the larger one is more complete."""

    epoch: int
    """Of its last record; -1 if unknown."""
    offset: int


def log_end(log: LogState) -> LogEnd:
    return LogEnd(log.epochs.latest, log.log_end_offset)


class Strays:
    """The strays of all log directories. The loop's thread and one that opens logs use it."""

    def __init__(self, files: FileCache) -> None:
        self._files = files
        self._strays: dict[Path, Stray] = {}
        self._of: dict[tuple[uuid.UUID | None, int], list[Stray]] = {}
        """The same by topic id and partition."""
        self.sizes: dict[Path, int] = {}
        """Bytes of each stray, as of the last `refresh`."""
        self._ends: dict[Path, LogEnd] = {}
        self._opening = threading.RLock()
        """Held while a stray is open: two threads must not recover one log."""

    def __len__(self) -> int:
        return len(self._strays)

    def __iter__(self) -> Iterator[Stray]:
        return iter(list(self._strays.values()))

    def found(self, path: Path, key: TopicPartition) -> None:
        """A folder of this kind, at the start. Blocking."""
        topic_id = folders.read_topic_id(path)
        self._put(Stray(path, *key, topic_id))
        logger.warning(
            "%s is a stray (topic id %s): its log is kept and not served. Remove the folder if nobody needs it.",
            path,
            topic_id,
        )

    def add(self, key: TopicPartition, log: Log, why: str) -> None:
        """Turn a log into a stray: nobody writes to it any more. Blocking. OSError: its folder is unchanged."""
        _close(log)
        note = {
            "version": 1,
            "log_start_offset": log.log_start_offset,
            "recovery_point": log.flushed_offset,
            "high_watermark": log.last_high_watermark,
        }
        before, end = log.directory, log_end(log)
        try:
            write_atomically(f"{before}/{NOTE}", json.dumps(note).encode(), sync=False)
        except OSError as error:  # a full disk: then the whole log is read when it is opened
            logger.warning("%s: cannot write %s: %s", before, NOTE, error)
        target = self._target(before.parent, key, log.topic_id)
        log.move(target)
        self._added(before, target, key, log.topic_id, why)
        self._ends[target] = end

    def add_folder(self, path: Path, key: TopicPartition, why: str) -> None:
        """The same for a folder that is not open. Blocking. OSError."""
        topic_id = folders.read_topic_id(path)
        target = self._target(path.parent, key, topic_id)
        path.rename(target)
        self._added(path, target, key, topic_id, why)

    @staticmethod
    def _target(home: Path, key: TopicPartition, topic_id: uuid.UUID | None) -> Path:
        target = home / folders.name_when_stray(key, topic_id)
        return home / folders.name_when_stray(key, None) if target.exists() else target

    def _added(
        self, before: Path, path: Path, key: TopicPartition, topic_id: uuid.UUID | None, why: str
    ) -> None:
        self._put(Stray(path, *key, topic_id))
        logger.warning(
            "%s (topic id %s) %s: it is a stray now, kept and not served, in %s", before, topic_id, why, path
        )

    def _put(self, stray: Stray) -> None:
        self._strays[stray.path] = stray
        self._of.setdefault((stray.topic_id, stray.partition), []).append(stray)

    def _drop(self, path: Path) -> None:
        if (stray := self._strays.pop(path, None)) is not None:
            key = stray.topic_id, stray.partition
            self._of[key] = [one for one in self._of[key] if one != stray]
            self._ends.pop(path, None)

    def of(self, topic_id: uuid.UUID | None, partition: int, homes: Collection[Path]) -> list[Stray]:
        """The strays of a partition in these directories."""
        if topic_id is None:
            return []
        return [one for one in self._of.get((topic_id, partition), ()) if one.path.parent in homes]

    def end(self, stray: Stray) -> LogEnd:
        """Where a stray ends. Blocking. OSError."""
        with self._opening:
            if (known := self._ends.get(stray.path)) is None:
                log = _open(stray.path, LogConfig(), self._files, None, stray.topic_id)
                try:
                    known = self._ends[stray.path] = log_end(log)
                finally:
                    log.close()
        return known

    def take_back(
        self,
        key: TopicPartition,
        strays: Collection[Stray],
        config: LogConfig,
        home_of: Callable[[Path], Home],
    ) -> Log:
        """The most complete of a partition's strays, which is its log again. Blocking. OSError."""
        with self._opening:
            best = max(strays, key=self.end) if len(strays) > 1 else next(iter(strays))
            path = best.path.with_name(f"{key[0]}-{key[1]}")
            best.path.rename(path)
            self._drop(best.path)
        log = _open(path, config, self._files, home_of(path), best.topic_id)
        (path / NOTE).unlink(missing_ok=True)
        logger.warning("%s is in use again: it was the stray %s", path, best.path)
        return log

    def forget(self, home: Path) -> None:
        """The directory is offline."""
        for path in [one for one in self._strays if one.parent == home]:
            self._drop(path)

    def delete(self, topic_id: uuid.UUID, partition: int) -> list[Path]:
        """The topic of this id was deleted: forget its strays of this partition; returns the folders to remove."""
        gone = [one.path for one in self._of.pop((topic_id, partition), ())]
        for path in gone:
            del self._strays[path]
        return gone

    def refresh(self) -> None:
        """Measure the strays, and forget those whose folders somebody has removed. Blocking, any thread."""
        found = {}
        for path in list(self._strays):
            try:
                with os.scandir(path) as entries:
                    found[path] = sum(entry.stat().st_size for entry in entries)
            except FileNotFoundError:
                if not path.exists():
                    self._drop(path)
            except OSError:
                found[path] = 0
        self.sizes = found


def _close(log: Log) -> None:
    """Write what the log has in memory only; opening it can do without."""
    try:
        log.durability.save_producers()
        if log.epochs.dirty:
            log.epochs.save()
        log.remove_deleted_files()
    except OSError as error:
        logger.warning("%s: not closed cleanly: %s", log.directory, error)


def _open(
    path: Path, config: LogConfig, files: FileCache, home: Home | None, topic_id: uuid.UUID | None
) -> Log:
    note = _note(path)
    log = Log.open(
        path,
        config,
        clean=False,
        recovery_point=note.get("recovery_point", 0),
        files=files,
        home=home,
        topic_id=topic_id,
    )
    start = note.get("log_start_offset", 0)
    if start <= log.log_end_offset:  # otherwise the note is not this log's
        log.delete_records_before(start)
    log.last_high_watermark = min(note.get("high_watermark", 0), log.log_end_offset)
    return log


def _note(path: Path) -> dict[str, int]:
    """Empty if there is none that can be used: then the whole log is read."""
    try:
        note = json.loads(read_file(f"{path}/{NOTE}"))
        return {name: int(note[name]) for name in ("log_start_offset", "recovery_point", "high_watermark")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: %s cannot be used: %r", path, NOTE, error)
        return {}
