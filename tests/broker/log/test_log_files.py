"""Open files: complete reads and writes despite short ones by the kernel, a bounded cache, durability."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millstream_broker.log.errors import SyncError
from millstream_broker.log.files import (
    STRIDE_BYTES,
    FileCache,
    OpenFile,
    fsync_directory,
    fsync_file,
    is_failure,
    write_atomically,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789")
    return path


def failing(number: int) -> Callable[..., int]:
    def fail(*call: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("error", "at_fault"),
    [
        (OSError(errno.EIO, ""), True),
        (OSError(errno.EROFS, ""), True),
        (OSError(errno.ENOSPC, ""), False),
        (OSError(errno.EMFILE, ""), False),
        (SyncError(errno.ENOSPC, ""), True),
    ],
)
def test_a_disk_without_room_has_not_failed_unless_an_fsync_did(error: OSError, at_fault: bool) -> None:
    assert is_failure(error) == at_fault


def test_a_file_is_made_only_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with pytest.raises(FileNotFoundError):
        OpenFile(str(path))
    with pytest.raises(FileNotFoundError):
        FileCache().get(str(path))
    os.fstat(1)  # a file that was never opened closes nothing
    old_mask = os.umask(0)
    try:
        OpenFile(str(path), create=True)
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_read_goes_on_where_the_kernel_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked, pread = OpenFile(str(path)), [], os.pread

    def one_byte(fd: int, length: int, position: int) -> bytes:
        asked.append((length, position))
        return pread(fd, min(1, length), position)

    monkeypatch.setattr(os, "pread", one_byte)
    for length, position, data, expected in [
        (3, 2, b"234", [(3, 2), (2, 3), (1, 4)]),
        (5, 8, b"89", [(5, 8), (4, 9), (3, 10)]),
        (5, 10, b"", [(5, 10)]),
    ]:
        del asked[:]
        assert file.pread(length, position) == data
        assert asked == expected


def test_a_write_goes_on_where_the_kernel_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pwrite = OpenFile(str(path)), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, memoryview(data)[:2], position))
    file.pwrite(b"abcde", 3)
    assert path.read_bytes() == b"012abcde89"


def test_a_write_that_the_kernel_takes_at_once_is_one_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, calls, pwrite = OpenFile(str(path)), [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *call: calls.append(call) or pwrite(*call))
    file.pwrite(b"abcde", 3)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (1, [100]),
        (STRIDE_BYTES, [100 + STRIDE_BYTES - 1]),
        (STRIDE_BYTES + 1, [100 + STRIDE_BYTES, 100]),
    ],
)
def test_a_range_is_cached_where_its_ends_are(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[int]
) -> None:
    """The first byte is checked only if it may be on another page than the last one."""
    file, cached = OpenFile(str(path)), set(asked)
    seen: list[int] = []

    def preadv(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        seen.append(position)
        if position not in cached:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.is_cached(100, size)
    assert seen == asked
    for missing in asked:
        cached = set(asked) - {missing}
        assert not file.is_cached(100, size)


def test_a_file_system_that_does_not_know_is_asked_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile(str(path))
    monkeypatch.setattr(os, "preadv", failing(errno.EOPNOTSUPP))
    assert file.is_cached(0, 1)
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    assert file.is_cached(0, 1)
    with pytest.raises(OSError, match="Input/output error"):
        OpenFile(str(path)).is_cached(0, 1)


def test_an_error_of_an_fsync_is_the_disks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(SyncError) as caught:
        OpenFile(str(path)).fsync()
    assert caught.value.errno == errno.ENOSPC


def test_the_cache_closes_the_least_recently_used_file(tmp_path: Path) -> None:
    files = FileCache(2)
    paths = [str(tmp_path / name) for name in "abc"]
    first, second = (files.get(path, create=True) for path in paths[:2])
    assert files.get(paths[0]) is first
    third = files.get(paths[2], create=True)
    assert len(files) == 2
    assert files.get(paths[0]) is first
    assert files.get(paths[2]) is third
    assert files.get(paths[1]) is not second


def test_a_forgotten_path_is_opened_anew(path: Path) -> None:
    files = FileCache()
    before = files.get(str(path))
    path.rename(path.with_name("b.log"))
    files.forget(str(path))
    files.forget(str(path))
    path.write_bytes(b"another")
    assert files.get(str(path)).pread(7, 0) == b"another"
    assert before.pread(10, 0) == b"0123456789"


def test_a_file_that_was_forgotten_while_it_was_opened_is_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, open_file = FileCache(), os.open

    def renamed_meanwhile(*call: object) -> int:
        number = open_file(*call)  # type: ignore[arg-type]
        files.forget(str(path))
        return number

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", renamed_meanwhile)
        assert files.get(str(path)).pread(1, 0) == b"0"
    assert len(files) == 0
    assert files.get(str(path)) is files.get(str(path))


def test_folders_are_forgotten_while_other_threads_read(tmp_path: Path) -> None:
    """A read takes no lock, and moves its file to the end of what is kept."""
    files = FileCache()
    names = ("gone", "stays", "gone too")
    for name in names:
        (tmp_path / name).mkdir()
    paths = [str(tmp_path / name / "a.log") for name in names]
    kept = [files.get(path, create=True) for path in paths][1]

    class ReadMeanwhile(list[str]):
        def __contains__(self, folder: object) -> bool:
            files.get(paths[1])
            return super().__contains__(folder)

    files.forget_folders(ReadMeanwhile([os.path.dirname(paths[0]), os.path.dirname(paths[2])]))
    assert len(files) == 1
    assert files.get(paths[1]) is kept


def test_a_new_name_is_durable_with_its_folder(path: Path, fsynced: list[str]) -> None:
    fsync_file(str(path))
    assert fsynced == [str(path), str(path.parent)]
    with pytest.raises(NotADirectoryError):
        fsync_directory(str(path))


def test_a_file_is_replaced_whole(path: Path, fsynced: list[str]) -> None:
    write_atomically(str(path), b"new", sync=False)
    assert (path.read_bytes(), fsynced) == (b"new", [])
    write_atomically(str(path), b"newer")
    assert path.read_bytes() == b"newer"
    assert fsynced == [f"{path}.tmp", str(path.parent)]
    assert list(path.parent.iterdir()) == [path]
