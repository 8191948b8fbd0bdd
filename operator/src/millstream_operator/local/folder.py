"""`DataFolder`: what a command makes in a data folder whose lock it holds, written down as it is made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
