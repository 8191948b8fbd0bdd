"""`DataFolder`: creates folders and processes in a data folder whose lock the command holds, and saves each in the
state before its first use."""

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
    """A data folder (absolute), its state, and how that is saved; who only looks saves nothing."""

    path: Path
    state: State
    save: Callable[[], None] = lambda: None

    def make(self, name: str) -> Path:
        """Have one of FOLDERS. It is ours to delete if it was made here, which is saved before anything is in it.

        OSError when it cannot be made.
        """
        folder = self.path / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            if name not in self.state.made:
                self.state.made.append(name)
            self.save()
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
        """Start a daemon, in place of the one that there may be; `processes.start` tells of the rest.

        The state knows of it at every moment from before its start on.
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
        """Stop a daemon if it runs; it stays in the state."""
        if key in self.state.daemons:
            processes.stop(self.state.daemons[key])
