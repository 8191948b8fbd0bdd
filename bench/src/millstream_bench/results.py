"""The file of results: every round's numbers, and the machine.

{"machine": {…}, "rounds": 5, "scale": 1.0,
 "workloads": {"producer-200b": {"rate": {"millstream": [507614.2, …], "kafka": [271003.5, …]}, …}, …}}
"""

from __future__ import annotations

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
