"""Small disks that fill up or turn read-only: tmpfs, mounted for a test. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from millstream_harness.tools import missing


class Disk:
    """A file system of its own at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Take all space but ``leave`` bytes, as somebody else's files would."""
        free = os.statvfs(self.path)
        with self._ballast.open("ab") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), file.tell(), free.f_bavail * free.f_frsize - leave)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def remount(self, options: str) -> None:
        """``ro`` or ``rw``."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Disk]:
    """A tmpfs of so many MB at ``path``; the test is skipped where that is not allowed (in CI: fails)."""
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
