"""Kills a process of a pod with SIGKILL, from a pod that sees all processes of the node (hostPID).

    python3 -c "$(cat kill_in_pod.py)" POD_UID COMMAND

A process belongs to the pod whose uid is in its control group, in the form of either cgroup driver. This runs where
our packages are not installed, so it imports only the standard library. Exit status 1: there is no such process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def find(uid: str, command: str, processes: Path = Path("/proc")) -> list[int]:
    """The processes of the pod that run COMMAND."""
    found = []
    for folder in processes.glob("[0-9]*"):
        try:
            group = (folder / "cgroup").read_text().replace("_", "-")
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        if uid in group and command in (word.rpartition("/")[2] for word in words):
            found.append(int(folder.name))
    return sorted(found)


if __name__ == "__main__":
    processes = find(sys.argv[1], sys.argv[2])
    for process in processes:
        os.kill(process, signal.SIGKILL)
    print("killed", *processes)
    sys.exit(not processes)
