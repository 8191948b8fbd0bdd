"""The file of results: every round's numbers, and the machine.

{"machine": {…}, "rounds": 5, "scale": 1.0,
 "workloads": {"producer-200b": {"rate": {"millstream": [507614.2, …], "kafka": [271003.5, …]}, …}, …}}
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import msgspec

Values = dict[str, list[float]]


class Results(msgspec.Struct):
    machine: dict[str, str]
    rounds: int = 0
    scale: float = 1.0
    workloads: dict[str, dict[str, Values]] = {}
    elsewhere: dict[str, dict[str, str]] = {}
    """The machine of each workload that was measured on another one, with all its contenders."""

    def add(self, workload: str, peer: str, numbers: dict[str, float]) -> None:
        for figure, value in numbers.items():
            self.workloads.setdefault(workload, {}).setdefault(figure, {}).setdefault(peer, []).append(value)

    def replace(self, others: Results) -> None:
        """Take over the others' workloads, and note their machine."""
        self.workloads |= others.workloads
        for name in others.workloads:
            if others.machine == self.machine:
                self.elsewhere.pop(name, None)
            else:
                self.elsewhere[name] = others.machine

    def values(self, workload: str, figure: str) -> Values:
        return self.workloads.get(workload, {}).get(figure, {})


def save(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


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
