"""The log directories of a broker (``log.dirs``) and the logs in them.

    .lock                                held while a broker uses the directory
    meta.properties                      version=0, cluster.id, broker.id: whose data this is
    .kafka_cleanshutdown                 every log was closed; removed at start
    .boot-id                             ours: the boot of the machine in which the logs here were last written
    recovery-point-offset-checkpoint     how far each log is fsynced
    log-start-offset-checkpoint          starts moved by DeleteRecords
    cleaner-offset-checkpoint            how far each log is compacted
    TOPIC-N/                             one partition; partition.metadata in it has the topic's id
    TOPIC-N.UUID-delete/                 a deleted one, on its way out

A clean stop does not have to fsync gigabytes: the page cache outlives the process. So the marker names the boot, and
``synced`` when everything was fsynced; it holds if it is synced or if the machine has not restarted since. After kill
-9 the boot id tells in the same way that every completed write is still there.

Threads. The loop's thread calls everything but what is named here. In another thread: :meth:`LogManager.start`
(before the loop serves), :meth:`flush_due`, :meth:`checkpoint`, :meth:`remove_deleted`, :meth:`close` (when the loop
no longer appends), :meth:`get_or_create` (one caller at a time). :meth:`enforce_retention` is for the loop: it only
renames files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol.errors import ApiError
from . import checkpoints
from .checkpoints import CheckpointError, TopicPartition
from .compaction import Allowance, Compaction, due
from .config import LogConfig
from .files import FileCache, fsync_directory, write_atomically
from .log import Log

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_ID = ".boot-id"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")
_DELETED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-delete")
_SYNC_AT_CLOSE_BYTES = 64 << 20  # a clean stop fsyncs when no more than this is unwritten,
_SYNC_AT_CLOSE_SEGMENTS = 500  # in no more segments than this
_THREADS = 4


class LogDirError(Exception):
    """A log directory that cannot be used; the message names it and says what to do."""


class BrokenDirError(LogDirError):
    """The disk is at fault, not the configuration: where there are other directories, they serve without this one."""


@dataclass(slots=True)
class LogDir:
    path: Path
    lock_fd: int = -1
    broker_id: int | None = None
    cluster_id: str | None = None
    clean: bool = False
    same_boot: bool = False
    logs: dict[TopicPartition, Log] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """A partition folder as it was found at start."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None


