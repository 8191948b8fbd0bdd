"""The tiers of tests, the shares of a long run, and the seconds that each file took when they were last recorded.

A test without a marker is in tier ``unit``; ``pytestmark = pytest.mark.process`` puts a file into another tier, and a
marker at a function puts that one there. CONTRIBUTING.md says which tier a test belongs to.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UNIT, PROCESS, SOAK, E2E = "unit", "process", "soak", "e2e"
TESTS = (UNIT, PROCESS, SOAK)
"""The tiers in tests/."""
RECORD = ROOT / "tests" / "durations.json"
"""Seconds by tier and file, as ``make durations`` wrote them."""
UNRECORDED_S = 2.0
"""What a new file is taken to need."""
UNLIKE_S = 15.0
"""A file that takes this much longer or shorter than recorded makes shares unequal."""
WORKERS = 4
"""Processes that share the tests on two cores: tests wait a lot."""

_OF_FILE = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(unit|process|soak)\b", re.MULTILINE)
_OF_TEST = re.compile(r"@pytest\.mark\.(unit|process|soak)\b")

Seconds = dict[str, dict[str, float]]
"""By tier and file."""
Share = tuple[int, int]
"""K and N of ``K/N``."""


@dataclass(frozen=True)
class Tier:
    """What belongs into it, and how long it may take on two cores."""

    content: str
    minutes: float

    @property
    def seconds(self) -> float:
        """What the durations of its tests may add up to."""
        return self.minutes * 60 * WORKERS


TIERS = {
    UNIT: Tier("starts no process: pure cores, files, a broker on the test's own loop", 2),
    PROCESS: Tier("starts brokers, clients, the command or Spark as processes", 4),
    SOAK: Tier("rounds of faults, models at length, comparisons that repeat, pages command by command", 45),
    E2E: Tier("needs a Kubernetes: everything in e2e/", 25),
}
"""``make test`` runs the first two, in six minutes together."""


def tier_of(item: pytest.Item) -> str:
    """The tier of the marker that is closest to the test; without one, its folder decides."""
    by_folder = E2E if item.path.is_relative_to(ROOT / "e2e") else UNIT
    return next((marker.name for marker in item.iter_markers() if marker.name in TIERS), by_folder)


def tiers_in(text: str) -> set[str]:
    """The tiers that a file has tests of, by its text: importing it takes far longer."""
    of_file = _OF_FILE.search(text)
    return {of_file[1] if of_file else UNIT, *_OF_TEST.findall(text)}


def files_in(folder: Path) -> dict[str, set[str]]:
    """Every file of tests below ``folder``, as pytest names it from there, with its tiers."""
    return {
        path.relative_to(folder).as_posix(): tiers_in(path.read_text("utf-8"))
        for path in sorted(folder.glob("tests/**/test_*.py"))
    }


def runs_once(item: pytest.Item) -> bool:
    """Whether a failure stands: a test of a model, a state machine or a comparison never gets a second run."""
    is_generated = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return bool(is_generated or item.get_closest_marker("once"))


def recorded() -> Seconds:
    found: Seconds = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return found


def tier_names(text: str) -> tuple[str, ...]:
    """The tiers of an option's value, such as ``unit,process``."""
    found = tuple(text.split(","))
    if wrong := [tier for tier in found if tier not in TESTS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(TESTS)}")
    return found


def share(text: str) -> Share:
    """The share that an option's value names."""
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"{text!r} is no share: expected K/N, such as 2/5, with K from 1 to N")


def in_share(files: Mapping[str, float], number: int, count: int) -> set[str]:
    """The files of share ``number`` of ``count``: together the shares have each file once, and take equally long."""
    shares: list[set[str]] = [set() for _ in range(count)]
    loads = [0.0] * count
    for file in sorted(files, key=lambda file: (-files[file], file)):
        least = loads.index(min(loads))
        shares[least].add(file)
        loads[least] += files[file]
    return shares[number - 1]


def chosen(
    files: Mapping[str, Collection[str]],
    tiers: Collection[str],
    soak: Share | None = None,
    shard: Share | None = None,
) -> dict[str, set[str]]:
    """The tiers to run of each file: of the soak tests, only share ``soak``; of all that, only share ``shard``."""
    seconds = recorded()

    def took(wanted: Iterable[str]) -> dict[str, float]:
        return {
            file: sum(seconds.get(tier, {}).get(file, UNRECORDED_S) for tier in files[file] if tier in tiers)
            for file in wanted
        }

    kept = {file: {tier for tier in of if tier in tiers} for file, of in files.items()}
    if soak:
        some = in_share(took(file for file, of in kept.items() if SOAK in of), *soak)
        kept = {file: of if file in some else of - {SOAK} for file, of in kept.items()}
    kept = {file: of for file, of in kept.items() if of}
    if shard:
        some = in_share(took(kept), *shard)
        kept = {file: of for file, of in kept.items() if file in some}
    return kept


class Durations:
    """Adds up what the tests of each tier and file take; setup and teardown count."""

    def __init__(self) -> None:
        self.seconds: Seconds = defaultdict(lambda: defaultdict(float))
        self.tests: dict[str, set[str]] = defaultdict(set)

    def add(self, tier: str, test: str, seconds: float) -> None:
        self.seconds[tier][test.partition("::")[0]] += seconds
        self.tests[tier].add(test)

    def table(self) -> list[str]:
        """A line for each tier that ran."""
        return [
            f"{name}: {len(self.tests[name])} tests, {sum(self.seconds[name].values()) / WORKERS / 60:.1f} of"
            f" {tier.minutes} minutes on two cores"
            for name, tier in TIERS.items()
            if name in self.seconds
        ]

    def unlike(self, known: Seconds) -> list[str]:
        """A line for each file that took far longer or shorter than it is known to, so that shares are unequal."""
        found = []
        for tier, files in self.seconds.items():
            for file, took in files.items():
                expected = known.get(tier, {}).get(file, UNRECORDED_S)
                if abs(took - expected) > max(UNLIKE_S, expected / 2):
                    found.append(f"{tier}: {file} took {took:.0f} s, {expected:.0f} s are recorded")
        return sorted(found)

    def write(self, path: Path) -> None:
        """Into ``path``: figures of files that ran replace their former ones; files that are gone leave."""
        kept: Seconds = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for tier, files in self.seconds.items():
            others = {file: took for file, took in kept.get(tier, {}).items() if (ROOT / file).exists()}
            kept[tier] = {**others, **{file: round(seconds, 1) for file, seconds in files.items()}}
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")
