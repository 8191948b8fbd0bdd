"""Strays: logs that fit no topic, although nobody deleted them. A broker serves none of them, and removes none.

A log becomes a stray if coordination has no topic with its topic id, if its name belongs to another topic, if this
broker is not among its partition's replicas, or if there is a more complete log of the same partition. Its folder gets
the name ``TOPIC-N.TOPICID-stray`` (Kafka's suffix), in the same log directory. If a topic of that very id comes back,
with this broker among the replicas, the stray is its log again. Otherwise it stays until it is removed: by a request
(RemoveStrays), by hand, or when it is older than ``log.stray.retention.ms``.

A log that was a stray is *unconfirmed* until this broker leads with it, or a leader has it, too. So are all logs of a
broker that finds that coordination was restored from an older copy, and any log that ends before the last comparison of
logs (`Log.is_suspect`). If an unconfirmed log would have to be truncated, it becomes a stray instead, and an empty log
takes its place (`is_replaced`): which of the two histories counts is for people to decide, for example because a
partition was added again with the number of a lost one. Such a stray does not come back by itself. If the replica of an
unconfirmed log is removed, it also becomes a stray, because the assignment may be older than the log.

``.stray`` in the folder keeps the time at which the log became a stray, and what the checkpoints had about it:

    {"version": 1, "since_ms": 1764500000000, "log_start_offset": 100, "recovery_point": 5000, "high_watermark": 5200}

and `"replaced": 1` if another log has taken its place. In the folder of a log in use, the file marks it as unconfirmed.
The time is part of the stray's identity: a log that came back meanwhile, and is a stray again, is another one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
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

NOTE = folders.STRAY_NOTE
KNOWN_S = 3600.0
"""A stray is not removed by age before this process has known it for so long: until then its clock may be set."""

logger = logging.getLogger(__name__)


class Stray(NamedTuple):
    """A stray in a log directory; a long topic's name is shortened."""

    path: Path
    topic: str
    partition: int
    topic_id: uuid.UUID | None
    since_ms: int = 0
    is_replaced: bool = False
    """Whether another log has taken its place."""


class LogEnd(NamedTuple):
    """How complete a log is; the larger one is more complete."""

    epoch: int
    """Of its last record; -1 if unknown."""
    offset: int


def log_end(log: LogState) -> LogEnd:
    end = log.log_end_offset
    return LogEnd(log.epochs.of_last_record(end), end)