class LogManager:
    """``config_of(topic)`` gives a topic's LogConfig; without it every log has ``defaults``."""

    def __init__(
        self,
        log_dirs: Iterable[Path | str],
        defaults: LogConfig | None = None,
        *,
        config_of: Callable[[str], LogConfig] | None = None,
        files: FileCache | None = None,
    ) -> None:
        self.dirs = [LogDir(Path(path)) for path in log_dirs]
        if not self.dirs:
            raise LogDirError("log.dirs names no directory")
        self.defaults = defaults or LogConfig()
        self.config_of = config_of or (lambda topic: self.defaults)
        self.files = FileCache() if files is None else files
        self.offline: dict[Path, str] = {}
        """Directories that could not be used at the start, and why; no longer in ``dirs``."""
        self.topic_ids: dict[TopicPartition, uuid.UUID] = {}
        self._homes: dict[TopicPartition, LogDir] = {}
        self._deleting: list[Path] = []

    # -- start and stop ---------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make and lock the directories, and read whose they are. Blocking.

        A directory that the disk does not let us use is left out, as in Kafka. LogDirError when none is left, or one
        is not ours.
        """
        for home in list(self.dirs):
            try:
                self._lock(home)
            except BrokenDirError as error:
                self._leave_out(home, error)
            except LogDirError:
                self.unlock()
                raise

    def _leave_out(self, home: LogDir, error: BrokenDirError) -> None:
        self._unlock(home)
        if len(self.dirs) == 1:
            raise error
        self.dirs.remove(home)
        self.offline[home.path] = str(error)
        logger.error(
            "%s The other directories serve; partitions in this one are offline until a restart.", error
        )

    def _lock(self, home: LogDir) -> None:
        path = home.path
        try:
            path.mkdir(parents=True, exist_ok=True)
            fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BrokenDirError(
                f"log.dirs: {path} cannot be used: {error.strerror}. Make it a directory that this user can write."
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise LogDirError(
                f"log.dirs: {path} is in use by another broker. Stop that one, or give this one its own log.dirs."
            ) from error
        home.lock_fd = fd
        try:
            self._read_identity(home)
        except LogDirError:
            self._unlock(home)
            raise

    @staticmethod
    def _unlock(home: LogDir) -> None:
        if home.lock_fd >= 0:
            os.close(home.lock_fd)
            home.lock_fd = -1

    def unlock(self) -> None:
        """Let go of the directories without closing any log: after a start that failed."""
        for home in self.dirs:
            self._unlock(home)

    @staticmethod
    def _read_identity(home: LogDir) -> None:
        path = home.path / META_PROPERTIES
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except OSError as error:
            raise BrokenDirError(f"log.dirs: {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise LogDirError(
                f"{path} cannot be read: {error}. Restore it, or move {home.path} away."
            ) from error
        properties = dict(_properties(text))
        broker_id = properties.get("broker.id", properties.get("node.id", ""))
        try:
            home.broker_id = int(broker_id) if broker_id else None
        except ValueError:
            raise LogDirError(f"{path}: broker.id={broker_id} is not a number") from None
        home.cluster_id = properties.get("cluster.id")

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Make sure that the directories are this broker's, and mark new ones so. Blocking."""
        for home in self.dirs:
            if home.broker_id is not None and home.broker_id != broker_id:
                raise LogDirError(
                    f"log.dirs: {home.path} belongs to broker.id={home.broker_id}, this is broker.id={broker_id}. "
                    "Set that broker.id, or give this broker its own log.dirs."
                )
            if home.cluster_id is not None and home.cluster_id != cluster_id:
                raise LogDirError(
                    f"log.dirs: {home.path} belongs to cluster {home.cluster_id}, this is cluster {cluster_id}. "
                    "Join that cluster, or give this broker its own log.dirs."
                )
            if home.broker_id is None or home.cluster_id is None:
                text = f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
                self._write(home, META_PROPERTIES, text)
                home.broker_id, home.cluster_id = broker_id, cluster_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the data is of, None when it is all new."""
        return next((home.cluster_id for home in self.dirs if home.cluster_id is not None), None)

    def start(self) -> list[Found]:
        """Open every log, in threads, verifying what has to be. The partitions found. Blocking."""
        boot = _boot_id()
        folders: list[tuple[LogDir, Path, TopicPartition]] = []
        for home in list(self.dirs):
            marker = dict(_properties(_read_text(home.path / CLEAN_SHUTDOWN)))
            home.same_boot = bool(boot) and _read_text(home.path / BOOT_ID) == boot
            home.clean = bool(marker) and (home.same_boot or marker.get("synced") == "true")
            try:
                folders += list(self._partition_folders(home))
            except OSError as error:
                self._leave_out(home, _broken(home, error))
        points = {id(home): self._read_checkpoint(home, checkpoints.RECOVERY_POINTS) for home in self.dirs}
        starts = {id(home): self._read_checkpoint(home, checkpoints.LOG_START_OFFSETS) for home in self.dirs}

        cleaned = {id(home): self._read_checkpoint(home, checkpoints.CLEANER_OFFSETS) for home in self.dirs}

        def load(home: LogDir, path: Path, key: TopicPartition) -> Log | OSError:
            try:
                return open_log(home, path, key)
            except OSError as error:
                return error

        def open_log(home: LogDir, path: Path, key: TopicPartition) -> Log:
            log = Log.open(
                path,
                self.config_of(key[0]),
                clean=home.clean,
                recovery_point=points[id(home)].get(key, 0),
                log_start_offset=starts[id(home)].get(key, 0),
                page_cache_kept=home.same_boot,
                files=self.files,
            )
            log.first_dirty_offset = min(cleaned[id(home)].get(key, 0), log.log_end_offset)
            return log

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="open-log") as pool:
            opened = list(pool.map(lambda folder: load(*folder), folders))
        for (home, path, _), log in zip(folders, opened, strict=True):
            if isinstance(log, OSError) and home in self.dirs:
                logger.error("%s: cannot be opened: %s", path, log.strerror or log)
                self._leave_out(home, _broken(home, log))
        found = []
        for (home, path, key), log in zip(folders, opened, strict=True):
            if isinstance(log, OSError) or home not in self.dirs:
                continue
            if key in self._homes:
                raise LogDirError(
                    f"{path} and {self._homes[key].logs[key].directory} hold the same partition. Move one away."
                )
            home.logs[key] = log
            self._homes[key] = home
            topic_id = _read_topic_id(path)
            if topic_id is not None:
                self.topic_ids[key] = topic_id
            found.append(Found(*key, topic_id))
        for home in list(self.dirs):
            try:
                if not home.same_boot:
                    self._write(home, BOOT_ID, boot)
                (home.path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
                fsync_directory(str(home.path))
            except OSError as error:
                raise _broken(home, error) from error
        return found

    def _partition_folders(self, home: LogDir) -> Iterator[tuple[LogDir, Path, TopicPartition]]:
        for path in sorted(home.path.iterdir()):
            if not path.is_dir():
                continue
            if _DELETED_FOLDER.fullmatch(path.name):
                self._deleting.append(path)
            elif match := _PARTITION_FOLDER.fullmatch(path.name):
                yield home, path, (match["topic"], int(match["partition"]))
            elif path.name != "lost+found":
                logger.warning("%s is not a partition's folder (TOPIC-NUMBER): left alone", path)

    @staticmethod
    def _read_checkpoint(home: LogDir, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(str(home.path / name))
        except (CheckpointError, OSError) as error:
            logger.warning("%s: going on without it, reading more of the logs", error)
            return {}

    def close(self, *, sync_limit: int = _SYNC_AT_CLOSE_BYTES) -> None:
        """Close every log and leave the marker of a clean stop. Blocking."""
        unflushed = [segment.size for log in self for segment in log.unflushed_segments]
        synced = sum(unflushed) <= sync_limit and len(unflushed) <= _SYNC_AT_CLOSE_SEGMENTS

        def close(log: Log) -> bool:
            try:
                log.close(sync=synced)
            except (OSError, ApiError) as error:
                logger.error("%s: not closed cleanly: %s", log.directory, error)
                return False
            return log.offline is None

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="close-log") as pool:
            for home in self.dirs:
                if home.lock_fd < 0:
                    continue
                clean = all(list(pool.map(close, home.logs.values())))
                try:
                    self._checkpoint(home)
                    if clean:
                        text = f"version=0\nsynced={'true' if synced else 'false'}\n"
                        self._write(home, CLEAN_SHUTDOWN, text)
                except (OSError, LogDirError) as error:
                    logger.error("%s: no clean shutdown marker: %s", home.path, error)
                self._unlock(home)

    # -- partitions -------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Log]:
        for home in self.dirs:
            yield from list(home.logs.values())

    def __len__(self) -> int:
        return len(self._homes)

    def get(self, topic: str, partition: int) -> Log | None:
        home = self._homes.get((topic, partition))
        return home.logs[topic, partition] if home is not None else None

    def partitions(self) -> Mapping[TopicPartition, LogDir]:
        """Every partition and the directory it is in."""
        return self._homes

    def get_or_create(self, topic: str, partition: int, topic_id: uuid.UUID | None = None) -> Log:
        """The log of a partition; a new one goes to the directory with the fewest. Blocking, a moment."""
        key = (topic, partition)
        home = self._homes.get(key)
        if home is not None:
            return home.logs[key]
        problems = []
        for home in sorted(self.dirs, key=lambda each: len(each.logs)):
            path = home.path / f"{topic}-{partition}"
            is_new = not path.exists()
            try:
                log = Log.open(path, self.config_of(topic), clean=True, files=self.files)
                if topic_id is not None:
                    write_atomically(
                        str(path / PARTITION_METADATA), _topic_id_text(topic_id).encode(), sync=False
                    )
                    self.topic_ids[key] = topic_id
            except OSError as error:
                problems.append(f"{path} cannot be made: {error.strerror}")
                if is_new:  # or the next start would find a partition in two directories
                    _remove_folder(path)
                continue
            home.logs[key] = log
            self._homes[key] = home
            return log
        raise LogDirError("; ".join(problems))

    def delete(self, topic: str, partition: int) -> None:
        """Take a partition away: its folder is renamed now, and removed by :meth:`remove_deleted`."""
        key = (topic, partition)
        home = self._homes.pop(key, None)
        if home is None:
            return
        self.topic_ids.pop(key, None)
        log = home.logs.pop(key)
        target = home.path / f"{_shortened(topic, partition)}.{uuid.uuid4().hex}-delete"
        log.move(target)
        self._deleting.append(target)

    # -- background work --------------------------------------------------------------------------------------

    def enforce_retention(
        self, now_ms: int, high_watermark_of: Callable[[TopicPartition], int] | None = None
    ) -> int:
        """Delete old segments, roll old active ones, forget idle producers; segments deleted. The loop's thread."""
        count = 0
        for key, home in list(self._homes.items()):
            log = home.logs[key]
            limit = high_watermark_of(key) if high_watermark_of else None
            try:
                count += log.delete_old_segments(now_ms, limit)
                log.roll_if_old(now_ms)
            except OSError as error:
                logger.error("%s: retention failed: %s", log.directory, error)
            log.expire_producers(now_ms)
        return count

    def next_compaction(
        self,
        now_ms: int,
        high_watermark_of: Callable[[TopicPartition], int] | None = None,
        *,
        allowance: Allowance | None = None,
        busy: Collection[Log] = (),
    ) -> Compaction | None:
        """The dirtiest log that is due and not ``busy``, for :class:`Compaction`. The loop's thread."""
        best: tuple[float, int, Log] | None = None
        for key, home in self._homes.items():
            log = home.logs[key]
            if not log.config.compacts or log.offline is not None or log in busy:
                continue
            limit = high_watermark_of(key) if high_watermark_of else log.log_end_offset
            found = due(log, now_ms, limit)
            if found is not None and (best is None or found[0] > best[0]):
                best = *found, log
        if best is None:
            return None
        return Compaction(best[2], best[1], now_ms=now_ms, allowance=allowance)

    def remove_deleted(self) -> None:
        """Unlink the files of deleted segments and partitions. Blocking, in any thread."""
        for log in self:
            log.remove_deleted_files()
        while self._deleting:
            _remove_folder(self._deleting.pop())

    def flush_due(self, now_ms: int, last_flush_ms: dict[Log, int]) -> None:
        """Flush logs whose flush.ms has passed. Blocking, in one other thread; the caller keeps ``last_flush_ms``."""
        for log in self:
            if not log.unflushed_messages:
                last_flush_ms[log] = now_ms
            elif now_ms - last_flush_ms.setdefault(log, now_ms) >= log.config.flush_ms:
                try:
                    log.flush()
                except ApiError as error:
                    logger.error("%s", error.message)
                last_flush_ms[log] = now_ms

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets. Blocking, in any thread, one at a time."""
        for home in self.dirs:
            if home.lock_fd >= 0:
                self._checkpoint(home)

    def _checkpoint(self, home: LogDir) -> None:
        logs = list(home.logs.items())
        points = {key: log.flushed_offset for key, log in logs}
        starts = {
            key: log.log_start_offset
            for key, log in logs
            if log.log_start_offset > log.segments[0].base_offset
        }
        cleaned = {key: log.first_dirty_offset for key, log in logs if log.config.compacts}
        checkpoints.write_offsets(str(home.path / checkpoints.CLEANER_OFFSETS), cleaned)
        checkpoints.write_offsets(str(home.path / checkpoints.RECOVERY_POINTS), points)
        checkpoints.write_offsets(str(home.path / checkpoints.LOG_START_OFFSETS), starts)

    @staticmethod
    def _write(home: LogDir, name: str, text: str) -> None:
        try:
            write_atomically(str(home.path / name), text.encode())
        except OSError as error:
            raise LogDirError(
                f"log.dirs: {home.path / name} cannot be written: {error.strerror}. "
                "Make the directory writable and leave it some space."
            ) from error


def _broken(home: LogDir, error: OSError) -> BrokenDirError:
    return BrokenDirError(f"log.dirs: {home.path} cannot be used: {error.strerror or error}.")


def _shortened(topic: str, partition: int) -> str:
    """A file name has at most 255 bytes; ``.UUID-delete`` needs 40 of them."""
    return f"{topic}-{partition}"[:200]


def _remove_folder(path: Path) -> None:
    try:
        for name in os.listdir(path):
            os.unlink(path / name)
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.error("%s: cannot be removed: %s", path, error)


def _boot_id() -> str:
    """The identity of this boot of the machine; empty where the system does not tell."""
    return _read_text(Path("/proc/sys/kernel/random/boot_id"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            yield name.strip(), value.strip()


def _topic_id_text(topic_id: uuid.UUID) -> str:
    encoded = urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {encoded}\n"


def _read_topic_id(path: Path) -> uuid.UUID | None:
    for line in _read_text(path / PARTITION_METADATA).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            try:
                return uuid.UUID(bytes=urlsafe_b64decode(value.strip() + "=="))
            except ValueError:
                logger.warning("%s: %s has no valid topic_id", path, PARTITION_METADATA)
    return None
