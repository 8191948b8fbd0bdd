"""Repairs a log's folder before it is used.

A crash may leave: a torn batch at the end of a segment; index entries that were never written out; a transaction index
without its last entries; a segment that was being deleted (``.deleted``); a compaction that did not finish
(``.cleaned``), or finished but did not replace its sources yet (``.swap``); snapshots ahead of the log.

The previous stop determines how much to read (see ``Log.open``):

    after a clean stop                           headers after the last index entry
    after kill -9, if the machine stayed up      those batches with their CRCs, because the page cache kept every write
    after a loss of power                        every batch after the recovery point, that is, the last fsync

Data written by Kafka before 0.11 (message formats 0 and 1) is no torn tail and must not be truncated: OldFormatError.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from millstream_kafka.batch import MAGIC
from millstream_kafka.control_batch import read_marker

from . import transaction_index
from .config import LogConfig
from .epochs import LeaderEpochs
from .files import FileCache, fsync_directory, read_file
from .index import OFFSET_ENTRY, TIME_ENTRY
from .producer_state import ProducerStateManager, SnapshotError
from .segment import SUFFIXES, Segment
from .segments import Segments

logger = logging.getLogger(__name__)

_INTERRUPTED = (".deleted", ".cleaned", ".swap", ".tmp")
_OLD_HEAD = struct.Struct(">qiIb")
NOWHERE = 2**62  # an offset beyond every log: verify nothing


class OldFormatError(OSError):
    """A segment in message format 0 or 1."""


@dataclass(slots=True)
class Folder:
    """The files of a log's folder: sizes by base offset."""

    logs: dict[int, int] = field(default_factory=dict)
    indexes: dict[int, int] = field(default_factory=dict)
    time_indexes: dict[int, int] = field(default_factory=dict)
    transaction_indexes: dict[int, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)


def is_interrupted(directory: str) -> bool:
    """Whether there are files for :func:`tidy` to remove or rename (blocking)."""
    return any(name.endswith(_INTERRUPTED) for name in os.listdir(directory))


def tidy(directory: str) -> Folder:
    """Finish or undo interrupted work; returns the remaining files (blocking)."""
    entries = list(os.scandir(directory))
    if any(entry.name.endswith(_INTERRUPTED) for entry in entries):
        _complete_swaps(directory, [entry.name for entry in entries])
        for name in os.listdir(directory):
            if name.endswith(_INTERRUPTED):
                os.unlink(f"{directory}/{name}")
        fsync_directory(directory)
        entries = list(os.scandir(directory))
    folder = Folder()
    by_suffix = {
        ".log": folder.logs,
        ".index": folder.indexes,
        ".timeindex": folder.time_indexes,
        transaction_index.SUFFIX: folder.transaction_indexes,
    }
    for entry in entries:
        stem, dot, suffix = entry.name.partition(".")
        if len(stem) != 20 or not stem.isdigit():
            continue
        if suffix == "snapshot":
            folder.snapshots.append(int(stem))
        elif (sizes := by_suffix.get(dot + suffix)) is not None:
            sizes[int(stem)] = entry.stat().st_size
    for base in (folder.indexes.keys() | folder.time_indexes.keys()) - folder.logs.keys():
        for suffix in (".index", ".timeindex"):
            unlink(f"{directory}/{base:020d}{suffix}")
    for base in folder.transaction_indexes.keys() - folder.logs.keys():
        unlink(f"{directory}/{base:020d}{transaction_index.SUFFIX}")
        del folder.transaction_indexes[base]
    return folder


def _complete_swaps(directory: str, names: list[str]) -> None:
    """Complete compactions: a ``.log.swap`` is a whole segment, which replaces all segments in its offset range."""
    swaps = sorted(name for name in names if name.endswith(".log.swap"))
    bases = {int(name[:20]) for name in names if name[:20].isdigit()}  # an index may be left without its log
    for name in swaps:
        base = int(name[:20])
        scan = Segment(FileCache(), directory, base, size=os.stat(f"{directory}/{name}").st_size)
        last = max((header.last_offset for _, header in scan.headers(0, suffix=".log.swap")), default=base)
        for old in bases:
            if base <= old <= last:
                for suffix in SUFFIXES:
                    unlink(f"{directory}/{old:020d}{suffix}")
                if old != base:
                    unlink(f"{directory}/{old:020d}{transaction_index.SUFFIX}")
        with contextlib.suppress(FileNotFoundError):  # it may be in its place already
            path = f"{directory}/{base:020d}{transaction_index.SUFFIX}"
            os.replace(path + ".swap", path)
        os.replace(f"{directory}/{name}", f"{directory}/{base:020d}.log")


