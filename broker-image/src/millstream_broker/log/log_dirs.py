"""The log directories of a broker: locked, of one broker and one cluster, and left out once they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from . import folders
from .directory import BrokenDirError, LogDir, LogDirError, describe
from .files import is_failure
from .inventory import Inventory

logger = logging.getLogger(__name__)


class LogDirs:
    def __init__(self, log_dirs: Iterable[Path | str]) -> None:
        self.paths = [Path(path) for path in log_dirs]
        """All directories, usable or not."""
        self.dirs = [LogDir(path) for path in self.paths]
        if not self.dirs:
            raise LogDirError("log.dirs names no directory")
        self.offline: dict[Path, str] = {}
        """Unusable directories, which are no longer in ``dirs``, and the reasons."""

    def lock(self) -> None:
        """Create and lock the directories, and read their owners. Blocking.

        A directory that the disk does not let us use is left out, as in Kafka. LogDirError if none is left, or one
        belongs to another broker.
        """
        for home in list(self.dirs):
            try:
                home.lock()
            except BrokenDirError as error:
                self.leave_out(home, error)
            except LogDirError:
                self.unlock()
                raise

    def leave_out(self, home: LogDir, error: BrokenDirError) -> None:
        """Continue without a directory that the disk does not let us use; raises the error if it is the last one."""
        home.unlock()
        if len(self.dirs) == 1:
            raise error
        self.dirs.remove(home)
        self.offline[home.path] = str(error)
        logger.error(
            "%s The other directories serve; partitions in this one are offline until a restart.", error
        )

    def unlock(self) -> None:
        """Release the directories without closing any log, after a failed start."""
        for home in self.dirs:
            home.unlock()

    def identify(self, broker_id: int, cluster_id: str, *, moves: bool = False) -> None:
        """Check that the directories belong to this broker, and mark new ones. Blocking.

        ``moves``: directories of another cluster belong to this one from now on.
        """
        for home in self.dirs:
            home.identify(broker_id, cluster_id, moves=moves)

    @property
    def cluster_id(self) -> str | None:
        """The cluster of the data; None if all directories are new. Raises LogDirError if they disagree."""
        found = {home.cluster_id: home.path for home in self.dirs if home.cluster_id is not None}
        if len(found) > 1:
            each = ", ".join(f"{path} belongs to cluster {cluster_id}" for cluster_id, path in found.items())
            raise LogDirError(f"log.dirs: {each}. Name only directories of one cluster.")
        return next(iter(found), None)

    def has_data(self) -> bool:
        """Whether any directory has a partition, served or not, or knows of one. Blocking. LogDirError."""
        for home in self.dirs:
            try:
                if folders.has_data(home.path) or Inventory.has_any(home.path):
                    return True
            except OSError as error:
                raise broken(home, error) from error
        return False

    def watch(self, on_failure: Callable[[LogDir], None]) -> None:
        """Call `on_failure` once for each directory that fails, in any thread."""
        for home in list(self.dirs):
            home.on_failure = on_failure
            if home.failure is not None:
                on_failure(home)

    def read_failed(self, error: OSError) -> None:
        """Handle a failure to read a log's file, which the error names, for a client."""
        for home in self.dirs:
            if home.path in Path(error.filename).parents:
                home.check(error)
                return

    def write_each(self, write: Callable[[LogDir], None]) -> None:
        for home in list(self.dirs):
            if home.is_locked and home.failure is None:
                try:
                    write(home)
                except OSError as error:
                    if not is_failure(error):
                        logger.error("%s: cannot write checkpoints: %s", home.path, describe(error))
                    home.check(error)


def broken(home: LogDir, error: OSError) -> BrokenDirError:
    return BrokenDirError(f"log.dirs: {home.path} cannot be used: {describe(error)}.")
