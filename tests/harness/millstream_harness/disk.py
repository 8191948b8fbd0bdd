"""Small disks that fill up, turn read-only or die: tmpfs, and ext4 on a loop device over it. Needs root."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from millstream_harness.tools import missing


class Disk:
    """A file system at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Fill all space except ``leave`` bytes.

        Repeats if space has shrunk meanwhile: an allocation that does not fit allocates nothing.
        """
        with self._ballast.open("ab") as file:
            while True:
                free = os.statvfs(self.path)
                wanted = free.f_bavail * free.f_frsize - leave
                if wanted <= 0:
                    return
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), wanted)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EINTR):
                        raise
                else:
                    return

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def remount(self, options: str) -> None:
        """``ro`` or ``rw``."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Disk]:
    """A tmpfs of this many MB at ``path``; without the right to mount, the test is skipped (in CI: fails)."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        missing("the right to mount a tmpfs (root, not in an unprivileged container)")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class DyingDisk(Disk):
    """An ext4 file system whose device fails while it is mounted."""

    def __init__(self, path: Path, below: Disk) -> None:
        super().__init__(path)
        self._below = below
        self._image = below.path / "image"
        self._saved = path.with_name(path.name + "-saved")

    def format(self, megabytes: int) -> None:
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", options, str(self._image)], check=True)

    def mount(self) -> None:
        command = ["mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path)]
        mounted = subprocess.run(command, capture_output=True, check=False)
        if mounted.returncode:
            missing("the right to mount a loop device (root, not in an unprivileged container)")

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)

    def die(self) -> None:
        """Fail all writes (fsync fails, then the file system is read-only). Reads see only the page cache.

        Fsynced data returns after :meth:`repair`, so pause all writers meanwhile.
        """
        files = [path for path in self.path.rglob("*") if path.is_file()]
        subprocess.run(["sync", "--file-system", str(self.path)], check=True)
        shutil.copy(self._image, self._saved)
        os.truncate(self._image, 0)
        self._below.fill()
        for path in files:
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def repair(self) -> None:
        """Restore the state at its death. No process may use it meanwhile."""
        self.unmount()
        self._below.free()
        shutil.copy(self._saved, self._image)
        subprocess.run(["e2fsck", "-y", str(self._image)], check=False, capture_output=True)
        self.mount()


@contextlib.contextmanager
def dying_disk(path: Path, megabytes: int) -> Iterator[DyingDisk]:
    """A disk of this many MB at ``path`` that can fail; otherwise as :func:`small_disk`."""
    path.mkdir(parents=True, exist_ok=True)
    with small_disk(path.with_name(path.name + "-below"), megabytes + 8) as below:
        disk = DyingDisk(path, below)
        disk.format(megabytes)
        disk.mount()
        try:
            yield disk
        finally:
            disk.unmount()
