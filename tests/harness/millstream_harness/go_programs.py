"""Client programs in Go, built when a test needs them; without Go, or what it fetches, the test is skipped."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .java import run
from .tools import missing, require

BUILD_S = 280.0
"""A first build compiles the libraries, too."""


def built(folder: Path, program: Path) -> Path:
    """The program of the module in ``folder``, built again if its source is newer."""
    go = require("go")
    program.parent.mkdir(exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        newest = max(path.stat().st_mtime for path in folder.iterdir())
        if not program.exists() or program.stat().st_mtime < newest:
            done = run([go, "build", "-o", str(program), "."], cwd=folder, check=False, timeout=BUILD_S)
            if done.returncode != 0:
                missing(
                    f"the clients of {folder.name}, which go could not fetch and build: {done.stderr.strip()}"
                )
            os.utime(program)
    return program