def _needs_new_indexes(folder: Folder, base: int) -> bool:
    """Whether a segment's indexes are missing or cannot be whole."""
    offsets, times = folder.indexes.get(base), folder.time_indexes.get(base)
    return offsets is None or times is None or bool(offsets % OFFSET_ENTRY.size or times % TIME_ENTRY.size)


def load(
    path: str,
    files: FileCache,
    config: LogConfig,
    *,
    from_offset: int | None,
    log_start_offset: int,
    now_ms: int,
    lost_aborted: Collection[int] = (),
) -> tuple[Segments, int, int, ProducerStateManager, LeaderEpochs]:
    """The log in ``path``: segments, start and end offset, producers, epochs.

    ``from_offset``: verify the batches from there on (at least those that no index entry confirms); None: the log was
    closed cleanly. ``lost_aborted``: segments whose transaction index has lost something.
    """
    interval = config.index_interval_bytes
    segments = Segments(path, files)
    folder = tidy(path)
    for base in sorted(folder.logs):
        segments.add(
            segments.segment(base, size=folder.logs[base], created_ms=now_ms, index_interval_bytes=interval)
        )
    if not segments:
        segments.create(log_start_offset, now_ms, interval)
    for base in folder.transaction_indexes:
        segments.aborted.found(base)
    end_offset = _check(segments, folder, from_offset)
    if end_offset < log_start_offset:  # everything left lies before the log start; offsets never go back
        segments.set_aside(0, len(segments))
        segments.create(log_start_offset, now_ms, interval)
        end_offset = log_start_offset
    lost = [*segments.aborted.unsound(), *lost_aborted]
    if lost:
        logger.warning(
            "%s: the transaction index is damaged: noting the aborted transactions from offset %d on again",
            path,
            min(lost),
        )
    if from_offset is not None:
        segments.aborted.truncate_to(end_offset)
        if from_offset < end_offset:  # the machine restarted: later transaction indexes may be missing
            lost.append(segments[segments.index_of(from_offset)].base_offset)
    if lost:
        _restore_aborted(segments, folder.snapshots, min(lost))
    producers = restore_producers(segments, folder.snapshots, end_offset, now_ms)
    epochs = LeaderEpochs(path)
    doubtful = end_offset if from_offset is None else from_offset
    if not epochs.load():
        doubtful = 0
    epochs.truncate_from_end(end_offset)
    if doubtful < end_offset:
        for header in segments.headers_from(max(doubtful, segments.first_offset)):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    for segment in segments:
        segment.unload()
    return segments, max(log_start_offset, segments.first_offset), end_offset, producers, epochs


def _check(segments: Segments, folder: Folder, from_offset: int | None) -> int:
    """Verify batches, truncate a torn tail, rebuild indexes; returns the end offset."""
    checksums = from_offset is not None
    refuse_old_format(segments[0], 0)
    if from_offset is None:
        from_offset = NOWHERE
    first = segments.index_of(from_offset)
    for segment in segments[:first]:
        if _needs_new_indexes(folder, segment.base_offset):
            segment.rebuild_indexes()
            segment.unload()
    end_offset = segments.first_offset
    for index, segment in enumerate(segments[first:], first):
        base = segment.base_offset
        if not (segment.size or folder.indexes.get(base) or folder.time_indexes.get(base)):
            end_offset = base  # all its files are empty
            continue
        unindexed = _needs_new_indexes(folder, segment.base_offset)
        start = segment.base_offset if unindexed else from_offset
        end_offset, whole = check_tail(segment, from_offset=start, checksums=checksums)
        if not whole:
            logger.warning(
                "%s: truncated at offset %d, byte %d: no valid batch follows",
                segment.path(),
                end_offset,
                segment.size,
            )
            for later in segments[index + 1 :]:
                logger.warning("%s: dropped: it is beyond the truncation", later.path())
            segments.set_aside(index + 1, len(segments))
            segments.remove_deleted_files()
            break
        if segment is not segments.active:
            segment.finish()
    segments.changed()
    return end_offset


