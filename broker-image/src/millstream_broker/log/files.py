"""Open files, shared by every log of a broker and bounded in number.

A broker may hold hundreds of thousands of segments of three files each, so no log keeps a descriptor of its own: it
asks the :class:`FileCache` each time, which keeps the most recently used ones open.

Invariants: a caller holds the :class:`OpenFile` while it uses the file. That is why the calls are methods: another
thread might close a bare descriptor, and the kernel reuse it for another file. A descriptor
is closed when nobody references its :class:`OpenFile` any more (CPython counts references). So evicting a file, or
deleting a segment, never pulls it away from under a fetch that is still sending its :class:`FileSlice`: the kernel
keeps an unlinked file until the last descriptor is gone.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

_NOT_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG}
)


_CANNOT_ASK = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
STRIDE_BYTES = 64 * 1024
"""Distance of read-ahead: two bytes of a file this near are probably in the page cache together."""
_one_byte = [bytearray(1)]


class SyncError(OSError):
    """An fsync failed. For any reason, the kernel may have dropped unwritten data."""


def is_failure(error: OSError) -> bool:
    """Whether the disk is at fault (EIO, read-only, gone), rather than full, or the process out of a resource."""
    return error.errno not in _NOT_THE_DISK or isinstance(error, SyncError)


class OpenFile:
    """A file, open for reading and writing, that closes itself with its last reference."""

    __slots__ = ("_asks", "_fd", "path")

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        """As it was when it was opened."""
        self._asks = True
        """Whether the file system reports what is in the page cache (tmpfs, which is all there, does not)."""
        self._fd = -1
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)

    def fileno(self) -> int:
        """For sendfile; keep this object while you use it."""
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        """``length`` bytes, or fewer only where the file ends."""
        data = os.pread(self._fd, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a range probably is in the page cache: its first and its last byte are."""
        return not self._asks or (
            self._has(position + size - 1) and (size <= STRIDE_BYTES or self._has(position))
        )

    def _has(self, position: int) -> bool:
        try:
            os.preadv(self._fd, _one_byte, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _CANNOT_ASK:
                raise
            self._asks = False
        return True

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data``; a disk that fills up in the middle raises and leaves a part behind to be cut."""
        written = os.pwrite(self._fd, data, position)
        if written == len(data):
            return
        rest = memoryview(data)[written:]
        while rest:
            position += written
            written = os.pwrite(self._fd, rest, position)
            rest = rest[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fsync(self) -> None:
        """SyncError."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise SyncError(*error.args) from error

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a segment's file, to be sent with sendfile; ``file`` stays open while this lives."""

    file: OpenFile
    position: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """The bytes themselves (blocking), for callers that have no socket to send them to."""
        return self.file.pread(self.length, self.position)


class FileCache:
    """At most ``limit`` open files, the least recently used closed first. Any thread may call it."""

    def __init__(self, limit: int = 1024) -> None:
        self.limit = limit
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._forgotten = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, *, create: bool = False) -> OpenFile:
        if (file := self._files.get(path)) is not None:
            try:  # noqa: SIM105
                self._files.move_to_end(path)
            except KeyError:  # another thread has closed or forgotten it
                pass
            return file
        forgotten = self._forgotten
        file = OpenFile(path, create=create)  # may wait for the disk: nobody else does
        with self._lock:
            if forgotten == self._forgotten:  # else the path may mean another file already
                file = self._files.setdefault(path, file)
                if len(self._files) > self.limit:
                    self._files.popitem(last=False)
        return file

    def forget(self, path: str) -> None:
        """Drop a file after it was renamed or deleted: its path no longer means it."""
        with self._lock:
            self._forgotten += 1
            self._files.pop(path, None)

    def forget_folders(self, folders: Collection[str]) -> None:
        """Drop all files in folders that were removed."""
        with self._lock:
            self._forgotten += 1
            for path in list(self._files):  # copied in one step: `get` moves entries without the lock
                if os.path.dirname(path) in folders:
                    del self._files[path]


def fsync_file(path: str) -> None:
    """Make a file and its name durable."""
    _fsync(path)
    fsync_directory(os.path.dirname(path))


def fsync_directory(path: str) -> None:
    """Make the creation, renaming or deletion of files in ``path`` durable."""
    _fsync(path, os.O_DIRECTORY)


def _fsync(path: str, flags: int = 0) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace ``path`` by a file holding ``data``: after a crash the old or the new content is there, never a mix."""
    temporary = path + ".tmp"
    with open(temporary, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if sync:
            os.fsync(file)
    os.replace(temporary, path)
    if sync:
        fsync_directory(os.path.dirname(path))
