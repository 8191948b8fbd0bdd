"""Open files, shared by every log of a broker and bounded in number.

A broker may hold hundreds of thousands of segments of three files each, so no log keeps a descriptor of its
own: it gets each file from the :class:`FileCache`, which keeps the most recently used ones open.

Invariant: a caller holds the :class:`OpenFile` while it uses the file. Reads and writes are methods, because
another thread might close a bare descriptor, and the kernel might reuse it for another file. The descriptor
closes with the last reference to its :class:`OpenFile` (CPython counts references). So a fetch can still
send its :class:`FileSlice` after the file was evicted or its segment deleted: the kernel keeps an unlinked
file until the last descriptor closes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from .errors import SyncError

T = TypeVar("T")

_NOT_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG}
)


_CANNOT_ASK = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
STRIDE_BYTES = 64 * 1024
"""Distance of read-ahead: two bytes of a file this near are probably in the page cache together."""
_one_byte = [bytearray(1)]
_PART_BYTES = 64 * 1024


_BUFFER_BYTES = 8192  # the most that a look-up reads at once


class NotCachedError(Exception):
    """A read would wait for the disk (`without_waiting`)."""


class _Thread(threading.local):
    """Whether reads in this thread may wait for the disk."""

    may_wait = True

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))


_thread = _Thread()


def without_waiting(read: Callable[[], T]) -> T:
    """Call ``read``; its reads raise NotCachedError instead of waiting for the disk."""
    return _reading(read, may_wait=False)


def waiting(read: Callable[[], T]) -> T:
    """Call ``read``; its reads may wait for the disk, even within `without_waiting`."""
    return _reading(read, may_wait=True)


def _reading(read: Callable[[], T], *, may_wait: bool) -> T:
    before, _thread.may_wait = _thread.may_wait, may_wait
    try:
        return read()
    finally:
        _thread.may_wait = before


def is_failure(error: OSError) -> bool:
    """Whether the disk is at fault (EIO, read-only, gone), rather than full, or the process out of a resource."""
    return error.errno not in _NOT_THE_DISK or isinstance(error, SyncError)


class OpenFile:
    """A file, open for reading and writing, that closes itself with its last reference."""

    __slots__ = ("_asks", "_fd", "path")

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        """The path at the time of opening."""
        self._asks = True
        """Whether the file system reports cached pages. tmpfs does not: it is all in memory."""
        self._fd = -1
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)

    def fileno(self) -> int:
        """For sendfile; keep this object while you use it."""
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        """``length`` bytes, or fewer at the end of the file. NotCachedError: see `without_waiting`."""
        if not _thread.may_wait and self._asks:
            return self._pread_cached(length, position)
        data = os.pread(self._fd, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def _pread_cached(self, length: int, position: int) -> bytes:
        room = _thread.buffer if length <= _BUFFER_BYTES else memoryview(bytearray(length))
        count = 0
        try:
            while count < length:
                more = os.preadv(self._fd, [room[count:length]], position + count, os.RWF_NOWAIT)
                if not more:
                    if position + count < os.fstat(self._fd).st_size:
                        raise NotCachedError(self.path)  # Linux 5.9 and 5.10 return 0 instead of EAGAIN
                    break
                count += more
        except BlockingIOError:
            raise NotCachedError(self.path) from None
        except OSError as error:
            if error.errno not in _CANNOT_ASK:
                raise
            self._asks = False
            return self.pread(length, position)
        return bytes(room[:count])

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a range is probably in the page cache: its first and its last byte are."""
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
        """Write all of ``data``. An OSError, as from a full disk, may leave a part behind."""
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
        """Raises SyncError."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise SyncError(*error.args) from error

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


@dataclass(slots=True)
class FileSlice:
    """A range of a segment's file for sendfile. It keeps ``file`` open.

    Treat it as immutable. It is not `frozen`, because that would triple the time to create one.
    """

    file: OpenFile
    position: int
    length: int

    def __len__(self) -> int:
        return self.length

    def after(self, count: int) -> FileSlice:
        """The rest after ``count`` bytes."""
        return FileSlice(self.file, self.position + count, self.length - count)

    def read(self) -> bytes:
        """The bytes, for callers without a socket. Blocking."""
        return self.file.pread(self.length, self.position)


class FileCache:
    """Keeps at most ``limit`` files open, and closes the least recently used first. Thread-safe."""

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
            except KeyError:  # another thread has closed or dropped it
                pass
            return file
        forgotten = self._forgotten
        file = OpenFile(path, create=create)  # may wait for the disk, so outside the lock
        with self._lock:
            if forgotten == self._forgotten:  # otherwise the path may already mean another file
                file = self._files.setdefault(path, file)
                if len(self._files) > self.limit:
                    self._files.popitem(last=False)
        return file

    def forget(self, path: str) -> None:
        """Drop a file that was renamed or deleted: its path may soon name another file."""
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


def read_file(path: str) -> bytes:
    """The content of a small file, at a fifth of the cost of `open`: a start reads many. Blocking."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = part = os.read(fd, _PART_BYTES)
        while len(part) == _PART_BYTES:
            part = os.read(fd, _PART_BYTES)
            data += part
        return data
    finally:
        os.close(fd)


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


def write_atomically(path: str, data: bytes, *, sync: bool = True, is_secret: bool = False) -> None:
    """Replace the content of ``path`` by ``data``. After a crash, the file has the old content or the new.

    ``is_secret``: for the broker's user only.
    """
    temporary = path + ".tmp"
    with open(temporary, "wb", buffering=0) as file:
        if is_secret:
            os.fchmod(file.fileno(), 0o600)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if sync:
            os.fsync(file)
    os.replace(temporary, path)
    if sync:
        fsync_directory(os.path.dirname(path))
