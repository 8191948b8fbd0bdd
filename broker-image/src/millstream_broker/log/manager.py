"""The logs of a broker, in all its log directories.

A directory that fails, at the start or later, leaves ``dirs`` and is noted in ``offline``; the others continue. Its
partitions no longer count as ours, and :meth:`LogManager.get_or_create` does not recreate them by itself: the
caller must know which they are (:meth:`LogManager.forget_directory`).

A log belongs to the topic id in its folder (see ``folders``). There is one log per name; only at the start there may
be more, in several directories and of several topics, until :meth:`LogManager.release_others`. A log is deleted only if
the caller has seen its deletion; any other one that does not fit becomes a stray (see ``strays``).

Threads. The loop's thread calls everything except these, which run in another thread: :meth:`LogManager.start`
(before the loop serves), :meth:`checkpoint`, :meth:`remove_deleted`, :meth:`close` (when the loop no longer appends),
:meth:`put_aside`, :meth:`remove_stray`, :meth:`get_or_create` (one caller at a time). Retention and fsync are in
``upkeep``.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream_kafka.topic_partition import TopicPartition

from . import folders
from .checkpoints import Identified
from .compaction import Allowance, Compaction
from .compaction_due import dirtiest
from .config import LogConfig
from .directory import LogDir, LogDirError, boot_id, describe
from .files import FileCache
from .inventory import Inventory, Place
from .known_states import KnownStates
from .log import Log
from .log_dirs import LogDirs, broken
from .opening import SYNC_AT_CLOSE_BYTES, SYNC_AT_CLOSE_S, LogFolder, close_logs, open_logs
from .strays import Stray, Strays, distrust, log_end

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A log's state: at the start as found, later as it was when its directory failed."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None


class Released(NamedTuple):
    """A log that is not served any more, and whose folder still has its name."""

    home: LogDir
    key: TopicPartition
    log: Log
    stray: str = ""
    """Why it becomes a stray; empty if it was deleted."""
    is_replaced: bool = False
    """Whether another log takes its place."""


class LogManager(LogDirs):
    """``config_of(topic)`` returns a topic's LogConfig; without it every log has ``defaults``."""

    def __init__(
        self,
        log_dirs: Iterable[Path | str],
        defaults: LogConfig | None = None,
        *,
        config_of: Callable[[str], LogConfig] | None = None,
        files: FileCache | None = None,
    ) -> None:
        super().__init__(log_dirs)
        self.defaults = defaults or LogConfig()
        self.config_of = config_of or (lambda topic: self.defaults)
        self.files = FileCache() if files is None else files
        self.tree_in: Path | None = None
        """The directory with the tree of a broker by itself."""
        self.strays = Strays(self.files)
        self.inventory = Inventory()
        self.states = KnownStates()
        self._homes: dict[TopicPartition, LogDir] = {}
        self._deleting: list[Path] = []

    # -- start and stop ---------------------------------------------------------------------------------------

    def start(self, generations: Mapping[str, int] | None = None) -> list[Found]:
        """Open every log, in threads, verifying if necessary; returns the partitions found. Blocking.

        ``generations`` are the known ones of directories, by their ids: a directory with a lower one is an older copy.
        """
        boot = boot_id()
        to_open: list[LogFolder] = []
        for home in list(self.dirs):
            home.read_marks(boot, generations or {})
            try:
                found = folders.find(home.path)
            except OSError as error:
                self.leave_out(home, broken(home, error))
                continue
            self._deleting += found.deleted
            to_open += [LogFolder(home, path, key) for path, key in found.partitions]
            for path, key in found.strays:
                self.strays.found(path, key)
        opened = open_logs(to_open, self.dirs, self.config_of, self.files)
        for (home, path, _), log in opened:
            if isinstance(log, OSError) and home in self.dirs:
                logger.error("%s: cannot be opened: %s", path, describe(log))
                self.leave_out(home, broken(home, log))
        for (home, path, key), log in opened:
            if not isinstance(log, OSError) and home in self.dirs and self._is_best(home, path, key, log):
                self._add(home, key, log)
        for home in list(self.dirs):
            try:
                home.opened()
                home.mark_in_use(boot)
            except OSError as error:
                raise broken(home, error) from error
        self._take_inventory()
        return [Found(*key, log.topic_id) for home in self.dirs for key, log in home.logs.items()]

    def _take_inventory(self) -> None:
        """Note the logs found, and find out which are missing."""
        found = {
            (log.topic_id, key[1]): Place(key[0], str(home.path))
            for home in self.dirs
            for key, log in home.logs.items()
            if log.topic_id is not None
        }
        strays = {(stray.topic_id, stray.partition) for stray in self.strays if stray.topic_id is not None}
        homes = {home.path: home for home in self.dirs}
        for notes in (self.inventory.notes, self.states.notes):
            notes.failed = lambda directory, error: homes[directory].check(error)
        self.inventory.begin(homes, found, strays)
        self.states.begin(homes, {*found, *strays, *self.inventory.missing})
        self._identify()
        for (topic_id, partition), place in self.inventory.missing.items():
            logger.error(
                "log.dirs: the log %s-%d (topic id %s) is missing: it was in %s",
                place.topic,
                partition,
                topic_id,
                place.directory,
            )

    def _identify(self) -> None:
        """Give a log whose folder has lost its topic id the one that the inventory has for this place.

        An empty one stays as it is: it may stand for a log that is gone.
        """
        unknown = [
            (home, *entry) for home in self.dirs for entry in home.logs.items() if entry[1].topic_id is None
        ]
        for home, (topic, partition), log in unknown:
            owner = self.inventory.owner(Place(topic, str(home.path)), partition)
            if owner is not None and log.log_end_offset > log.log_start_offset:
                try:
                    self._identified(home, (topic, partition), owner)
                    logger.warning("%s: its topic id was lost, and is %s again", log.directory, owner)
                except LogDirError as error:
                    logger.error("%s: its topic id was lost, and cannot be written: %s", log.directory, error)

    def _is_best(self, home: LogDir, path: Path, key: TopicPartition, log: Log) -> bool:
        """Whether no other log of the same partition is more complete; the one that is not becomes a stray."""
        for other in self.dirs:
            if (rival := other.logs.get(key)) is None:
                continue
            if None in (rival.topic_id, log.topic_id):
                raise LogDirError(f"{path} and {rival.directory} hold the same partition. Move one away.")
            if rival.topic_id == log.topic_id:
                is_better = log_end(log) > log_end(rival)
                kept = path if is_better else rival.directory
                less = self._release(other, key) if is_better else Released(home, key, log)
                less.log.give_up()
                self._take_away(less._replace(stray=f"is less complete than {kept}, the same partition"))
                return is_better
        return True

    def distrust(self) -> None:
        """Coordination was restored: no log is truncated before a leader has confirmed it. Blocking."""
        for log in self:
            distrust(log)

    def _add(self, home: LogDir, key: TopicPartition, log: Log) -> None:
        home.add(key, log)
        self._homes[key] = home

    def close(self, *, sync_limit: int = SYNC_AT_CLOSE_BYTES, sync_for_s: float = SYNC_AT_CLOSE_S) -> None:
        """See :func:`close_logs`. Blocking."""
        close_logs(self.dirs, sync_limit=sync_limit, sync_for_s=sync_for_s)

    # -- failed directories -----------------------------------------------------------------------------------

    def forget_directory(self, home: LogDir) -> list[Found]:
        """Forget the partitions of a failed directory, and return them."""
        assert home.failure is not None
        if home not in self.dirs:
            return []
        self.dirs.remove(home)
        self.offline[home.path] = str(broken(home, home.failure))
        self.strays.forget(home.path)
        self.inventory.notes.leave(home.path)
        self.states.notes.leave(home.path)
        lost = []
        for key, log in home.all_logs().items():
            if self._homes.get(key) is home:
                del self._homes[key]
                lost.append(Found(*key, log.topic_id))
        for log in home.all_logs().values():
            log.segments.release()
        home.unlock()
        return lost

    # -- partitions -------------------------------------------------------------------------------------------

    def logs(self) -> list[tuple[TopicPartition, Log]]:
        """Every log as of now. Any thread: logs may come and go while the caller goes through them."""
        return [entry for home in list(self.dirs) for entry in home.all_logs().items()]

    def __iter__(self) -> Iterator[Log]:
        return iter([log for home in list(self.dirs) for log in home.all_logs().values()])

    def __len__(self) -> int:
        return len(self._homes)

    def get(self, topic: str, partition: int) -> Log | None:
        home = self._homes.get((topic, partition))
        return home.logs[topic, partition] if home is not None else None

    def log_of(self, topic_id: uuid.UUID, topic: str, partition: int) -> Log | None:
        """The log of that name if it is of this topic id, in whichever directory."""
        for home in self.dirs:
            if home.has((topic, partition), topic_id):
                return home.logs[topic, partition]
        return None

    def partitions(self) -> Mapping[TopicPartition, LogDir]:
        """Every partition and its directory."""
        return self._homes

    def get_or_create(self, topic: str, partition: int, topic_id: uuid.UUID | None = None) -> Log:
        """The log of a partition; a new one goes to the directory with the fewest. Blocks briefly."""
        key = (topic, partition)
        home = self._homes.get(key)
        if home is not None:
            return self._identified(home, key, topic_id)
        homes = {home.path: home for home in self.dirs if home.failure is None}
        strays = self.strays.of(topic_id, partition, homes)
        if strays and (log := self._take_back(key, strays, homes)) is not None:
            return log
        problems = []
        for home in sorted(self.dirs, key=lambda each: len(each.logs)):
            if home.failure is not None:
                continue
            path = home.path / f"{topic}-{partition}"
            is_new = not path.exists()
            try:
                if (
                    not is_new
                    and topic_id is not None
                    and folders.read_topic_id(path) not in (None, topic_id)
                ):
                    self.strays.add_folder(path, key, "belongs to another topic")
                    is_new = True
                path.mkdir(exist_ok=True)
                if topic_id is not None:  # before it has records
                    folders.write_topic_id(path, topic_id)
                config = self.config_of(topic)
                log = Log.open(path, config, clean=is_new, files=self.files, home=home, topic_id=topic_id)
            except OSError as error:
                problems.append(f"{path} cannot be made: {describe(error)}")
                if is_new:  # otherwise the next start would find the partition in two directories
                    folders.remove(path)
                home.check(error)
                continue
            self._add(home, key, log)
            self.inventory.add(topic_id, partition, Place(topic, str(home.path)))
            return log
        raise LogDirError("; ".join(problems) or "no log directory is left")

    def _take_back(
        self, key: TopicPartition, strays: Collection[Stray], homes: Mapping[Path, LogDir]
    ) -> Log | None:
        """None if somebody has removed the strays. Blocking. LogDirError."""
        home = homes[next(iter(strays)).path.parent]
        try:
            for directory in homes:
                path = directory / f"{key[0]}-{key[1]}"
                if path.exists():
                    self.strays.add_folder(path, key, "is not the log in use")
            log = self.strays.take_back(key, strays, self.config_of(key[0]), lambda path: homes[path.parent])
            if log is None:
                return None
        except OSError as error:
            home.check(error)
            raise LogDirError(
                f"{home.path}: {key[0]}-{key[1]} cannot be opened: {describe(error)}"
            ) from error
        home = homes[log.directory.parent]
        self._add(home, key, log)
        self.inventory.add(log.topic_id, key[1], Place(key[0], str(home.path)))
        return log

    def _identified(self, home: LogDir, key: TopicPartition, topic_id: uuid.UUID | None) -> Log:
        """Assign a log without a topic id (its broker died while creating the folder) to its topic."""
        log, (topic, partition) = home.logs[key], key
        if log.topic_id is None and topic_id is not None:
            try:
                folders.write_topic_id(log.directory, topic_id)
            except OSError as error:
                home.check(error)
                raise LogDirError(f"{log.directory} cannot be written: {describe(error)}") from error
            log.topic_id = topic_id
            self.inventory.add(topic_id, partition, Place(topic, str(home.path)))
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition: renames its folder now; :meth:`remove_deleted` removes it. Blocking."""
        self.put_aside(self.release([(topic, partition)]))

    def release(
        self, keys: Iterable[TopicPartition], stray: str = "", *, is_replaced: bool = False
    ) -> list[Released]:
        """Forget deleted partitions, or strays. Nothing may be opened under their names before :meth:`put_aside`."""
        homes = ((key, self._homes.pop(key, None)) for key in keys)
        return [
            self._release(home, key)._replace(stray=stray, is_replaced=is_replaced)
            for key, home in homes
            if home is not None
        ]

    @staticmethod
    def _release(home: LogDir, key: TopicPartition) -> Released:
        log = home.logs.pop(key)
        log.give_up()
        return Released(home, key, log)

    def release_others(self, key: TopicPartition, keep: Callable[[uuid.UUID | None], bool]) -> list[Released]:
        """Forget those logs of a name whose topic ids are not to be kept: strays. See :meth:`release`."""
        released = []
        for home in self.dirs:
            if (log := home.logs.get(key)) is None:
                continue
            if keep(log.topic_id):
                self._homes[key] = home
            else:
                released.append(self._release(home, key)._replace(stray="belongs to another topic"))
                if self._homes.get(key) is home:
                    del self._homes[key]
        return released

    def delete_strays(self, topic_id: uuid.UUID, partition: int) -> None:
        """The topic of this id was deleted: :meth:`remove_deleted` removes its strays."""
        self._deleting += self.strays.delete(topic_id, partition)

    def remove_stray(self, path: Path, since_ms: int) -> bool:
        """:meth:`remove_deleted` removes it. False if it is no stray any more, or its directory has failed. Blocking.

        OSError if it cannot be renamed.
        """
        home = next((home for home in self.dirs if home.path == path.parent), None)
        if home is None or home.failure is not None:
            return False
        try:
            target = self.strays.remove(path, since_ms)
        except OSError as error:
            home.check(error)
            raise
        if target is not None:
            self._deleting.append(target)
        return target is not None

    def remove_outdated_strays(self, retention_ms: int, now_ms: int) -> None:
        """Those that are older than ``retention_ms``; -1 keeps all. Blocking, any thread."""
        if retention_ms < 0:
            return
        for stray in self.strays.outdated(retention_ms, now_ms):
            with contextlib.suppress(OSError):
                self.remove_stray(stray.path, stray.since_ms)

    def put_aside(self, released: list[Released]) -> None:
        """Rename the folders; :meth:`remove_deleted` removes deleted ones. Blocking, in any thread.

        Empties the list, so that the logs are freed in this thread.
        """
        while released:
            self._take_away(released.pop())

    def _take_away(self, released: Released) -> None:
        home, key, log, stray, is_replaced = released
        home.rolled.discard(log)
        home.moved.discard(log)
        self.inventory.remove(log.topic_id, key[1])  # first: a log that is found again is noted again
        try:
            if stray:
                self.strays.add(key, log, stray, is_replaced=is_replaced)
            else:
                target = home.path / folders.name_when_deleted(key)
                log.move(target)
                self._deleting.append(target)
        except (
            OSError
        ) as error:  # then the next start finds it: as a stray, unless its topic is being deleted
            logger.error("%s: cannot be renamed: %s", log.directory, describe(error))
            home.check(error)

    # -- periodic work ----------------------------------------------------------------------------------------

    def next_compaction(
        self,
        now_ms: int,
        high_watermark_of: Callable[[TopicPartition], int] | None = None,
        *,
        allowance: Allowance | None = None,
        busy: Collection[Log] = (),
    ) -> Compaction | None:
        """The dirtiest log that is due and not ``busy``, for :class:`Compaction`."""
        return dirtiest(self.logs(), now_ms, high_watermark_of, allowance=allowance, busy=busy)

    def remove_deleted(self) -> None:
        """Unlink the files of deleted segments and partitions. Blocking, in any thread."""
        for log in self:
            try:
                log.remove_deleted_files()
            except OSError as error:
                refusal = log.failed(error)
                if not log.is_deleted:
                    logger.error("%s: cannot remove deleted files: %s", log.directory, refusal.message)
        removed = set()
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                path = self._deleting.pop()
                folders.remove(path)
                removed.add(str(path))
        if removed:
            self.files.forget_folders(removed)

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets, and the ends of compacted parts. Blocking, in any thread."""
        self.write_each(LogDir.checkpoint)

    def write_high_watermarks(self, entries: Identified) -> None:
        """Write all high watermarks. Blocking, in any thread."""
        homes = self._homes.copy()
        self.write_each(
            lambda home: home.write_high_watermarks(
                {
                    key: entry
                    for key, entry in entries.items()
                    if homes.get(key) is home and home.has(key, entry[0])
                }
            )
        )
