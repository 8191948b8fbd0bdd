"""CPU seconds and memory of a process and its children, as the kernel counts them (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    pids = [pid]
    for parent in pids:  # grows while it is walked
        try:
            children = (PROC / f"{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        pids += [int(child) for child in children.split()]
    return pids


def cpu_seconds(pid: int) -> float:
    """User and system time so far, of the process, its living descendants and the children it has waited for."""
    return sum(_ticks((PROC / f"{one}/stat").read_text()) for one in family(pid)) / TICKS_PER_SECOND


def _ticks(stat: str) -> int:
    # The second field is the command in brackets and may hold blanks; utime is the 14th field.
    fields = stat.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def resident_mb(pid: int) -> float:
    """Resident memory of the process and its living descendants, in MB (10⁶ bytes)."""
    return sum(_kib((PROC / f"{one}/status").read_text(), "VmRSS:") for one in family(pid)) * 1024 / 1e6


def proportional_mb(pids: Iterable[int]) -> float:
    """Memory of several processes in MB, with shared parts (libraries) counted once: their proportional set sizes."""
    return sum(_kib((PROC / f"{pid}/smaps_rollup").read_text(), "Pss:") for pid in pids) * 1024 / 1e6


def _kib(text: str, field: str) -> int:
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0
