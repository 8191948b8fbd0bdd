"""What the brokers' processes use, and how long a well-behaved client waits: samples over time, and their verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MB = 1024 * 1024
SLACK = {"memory": 48 * MB, "descriptors": 64, "threads": 16, "tasks": 64}
"""What any use may differ by, without growing."""
GROWTH = 1.25
"""How much more may be used in the last third of an attack than in the one before."""
AFTER = {"memory": 1.5, "descriptors": 1.0, "threads": 1.0, "tasks": 1.0}
"""How much of its use before the attack a broker may keep after it: freed memory stays with the process in part."""
ACKNOWLEDGED = "acknowledged"
"""Name of a line with a record's partition, offset and value."""
SLOWER = 2.0
"""How much longer others may wait, at the 99th percentile."""


class Usage(NamedTuple):
    """Of one process, at a time."""

    at: float
    memory: int
    descriptors: int
    threads: int
    tasks: int = 0
    """Of its event loop; 0: unknown."""


def usage(pid: int, at: float, tasks: int = 0) -> Usage:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(fields["VmRSS"].split()[0]) * 1024
    return Usage(at, memory, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(fields["Threads"]), tasks)


class Phases(NamedTuple):
    """When the attack began and ended, and when everything was measured."""

    before: float
    attack: float
    calm: float
    end: float

    def of(self, at: float) -> str:
        return "before" if at < self.attack else "during" if at < self.calm else "after"


def growth(samples: Mapping[int, Sequence[Usage]], phases: Phases) -> list[str]:
    """What has grown without bound, or is still used afterwards."""
    found = []
    third = (phases.calm - phases.attack) / 3
    for number, of_broker in samples.items():
        for name, slack in SLACK.items():
            middle = _most(of_broker, name, phases.attack + third, phases.calm - third)
            last = _most(of_broker, name, phases.calm - third, phases.calm)
            before = _most(of_broker, name, phases.before, phases.attack)
            used = [getattr(each, name) for each in of_broker if each.at >= phases.calm]
            after = min(filter(None, used), default=0)
            if last > middle * GROWTH + slack:
                found.append(
                    f"broker {number}: {name} grew from {middle} to {last} in the attack's last third"
                )
            if after > before * AFTER[name] + slack:
                found.append(
                    f"broker {number}: {name} was {before} before the attack, and is {after} after it"
                )
    return found


def _most(samples: Iterable[Usage], name: str, start: float, end: float) -> int:
    return max((getattr(each, name) for each in samples if start <= each.at < end), default=0)


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


class Waits(NamedTuple):
    """How long a well-behaved client waited: seconds by request and phase, and the errors that it got."""

    seconds: Mapping[tuple[str, str], Sequence[float]]
    errors: Sequence[str]

    def slower(self) -> list[str]:
        found = []
        for name in sorted({name for name, _ in self.seconds}):
            before, during = (
                percentile(self.seconds.get((name, phase), ()), 0.99) for phase in ("before", "during")
            )
            if during > SLOWER * before:
                found.append(
                    f"{name}: p99 was {before * 1000:.1f} ms before, and {during * 1000:.1f} ms during the attack"
                )
        return found

    def rows(self) -> list[str]:
        return [
            f"{name:8} {phase:7} {len(seconds):7} requests, p50 {percentile(seconds, 0.5) * 1000:7.1f} ms,"
            f" p99 {percentile(seconds, 0.99) * 1000:7.1f} ms, longest {max(seconds) * 1000:7.0f} ms"
            for (name, phase), seconds in sorted(self.seconds.items())
            if seconds
        ]


def waits(lines: Iterable[str], phases: Phases) -> Waits:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    errors = []
    for line in lines:
        at, name, result = line.rstrip("\n").split(" ", 2)
        if name == ACKNOWLEDGED or not phases.before <= float(at) < phases.end:
            continue
        try:
            seconds[name, phases.of(float(at))].append(float(result))
        except ValueError:
            errors.append(f"{phases.of(float(at))}: {name}: {result}")
    return Waits(seconds, errors)


Stored = Mapping[int, Mapping[int, str]]
"""Values of records by partition and offset."""


def acknowledged(lines: Iterable[str]) -> Stored:
    """The records that a well-behaved client has an acknowledgement for."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for line in lines:
        _, name, result = line.rstrip("\n").split(" ", 2)
        if name == ACKNOWLEDGED:
            partition, offset, value = result.split(" ", 2)
            found[int(partition)][int(offset)] = value
    return found


def lost(acknowledged: Stored, stored: Stored) -> list[str]:
    """Acknowledged records that are not where the acknowledgement has them."""
    found = []
    for partition, of_partition in sorted(acknowledged.items()):
        there = stored.get(partition, {})
        missing = [offset for offset, value in of_partition.items() if there.get(offset) != value]
        if missing:
            found.append(
                f"partition {partition}: {len(missing)} of {len(of_partition)} acknowledged records are lost or"
                f" others, first that at offset {min(missing)}"
            )
    return found
