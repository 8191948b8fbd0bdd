"""Summaries of all logs, which a clean stop writes to ``.clean-logs`` so that the next start is fast.

If a log's folder and segments have not changed, the broker opens it from its summary, at the cost of one stat
for the folder and one for each segment and transaction index. It opens any other log from its files (``recovery``);
then the summary tells which transaction indexes have lost something, because a log without one may be whole. Summaries
are valid only with the marker of the same clean stop, which contains their checksum, and replace the files only within
one boot of the machine. The next start removes both files.

The file is JSON: a list of logs, each a list of the fields of :class:`Summary`.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from millstream_kafka.kafka_uuid import uuid_from, uuid_text

from . import recovery, transaction_index
from .config import LogConfig
from .epochs import LeaderEpochs
from .files import FileCache, read_file, write_atomically
from .producer_state import ProducerStateManager, SnapshotError
from .segment import Indexing
from .segments import Segments
from .state import LogState

logger = logging.getLogger(__name__)

FILE_NAME = ".clean-logs"
KEY = "logs.3"
"""Key of the checksum in the marker. The number is the version of the row format."""


class Summary(NamedTuple):
    """The state of a log when it was closed."""

    folder: str
    """The name of its folder."""
    topic_id: uuid.UUID | None
    changed_ns: int
    """Modification time of the folder in ns: the last time that a file was created, renamed or removed."""
    start: int
    end: int
    has_producers: bool
    """Whether the producer snapshot at the end of the log has producers."""
    epochs: list[tuple[int, int]]
    """Leader epochs and their first offsets."""
    segments: list[tuple[int, int, int]]
    """Base offset, size in bytes, and modification time in ns of each segment."""
    indexing: Indexing
    """The active segment's."""
    aborted: list[tuple[int, int, int]]
    """Base offset, size in bytes, and modification time in ns of each transaction index; size 0 if there is no file."""

    def is_of(self, path: str) -> bool:
        """Whether the folder at ``path`` is unchanged since. Blocking."""
        try:
            return (
                os.stat(path).st_mtime_ns == self.changed_ns
                and all(
                    _status(f"{path}/{base:020d}.log") == (size, changed_ns)
                    for base, size, changed_ns in self.segments
                )
                and all(_index_status(path, base) == (size, at_ns) for base, size, at_ns in self.aborted)
            )
        except OSError:
            return False

    def lost_aborted(self, path: str) -> list[int]:
        """The segments in ``path`` whose transaction index is not as large as it was. Blocking. OSError."""
        return [base for base, size, _ in self.aborted if _index_status(path, base)[0] != size]


def _status(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _index_status(path: str, base: int) -> tuple[int, int]:
    try:
        return _status(f"{path}/{base:020d}{transaction_index.SUFFIX}")
    except FileNotFoundError:
        return 0, 0


def of(log: LogState) -> Summary | None:
    """The summary of a closed log; None if the next start must read its files. Blocking."""
    path = log.segments.path
    try:
        if log.config.compacts and recovery.is_interrupted(path):
            return None
        indexing = log.segments.active.indexing
        segments = [(segment.base_offset, *_status(segment.path())) for segment in log.segments]
        aborted = [(base, *_index_status(path, base)) for base in log.segments.aborted.bases]
        changed_ns = os.stat(path).st_mtime_ns
    except OSError:
        return None
    if indexing is None or [size for _, size, _ in segments] != [segment.size for segment in log.segments]:
        return None
    return Summary(
        os.path.basename(path),
        log.topic_id,
        changed_ns,
        log.log_start_offset,
        log.log_end_offset,
        bool(log.producers.by_id),
        log.epochs.entries,
        segments,
        indexing,
        aborted,
    )


def reopen(
    path: str, files: FileCache, config: LogConfig, summary: Summary, *, now_ms: int
) -> tuple[Segments, int, int, ProducerStateManager, LeaderEpochs] | None:
    """Same result as ``recovery.load``, from a valid summary; None if the files must be read. Blocking."""
    segments = Segments(path, files)
    interval = config.index_interval_bytes
    for base, size, _ in summary.segments:
        segments.add(segments.segment(base, size=size, created_ms=now_ms, index_interval_bytes=interval))
    segments.active.resume(summary.indexing)
    for base, _, _ in summary.aborted:
        segments.aborted.found(base)
    producers = ProducerStateManager()
    if summary.has_producers:
        try:
            producers = ProducerStateManager.decode(read_file(recovery.snapshot_path(path, summary.end)))
        except (OSError, SnapshotError):
            return None
    epochs = LeaderEpochs(path)
    epochs.entries = summary.epochs
    epochs.truncate_from_end(summary.end)
    return segments, max(summary.start, segments.first_offset), summary.end, producers, epochs


def store(directory: str, summaries: Iterable[Summary]) -> str:
    """Write the summaries of a log directory; returns their checksum. Blocking. Raises OSError."""
    rows = [
        (summary.folder, None if summary.topic_id is None else uuid_text(summary.topic_id), *summary[2:])
        for summary in summaries
    ]
    data = json.dumps(rows, separators=(",", ":")).encode()
    write_atomically(f"{directory}/{FILE_NAME}", data)
    return _checksum(data)


def load(directory: str, checksum: str) -> dict[str, Summary]:
    """The summaries by folder; empty if the file is missing or has another checksum. Blocking."""
    try:
        data = read_file(f"{directory}/{FILE_NAME}")
    except OSError:
        return {}
    if _checksum(data) != checksum:
        logger.warning(
            "%s/%s is not from the last clean stop: reading the logs instead", directory, FILE_NAME
        )
        return {}
    ids = dict[str | None, uuid.UUID | None]({None: None})
    found = {}
    for row in json.loads(data):
        folder, text, changed_ns, start, end, has_producers, epochs, segments, indexing, aborted = row
        if text not in ids:
            ids[text] = uuid_from(text)
        found[folder] = Summary(
            folder,
            ids[text],
            changed_ns,
            start,
            end,
            has_producers,
            [(epoch, offset) for epoch, offset in epochs],
            [(base, size, at_ns) for base, size, at_ns in segments],
            Indexing(*indexing),
            [(base, size, at_ns) for base, size, at_ns in aborted],
        )
    return found


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"
