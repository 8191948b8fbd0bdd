"""`DataFolder`: creates folders and processes in a data folder whose lock the command holds, and saves each in the
state before its first use.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .processes import Daemon, StartFailed
from .state import State


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder (absolute), its state, and a function that saves it; a read-only command saves nothing."""

    path: Path
    state: State
    save: Callable[[], None] = lambda: None

    def make(self, name: str, *, private: bool = False) -> Path:
        """Create one of FOLDERS. A folder created here is ours to delete, which is saved before anything is in it.

        ``private``: only the user can open it. OSError if it cannot be created.
        """
        folder = self.path / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700 if private else 0o777)
            if name not in self.state.made:
                self.state.made.append(name)
            self.save()
        if private and name in self.state.made:
            folder.chmod(0o700)  # an earlier release let others list it
        return folder

    def start(
        self,
        key: str,
        command: Sequence[str],
        log: Path,
        *,
        ready: Callable[[str], dict[str, str] | None] | None = None,
        name: str = "",
    ) -> None:
        """Start a daemon in place of its predecessor, if any; see `processes.start` for the parameters.

        The state contains the daemon at every moment from before its start on.
        """
        self.stop(key)
        mark = uuid.uuid4().hex
        self.state.daemons[key] = Daemon(0, "", list(command), str(log), mark=mark)
        self.save()
        try:
            self.state.daemons[key] = processes.start(command, log, ready=ready, name=name, mark=mark)
        except StartFailed:
            del self.state.daemons[key]
            raise
        self.save()

    def stop(self, key: str) -> None:
        """Stop a daemon if it runs; the state keeps it."""
        if key in self.state.daemons:
            processes.stop(self.state.daemons[key])
