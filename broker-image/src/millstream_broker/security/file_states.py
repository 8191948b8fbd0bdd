"""Whether files have changed, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def file_states(paths: Iterable[Path]) -> tuple[object, ...]:
    """Compare it with an earlier one. Blocking.

    It changes with the files, also if another one takes the place of one behind a symbolic link, as in Kubernetes.
    """
    return tuple(map(_state, paths))


def _state(path: Path) -> tuple[object, ...]:
    try:
        state = os.stat(path)
    except OSError as error:
        return str(path), error.errno
    return str(path), state.st_mtime_ns, state.st_size, state.st_ino
