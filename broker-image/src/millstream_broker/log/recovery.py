"""Putting a log's folder in order before it is used.

A crash may leave: a torn batch at the end of a segment; index entries that were never written out; a segment that was
being deleted (``.deleted``); a compaction that did not finish (``.cleaned``), or finished but did not replace its
sources yet (``.swap``); snapshots ahead of the log.

How much must be read depends on what is known (see ``Log.open``):

    after a clean stop                         headers behind the last index entry
    after kill -9, the machine having stayed up  those batches with their CRCs, for the page cache kept every write
    after a loss of power                      every batch behind the recovery point, that is, the last fsync
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from .files import FileCache, fsync_directory
from .index import OFFSET_ENTRY, TIME_ENTRY
from .producers import Producers, SnapshotError
from .segment import Segment

_SUFFIXES = (".log", ".index", ".timeindex")


@dataclass(slots=True)
class Folder:
    """The files of a log's folder: sizes by base offset."""

    logs: dict[int, int] = field(default_factory=dict)
    indexes: dict[int, int] = field(default_factory=dict)
    time_indexes: dict[int, int] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)


def tidy(directory: str) -> Folder:
    """Finish or undo what a crash interrupted; what is there then (blocking)."""
    names = os.listdir(directory)
    if any(name.endswith((".deleted", ".cleaned", ".swap", ".tmp")) for name in names):
        _complete_swaps(directory, names)
        for name in os.listdir(directory):
            if name.endswith((".deleted", ".cleaned", ".swap", ".tmp")):
                os.unlink(f"{directory}/{name}")
        fsync_directory(directory)
    folder = Folder()
    by_suffix = {".log": folder.logs, ".index": folder.indexes, ".timeindex": folder.time_indexes}
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if len(stem) != 20 or not stem.isdigit():
                continue
            if suffix == ".snapshot":
                folder.snapshots.append(int(stem))
            elif suffix in by_suffix:
                by_suffix[suffix][int(stem)] = entry.stat().st_size
    folder.snapshots.sort(reverse=True)
    for base in (folder.indexes.keys() | folder.time_indexes.keys()) - folder.logs.keys():
        for suffix in (".index", ".timeindex"):
            unlink(f"{directory}/{base:020d}{suffix}")
    return folder


def _complete_swaps(directory: str, names: list[str]) -> None:
    """A ``.log.swap`` is a whole compacted segment: it takes the place of every segment of its range of offsets."""
    swaps = sorted(name for name in names if name.endswith(".log.swap"))
    logs = [int(name[:20]) for name in names if name.endswith(".log") and name[:20].isdigit()]
    for name in swaps:
        base = int(name[:20])
        scan = Segment(FileCache(8), directory, base, size=os.stat(f"{directory}/{name}").st_size)
        last = base
        for _, header in scan.headers(0, suffix=".log.swap"):
            last = max(last, header.last_offset)
        for old in logs:
            if base <= old <= last:
                for suffix in _SUFFIXES:
                    unlink(f"{directory}/{old:020d}{suffix}")
        os.replace(f"{directory}/{name}", f"{directory}/{base:020d}.log")


def needs_new_indexes(folder: Folder, base: int) -> bool:
    """Whether a segment's indexes are missing or cannot be whole."""
    if not folder.logs.get(base):
        return False
    offsets, times = folder.indexes.get(base), folder.time_indexes.get(base)
    return offsets is None or times is None or bool(offsets % OFFSET_ENTRY.size or times % TIME_ENTRY.size)


def check_tail(segment: Segment, *, from_offset: int, checksums: bool) -> tuple[int, bool]:
    """Read a segment from the last index entry before ``from_offset``, bringing its indexes up to date.

    Cuts it at the end of the last whole valid batch. Returns the next offset, and whether the segment was whole.
    """
    whole = True
    position = segment.resume_indexing(from_offset)
    if checksums:
        first = segment.header_at(position)
        end = segment.intact_end(position, first.base_offset if first and position else segment.base_offset)
        if end < segment.size:
            whole = False
            segment.truncate(end)
    next_offset, end = segment.base_offset, position
    for at, header in segment.headers(position):
        segment.add_index_entries(header, at)
        next_offset, end = header.next_offset, at + header.size
    if end < segment.size:  # only without checksums: it was not as clean as was claimed
        return check_tail(segment, from_offset=segment.base_offset, checksums=True)[0], False
    return next_offset, whole


def restore_producers(directory: str, snapshots: list[int], end_offset: int) -> tuple[Producers, int]:
    """The newest valid snapshot not after ``end_offset``, and its offset (-1: none). Removes those that are no good."""
    for offset in snapshots:
        path = f"{directory}/{offset:020d}.snapshot"
        if offset <= end_offset:
            try:
                with open(path, "rb") as file:
                    return Producers.decode(file.read()), offset
            except (OSError, SnapshotError):
                pass
        unlink(path)
    return Producers(), -1


def unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
