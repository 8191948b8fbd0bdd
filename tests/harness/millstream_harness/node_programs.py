"""Client programs in Node.js; without Node.js, or the packages that npm fetches, the test is skipped."""

from __future__ import annotations

import fcntl
from pathlib import Path

from .java import run
from .tools import missing, require


def installed(folder: Path) -> str:
    """Install the pinned versions of package-lock.json into node_modules, once; returns the path of Node.js."""
    node, npm = require("node"), require("npm")
    with (folder / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        done = folder / "node_modules" / ".package-lock.json"
        if not done.exists() or done.stat().st_mtime < (folder / "package-lock.json").stat().st_mtime:
            npm_ci = run([npm, "ci", "--no-audit", "--no-fund"], cwd=folder, check=False, timeout=110)
            if npm_ci.returncode != 0:
                missing(
                    f"kafkajs and its codecs, which npm could not fetch and build: {npm_ci.stderr.strip()}"
                )
    return node