class Strays:
    """The strays of all log directories. The loop's thread and one that opens logs use it."""

    def __init__(self, files: FileCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._known: dict[Path, float] = {}
        """When this process found or added each stray."""
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
        self._put(Stray(path, *key, topic_id, _since(path), bool(_note(path).get("replaced"))))
        logger.warning(
            "%s is a stray (topic id %s): its log is kept and not served. Remove it with `millstream stray remove` if"
            " nobody needs it.",
            path,
            topic_id,
        )

    def add(self, key: TopicPartition, log: Log, why: str, *, is_replaced: bool = False) -> None:
        """Turn a log into a stray: nobody writes to it any more. Blocking. OSError: its folder is unchanged."""
        _close(log)
        before, end = log.directory, log_end(log)
        since_ms = _write_note(
            before,
            log_start_offset=log.log_start_offset,
            recovery_point=log.flushed_offset,
            high_watermark=log.last_high_watermark,
            **({"replaced": 1} if is_replaced else {}),
        )
        target = self._target(before.parent, key, log.topic_id)
        log.move(target)
        self._added(before, Stray(target, *key, log.topic_id, since_ms, is_replaced), why)
        self._ends[target] = end

    def add_folder(self, path: Path, key: TopicPartition, why: str) -> None:
        """The same for a folder that is not open. Blocking. OSError."""
        topic_id = folders.read_topic_id(path)
        since_ms = _write_note(path)
        target = self._target(path.parent, key, topic_id)
        path.rename(target)
        self._added(path, Stray(target, *key, topic_id, since_ms), why)

    @staticmethod
    def _target(home: Path, key: TopicPartition, topic_id: uuid.UUID | None) -> Path:
        target = home / folders.name_when_stray(key, topic_id)
        return home / folders.name_when_stray(key, None) if target.exists() else target

    def _added(self, before: Path, stray: Stray, why: str) -> None:
        self._put(stray)
        logger.warning(
            "%s (topic id %s) %s: it is a stray now, kept and not served, in %s",
            before,
            stray.topic_id,
            why,
            stray.path,
        )

    def _put(self, stray: Stray) -> None:
        self._strays[stray.path] = stray
        self._known[stray.path] = self._clock()
        self._of.setdefault((stray.topic_id, stray.partition), []).append(stray)

    def _drop(self, path: Path) -> None:
        if (stray := self._strays.pop(path, None)) is not None:
            key = stray.topic_id, stray.partition
            self._of[key] = [other for other in self._of[key] if other != stray]
            self._known.pop(path, None)
            self._ends.pop(path, None)

    def of(self, topic_id: uuid.UUID | None, partition: int, homes: Collection[Path]) -> list[Stray]:
        """The strays of a partition in these directories that may be its log again."""
        if topic_id is None:
            return []
        return [
            stray
            for stray in self._of.get((topic_id, partition), ())
            if stray.path.parent in homes and not stray.is_replaced
        ]

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
    ) -> Log | None:
        """The most complete of a partition's strays, its log again; None if all are gone. Blocking. OSError."""
        with self._opening:
            strays = [
                stray
                for stray in strays
                if self._strays.get(stray.path) == stray and self._exists(stray.path)
            ]
            if not strays:
                return None
            best = max(strays, key=self.end) if len(strays) > 1 else strays[0]
            path = best.path.with_name(f"{key[0]}-{key[1]}")
            best.path.rename(path)
            self._drop(best.path)
        log = _open(path, config, self._files, home_of(path), best.topic_id)
        log.unconfirmed = True
        logger.warning("%s is in use again: it was the stray %s", path, best.path)
        return log

    def forget(self, home: Path) -> None:
        """The directory is offline."""
        for path in [folder for folder in self._strays if folder.parent == home]:
            self._drop(path)

    def _exists(self, path: Path) -> bool:
        """Forget a stray whose folder somebody has removed."""
        if path.exists():
            return True
        self._drop(path)
        return False

    def delete(self, topic_id: uuid.UUID, partition: int) -> list[Path]:
        """The topic of this id was deleted: forget its strays of this partition; returns the folders to remove."""
        gone = [stray.path for stray in self._of.get((topic_id, partition), ())]
        for path in gone:
            self._drop(path)
        return gone

    def remove(self, path: Path, since_ms: int) -> Path | None:
        """Rename a stray's folder to that of a deleted log, and return the new path; None if it is no stray any more.

        It is none if its folder is gone, or its log has been in use since then. Blocking, any thread. OSError.
        """
        with self._opening:
            stray = self._strays.get(path)
            if stray is None or stray.since_ms != since_ms or not self._exists(path):
                return None
            target = path.with_name(folders.name_when_deleted((stray.topic, stray.partition)))
            path.rename(target)
            self._drop(path)
        logger.warning("%s (topic id %s): the stray is removed", path, stray.topic_id)
        return target

    def outdated(self, retention_ms: int, now_ms: int) -> list[Stray]:
        """The strays that are older than this, and that this process has known for an hour."""
        now = self._clock()
        return [
            stray
            for stray in self
            if now_ms - stray.since_ms >= retention_ms and now - self._known.get(stray.path, now) >= KNOWN_S
        ]

    def refresh(self) -> None:
        """Measure the strays, and forget those whose folders somebody has removed. Blocking, any thread."""
        found = {}
        for path in list(self._strays):
            try:
                with os.scandir(path) as entries:
                    found[path] = sum(entry.stat().st_size for entry in entries)
            except FileNotFoundError:
                self._exists(path)
            except OSError:
                found[path] = 0
        self.sizes = found


def distrust(log: Log) -> None:
    """Coordination was restored from an older copy: the log is unconfirmed. Blocking."""
    log.unconfirmed = True
    _write_note(log.directory, log_start_offset=log.log_start_offset, high_watermark=log.last_high_watermark)


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


def _write_note(path: Path, **offsets: int) -> int:
    """Returns the time in it. Blocking."""
    since_ms = int(time.time() * 1000)
    note = {"version": 1, "since_ms": since_ms, **offsets}
    try:
        write_atomically(f"{path}/{NOTE}", json.dumps(note).encode(), sync=False)
    except OSError as error:  # a full disk: then the whole log is read when it is opened
        logger.warning("%s: cannot write %s: %s", path, NOTE, error)
    return since_ms


def _note(path: Path) -> dict[str, int]:
    """Empty if there is none that can be used: then the whole log is read."""
    try:
        note = json.loads(read_file(f"{path}/{NOTE}"))
        return {name: int(value) for name, value in note.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        logger.warning("%s: %s cannot be used: %r", path, NOTE, error)
        return {}


def _since(path: Path) -> int:
    """When the log became a stray; without a note, when a file was last added to its folder. Blocking."""
    if (since_ms := _note(path).get("since_ms")) is not None:
        return since_ms
    try:
        return int(path.stat().st_mtime * 1000)
    except OSError:
        return int(time.time() * 1000)
