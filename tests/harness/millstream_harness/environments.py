"""Python environments of their own, for programs of tests whose packages do not go with ours."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from .java import ROOT


def python_of(name: str) -> Path:
    """The interpreter of ``.cache/NAME``, which ``make NAME`` makes at first use."""
    folder = ROOT / ".cache" / name
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        subprocess.run(["make", "-s", name], cwd=ROOT, check=True)
    return folder / "bin" / "python"
