"""The machine on which something is measured."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def machine() -> dict[str, str]:
    """The properties of the machine that affect the numbers; nothing that identifies it."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "processor": f"{os.cpu_count()} × {model}",
        "memory": f"{memory / 2**20:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "java": java.splitlines()[0].replace('"', "") if java else "none",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
