"""A file of lines that each log directory has a copy of: appended to, and written anew once it has grown.

The first line has numbers, of which the first is the format. Nothing is fsynced: a crash may cut off the last line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from .files import write_atomically

SLACK = 1000
"""Number of appended lines after which the file is written anew, if it has grown to several times its contents."""

logger = logging.getLogger(__name__)


class DirectoryNotes:
    """Blocking, in any thread; hold ``lock`` meanwhile. What cannot be written is logged, and passed to ``failed``."""

    def __init__(self, name: str) -> None:
        self.failed: Callable[[Path, OSError], None] = lambda directory, error: None
        self.directories: list[Path] = []
        self.lock = threading.Lock()
        self._name = name
        self._lines = 0

    def is_long(self, added: int, needed: int) -> bool:
        """Whether to write the file anew, rather than to append this number of lines; it needs ``needed``."""
        self._lines += added
        return self._lines > SLACK + 4 * needed

    def append(self, lines: str) -> None:
        for directory in self.directories:
            try:
                with open(directory / self._name, "a", encoding="utf-8") as file:
                    file.write(lines)
            except OSError as error:
                self._failed(directory, error)

    def write_anew(self, head: str, lines: Iterable[str]) -> None:
        data = "".join([f"{head}\n", *lines]).encode()
        for directory in self.directories:
            try:
                write_atomically(str(directory / self._name), data, sync=False)
            except OSError as error:
                self._failed(directory, error)
        self._lines = 0

    def leave(self, directory: Path) -> None:
        """The directory is offline."""
        with self.lock:
            self.directories = [other for other in self.directories if other != directory]

    def _failed(self, directory: Path, error: OSError) -> None:
        logger.warning("%s: cannot write %s: %s", directory, self._name, error.strerror)
        self.failed(directory, error)


def read_notes(path: Path, known_format: int, numbers: int) -> tuple[list[int], list[str]] | None:
    """The numbers of the first line, and the others; None if there is no file that can be used."""
    try:
        first, *lines = path.read_text("utf-8").splitlines()
        head = [*map(int, first.split())]
        if len(head) != numbers or head[0] != known_format:
            raise ValueError(f"format {first} is not known")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return None
    return head, lines
