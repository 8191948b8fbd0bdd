"""Memory and CPU time of a process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mb(pid: int) -> float:
    """Resident memory, in MB of 10⁶ bytes, without pages of mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def peak_mb(pid: int) -> float:
    """Peak resident memory, files included; `forget_peak` resets it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{pid}/status has no VmHWM")


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid: int) -> float:
    """CPU seconds used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
