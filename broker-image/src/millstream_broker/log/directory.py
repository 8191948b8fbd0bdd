"""One log directory (an entry of ``log.dirs``): its owner, its last shutdown, and whether it is usable.

    .lock                                held while a broker uses the directory
    meta.properties                      version=0, cluster.id, broker.id: the owner of the data
    .kafka_cleanshutdown                 every log was closed; removed at start
    .clean-logs                          ours: the state of each log then (see ``summaries``); removed at start
    .boot-id                             ours: the boot of the machine in which the logs here were last written
    .generation                          ours: a number that rises (see ``generations``)
    .inventory                           ours: the logs of the broker in all its directories (see ``inventory``)
    recovery-point-offset-checkpoint     up to which offset each log is fsynced
    log-start-offset-checkpoint          starts moved by DeleteRecords
    cleaner-offset-checkpoint            up to which offset each log is compacted
    replication-offset-checkpoint        high watermarks of replicated partitions
    …-checkpoint.by-id                   ours: the same with topic ids (see ``checkpoints``)
    TOPIC-N/                             one partition (see ``folders``)

A clean stop need not fsync gigabytes: the page cache outlives the process. So the marker names the boot, and
``synced`` if everything was fsynced; it is valid if it is synced or if the machine has not restarted since. In the same
way, the boot id shows after kill -9 that every completed write is still there.

A disk that fails takes the whole directory offline (KIP-112): after :meth:`LogDir.fail` every log in it refuses calls,
until a restart has read its real contents. A disk that is merely full does not (``files.is_failure``).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.topic_partition import TopicPartition

from . import checkpoints, summaries
from .checkpoints import Checkpoint, CheckpointError, Identified
from .files import fsync_directory, is_failure, write_atomically
from .log import Log
from .summaries import Summary

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_ID = ".boot-id"
GENERATION = ".generation"
META_PROPERTIES = "meta.properties"
_CHECKPOINTS = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.CLEANER_OFFSETS,
    checkpoints.HIGH_WATERMARKS,
)


class LogDirError(Exception):
    """A log directory that cannot be used; the message names it and says what to do."""


class BrokenDirError(LogDirError):
    """The disk is at fault, not the configuration: other directories serve without this one."""


@dataclass(slots=True, eq=False)
class LogDir:
    """The loop's thread owns it; :meth:`fail` is for any thread, and "blocking" methods are for other threads."""

    path: Path
    on_failure: Callable[[LogDir], None] = lambda home: None
    """Called once, in the thread that met the error."""
    broker_id: int | None = None
    cluster_id: str | None = None
    directory_id: str = ""
    """Empty before :meth:`own_id` if there was none."""
    is_from_another_cluster: bool = False
    """Whether it was another cluster's until now."""
    clean: bool = False
    same_boot: bool = False
    generation: int | None = None
    """The generation as found or last written; None if there was none, 0 if it cannot vouch for its logs."""
    is_older_copy: bool = False
    """Whether it is behind its last known generation, although its marks say that nothing was lost."""
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    rolled: set[Log] = field(default_factory=set)
    """Logs with closed segments that may not be on the disk yet."""
    moved: set[Log] = field(default_factory=set)
    """Logs whose start has moved since :meth:`commit_starts`."""
    failure: OSError | None = None
    closing: bool = False
    """Begin no more fsyncs, except those of closing itself."""
    _lock_fd: int | None = None
    _failing: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[str, Checkpoint] = field(default_factory=dict)
    """The checkpoints, between the start and the opening of the logs."""
    _summarized: str = ""
    """The checksum of the summaries of the last clean stop; empty if there are none."""
    _summaries: dict[str, Summary] = field(default_factory=dict)
    """Summaries by folder, between the start and the opening of the logs."""
    _high_watermarks: Identified | None = None
    """As last written."""
    _writing: threading.Lock = field(default_factory=threading.Lock)
    """Held while a checkpoint is written: the last one written must be the newest."""

    # -- failures ---------------------------------------------------------------------------------------------

    def fail(self, error: OSError) -> None:
        """Take the directory offline, with every log in it."""
        with self._failing:
            if self.failure is not None:
                return
            self.failure = error
        logs = self.all_logs().values()
        for log in logs:
            log.offline = error
        logger.error(
            "log.dirs: %s is offline until a restart, with its %d partitions: %s",
            self.path,
            len(logs),
            describe(error),
        )
        self.on_failure(self)

    def check(self, error: OSError) -> None:
        """Handle an error outside a log."""
        if is_failure(error):
            self.fail(error)

    def add(self, key: TopicPartition, log: Log) -> None:
        self.logs[key] = log
        if self.failure is not None:  # while it was being opened
            log.offline = self.failure

    def has(self, key: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Whether the log of this name belongs to that topic. Any thread."""
        log = self.logs.get(key)
        return log is not None and log.topic_id == topic_id

    def all_logs(self) -> dict[TopicPartition, Log]:
        """A copy, made in one step. Any thread: another one may be opening logs."""
        return self.logs.copy()

    # -- ownership --------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Create it, lock it and read its owner. Blocking. LogDirError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BrokenDirError(
                f"log.dirs: {self.path} cannot be used: {error.strerror}."
                " Make it a directory that this user can write."
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise LogDirError(
                f"log.dirs: {self.path} is in use by another broker."
                " Stop that one, or give this one its own log.dirs."
            ) from error
        self._lock_fd = fd
        try:
            self._read_identity()
        except LogDirError:
            self.unlock()
            raise

    @property
    def is_locked(self) -> bool:
        return self._lock_fd is not None

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _read_identity(self) -> None:
        path = self.path / META_PROPERTIES
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except OSError as error:
            raise BrokenDirError(f"log.dirs: {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise LogDirError(
                f"{path} cannot be read: {error}. Restore it, or move {self.path} away."
            ) from error
        properties = dict(_properties(text))
        broker_id = properties.get("broker.id", properties.get("node.id", ""))
        try:
            self.broker_id = int(broker_id) if broker_id else None
        except ValueError:
            raise LogDirError(f"{path}: broker.id={broker_id} is not a number") from None
        self.cluster_id = properties.get("cluster.id")
        self.directory_id = properties.get("directory.id", "")

    def identify(self, broker_id: int, cluster_id: str, *, moves: bool = False) -> None:
        """Check that it belongs to this broker, and mark a new one. Blocking. LogDirError.

        ``moves``: it may be another cluster's, and belongs to this one from now on.
        """
        if self.broker_id is not None and self.broker_id != broker_id:
            raise LogDirError(
                f"log.dirs: {self.path} belongs to broker.id={self.broker_id}, this is broker.id={broker_id}. "
                "Set that broker.id, or give this broker its own log.dirs."
            )
        if moves and self.cluster_id not in (None, cluster_id):
            logger.warning("%s: it belonged to cluster %s, now to %s", self.path, self.cluster_id, cluster_id)
            self.broker_id, self.is_from_another_cluster = None, True
        elif self.cluster_id is not None and self.cluster_id != cluster_id:
            raise LogDirError(
                f"log.dirs: {self.path} belongs to cluster {self.cluster_id}, this is cluster {cluster_id}. "
                "Join that cluster, or give this broker its own log.dirs."
            )
        if self.broker_id is None or self.cluster_id is None:
            self._write(META_PROPERTIES, f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n")
            self.broker_id, self.cluster_id = broker_id, cluster_id

    def own_id(self) -> str:
        """Its unique id (`directory.id`, KIP-858), created if it has none. Blocking. OSError, LogDirError."""
        text = (self.path / META_PROPERTIES).read_text("utf-8")
        self.directory_id = dict(_properties(text)).get("directory.id", "")
        if not self.directory_id:
            made = uuid_text(uuid.uuid4())
            self._write(META_PROPERTIES, f"{text.rstrip()}\ndirectory.id={made}\n")
            self.directory_id = made
        return self.directory_id

    # -- state at the last stop -------------------------------------------------------------------------------

    def read_marks(self, boot: str, known: Mapping[str, int]) -> None:
        """Read whether the last broker stopped cleanly here, and in this boot of the machine. Blocking.

        ``known`` are generations that directories have had. In an older copy the marks are outdated: neither the
        page cache nor a clean stop vouches for the copied data.
        """
        marker = dict(_properties(read_text(self.path / CLEAN_SHUTDOWN)))
        self.same_boot = bool(boot) and read_text(self.path / BOOT_ID) == boot
        self.clean = bool(marker) and (self.same_boot or marker.get("synced") == "true")
        self._summarized = marker.get(summaries.KEY, "")
        generation = read_text(self.path / GENERATION)
        self.generation = (int(generation) if generation.isdecimal() else 0) if generation else None
        behind = (self.generation or 0) < known.get(self.directory_id, 0)
        self.is_older_copy = behind and (self.clean or self.same_boot)
        if self.is_older_copy:
            self.clean = self.same_boot = False

    def mark_in_use(self, boot: str) -> None:
        """Mark it as in use: without a clean stop, the next start assumes a crash. Blocking. OSError, LogDirError."""
        if not (self.same_boot or self.clean):  # a restart must not forget this
            self._write(GENERATION, "0\n")
        if not self.same_boot:
            self._write(BOOT_ID, boot)
        (self.path / summaries.FILE_NAME).unlink(missing_ok=True)
        (self.path / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        fsync_directory(str(self.path))

    def write_generation(self, generation: int, *, sync: bool) -> None:
        """Blocking. OSError."""
        write_atomically(str(self.path / GENERATION), f"{generation}\n".encode(), sync=sync)
        self.generation = generation

    def mark_clean(self, *, synced: bool) -> None:
        """Mark a clean stop, with every log closed. Blocking. LogDirError."""
        text = f"version=0\nsynced={'true' if synced else 'false'}\n"
        logs = [log for log in self.all_logs().values() if not log.is_deleted]
        if found := [summary for summary in map(summaries.of, logs) if summary is not None]:
            try:
                text += f"{summaries.KEY}={summaries.store(str(self.path), found)}\n"
            except OSError as error:
                logger.warning(
                    "%s: cannot write %s, so the next start takes longer: %s",
                    self.path,
                    summaries.FILE_NAME,
                    describe(error),
                )
        self._write(CLEAN_SHUTDOWN, text)

    def _write(self, name: str, text: str) -> None:
        try:
            write_atomically(str(self.path / name), text.encode())
        except OSError as error:
            raise LogDirError(
                f"log.dirs: {self.path / name} cannot be written: {error.strerror}. "
                "Make the directory writable and leave it some space."
            ) from error

    # -- checkpoints ------------------------------------------------------------------------------------------

    def load_checkpoints(self) -> None:
        """Read the last broker's notes, for :meth:`checkpointed` and :meth:`summary`. Blocking."""
        self._found = {name: self._load(name) for name in _CHECKPOINTS}
        if self.clean and self._summarized:
            self._summaries = summaries.load(str(self.path), self._summarized)

    def summary(self, folder: Path) -> Summary | None:
        """The log in this folder as the last broker closed it, if nobody has changed it since. Blocking, any thread."""
        summary = self._summaries.get(folder.name)
        if summary is None or not self.same_boot:  # the page cache may not have reached the disk
            return None
        return summary if summary.is_of(str(folder)) else None

    def lost_aborted(self, folder: Path) -> list[int]:
        """The segments of the log in this folder that have lost some of their transaction index since the last clean
        stop. Blocking, any thread. OSError.
        """
        summary = self._summaries.get(folder.name)
        return [] if summary is None else summary.lost_aborted(str(folder))

    def _load(self, name: str) -> Checkpoint:
        """Load one checkpoint; empty if unreadable: then more of the logs is read."""
        try:
            return checkpoints.load(str(self.path / name))
        except (CheckpointError, OSError) as error:
            logger.warning("%s: continuing without it: the start reads more of the logs", error)
            return Checkpoint()

    def checkpointed(self, key: TopicPartition, topic_id: uuid.UUID | None) -> dict[str, int]:
        """The checkpoint entries of a log, by file name. Entries of another topic of that name are dropped."""
        found: dict[str, int] = {}
        void = []
        for name, checkpoint in self._found.items():
            if (offset := checkpoint.offsets.get(key)) is not None:
                if checkpoint.applies(key, topic_id):
                    found[name] = offset
                else:
                    void.append(f"{name} {offset}")
        if void:
            logger.warning(
                "%s: %s-%d has another topic id than these entries, which are ignored: %s",
                self.path,
                *key,
                ", ".join(void),
            )
        return found

    @property
    def is_identified(self) -> bool:
        """Whether the loaded checkpoints contain the topic ids of their entries."""
        return all(checkpoint.topic_ids is not None for checkpoint in self._found.values())

    def opened(self) -> None:
        """The logs have taken what they need from the checkpoints. Blocking. OSError."""
        if not self.is_identified:  # before another topic gets the first of these names
            self.checkpoint()
            known = {key: (log.topic_id, log.last_high_watermark) for key, log in self.logs.items()}
            self.write_high_watermarks({key: entry for key, entry in known.items() if entry[1]})
        self._found = {}
        self._summaries = {}

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets, and the ends of compacted parts. Blocking, any thread. OSError."""
        with self._writing, self._committing():
            points, starts, cleaned, claims = {}, {}, {}, []
            for key, log in self.all_logs().items():
                if log.is_deleted:
                    continue
                progress = log.progress()
                claims.append((log, progress.claims))
                points[key] = log.topic_id, progress.flushed
                if progress.moved_start is not None:
                    starts[key] = log.topic_id, progress.moved_start
                if log.config.compacts:
                    cleaned[key] = log.topic_id, progress.first_dirty
            # A start that moves takes the recovery point along, so it must not be the older one of the two.
            self._store(checkpoints.LOG_START_OFFSETS, starts)
            self._store(checkpoints.RECOVERY_POINTS, points)
            self._store(checkpoints.CLEANER_OFFSETS, cleaned)
            for log, claimed in claims:
                log.claimed = claimed

    def commit_starts(self) -> None:
        """Make the starts of all logs in ``moved`` durable, in one write. Blocking, any thread. OSError."""
        try:
            self._write_starts()
        except OSError as error:
            if is_failure(error):
                raise
            for log in self.moved.copy():  # a full disk has room then
                log.remove_deleted_files()
            self._write_starts()

    def _write_starts(self) -> None:
        with self._writing, self._committing():
            logs = [(key, log) for key, log in self.all_logs().items() if not log.is_deleted]
            starts = ((key, log.topic_id, log.moved_start()) for key, log in logs)
            moved = {key: (topic_id, start) for key, topic_id, start in starts if start is not None}
            self._store(checkpoints.LOG_START_OFFSETS, moved)

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        """Within it, all log starts are written: those of the logs in ``moved`` are durable at its end."""
        moved: list[tuple[Log, int]] = []
        try:
            with contextlib.suppress(KeyError):  # another thread may take the last one
                while True:
                    log = self.moved.pop()
                    moved.append((log, log.log_start_offset))
                    log.sync_removals()
            yield
        except BaseException:
            self.moved.update(log for log, _ in moved if not log.is_deleted)
            raise
        for log, start in moved:
            log.start_is_durable(start)

    def write_high_watermarks(self, entries: Identified) -> None:
        """Write high watermarks, if they have changed. Blocking, any thread. OSError."""
        with self._writing:
            if entries != self._high_watermarks:
                self._store(checkpoints.HIGH_WATERMARKS, entries, sync=False)
                self._high_watermarks = entries

    def _store(self, name: str, entries: Identified, *, sync: bool = True) -> None:
        checkpoints.store(str(self.path / name), entries, sync=sync)


def boot_id() -> str:
    """The id of this boot of the machine; empty if the system does not provide it."""
    return read_text(Path("/proc/sys/kernel/random/boot_id"))


def describe(error: OSError) -> str:
    return error.strerror or str(error)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith("#"):
            yield name.strip(), value.strip()