def check_tail(segment: Segment, *, from_offset: int, checksums: bool) -> tuple[int, bool]:
    """Read a segment from the last index entry before ``from_offset``, bringing its indexes up to date.

    Cuts it at the end of the last whole valid batch. Returns the next offset, and whether the segment was whole.
    """
    whole = True
    position = segment.resume_indexing(from_offset)
    if checksums:
        end = segment.intact_end(position, segment.base_offset)
        if end < segment.size:
            whole = False
            refuse_old_format(segment, end)
            segment.truncate(end)
    next_offset, end = segment.base_offset, position
    for at, header in segment.headers(position):
        segment.add_index_entries(at, header.size, header.last_offset, header.max_timestamp)
        next_offset, end = header.next_offset, at + header.size
    if end < segment.size:  # only without checksums: the stop was not as clean as claimed
        return check_tail(segment, from_offset=segment.base_offset, checksums=True)[0], False
    return next_offset, whole


def refuse_old_format(segment: Segment, position: int) -> None:
    """OldFormatError for a message of format 0 or 1 (offset, size, CRC-32, format, …) in the place of a batch."""
    if segment.size - position < _OLD_HEAD.size:
        return
    head = segment.read(position, _OLD_HEAD.size)
    if len(head) < _OLD_HEAD.size:
        return
    _, size, crc, magic = _OLD_HEAD.unpack(head)
    if not 0 <= magic < MAGIC or not _OLD_HEAD.size <= size + 12 <= segment.size - position:
        return
    if crc == zlib.crc32(segment.read(position + 16, size - 4)):
        raise OldFormatError(
            errno.ENOTSUP,
            f"{segment.path()}: message format {magic} at byte {position}, only format 2 (Kafka 0.11 and later) can "
            "be read. Move the partition's folder away, or let Kafka 0.11 to 3.x write the topic anew",
        )


def restore_producers(
    segments: Segments, snapshots: Sequence[int], end_offset: int, now_ms: int
) -> ProducerStateManager:
    """The state at ``end_offset``: the newest valid snapshot before it, and the later batches, as if appended now.

    A snapshot from before the first segment does not count: the records in between are unknown. The aborted
    transactions after the snapshot are noted again.
    """
    producers = ProducerStateManager()
    known: int | None = None
    bases = {segment.base_offset for segment in segments}
    for offset in sorted(snapshots, reverse=True):
        path = snapshot_path(segments.path, offset)
        if known is not None and offset in bases:
            continue  # an older one, kept in case a newer one is lost
        if known is None and segments.first_offset <= offset <= end_offset:
            with contextlib.suppress(OSError, SnapshotError):
                producers, known = ProducerStateManager.decode(read_file(path)), offset
                continue
        unlink(path)
    if known != end_offset:
        _replay(segments, segments.first_offset if known is None else known, producers, now_ms)
    return producers


def _restore_aborted(segments: Segments, snapshots: Sequence[int], lost_from: int) -> None:
    """Note the aborted transactions again, from the newest valid snapshot at ``lost_from`` or before it."""
    for offset in sorted(snapshots, reverse=True):
        if segments.first_offset <= offset <= lost_from:
            try:
                producers = ProducerStateManager.decode(read_file(snapshot_path(segments.path, offset)))
            except (OSError, SnapshotError):
                continue
            _replay(segments, offset, producers, 0)
            return
    _replay(segments, segments.first_offset, ProducerStateManager(), 0)


def _replay(segments: Segments, start: int, producers: ProducerStateManager, now_ms: int) -> None:
    """Bring the producers, as of ``start``, and the transaction indexes up to date with the batches from there on."""
    segments.aborted.truncate_to(start)
    for segment, position, header in segments.batches_from(start):
        if header.producer_id >= 0:
            batch = segment.read(position, header.size) if header.is_control else b""
            marker = read_marker(batch) if batch else None
            if (ended := producers.update(header, now_ms, marker)) is not None:
                segments.aborted.add(segment.base_offset, ended)
    segments.aborted.spill(segments[segments.index_of(start)].base_offset)


def remove_snapshots(directory: str) -> None:
    """Blocking. OSError."""
    for name in os.listdir(directory):
        if name.endswith(".snapshot"):
            unlink(f"{directory}/{name}")


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}.snapshot"


def unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
