"""Defects of the past: put each back into the code, and see whether the tests named beside it notice.

    python tests/mutation/past_defects.py [--only AREA | --only WORDS]

``defects/*.toml`` has the defects, by area: what went wrong, a file, its ``text`` of today, the text ``with_defect``,
and the tests that must fail with it. They run in a copy of the repository under ``.cache/past-defects``. The exit
status is 1 if a defect is not noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / ".cache" / "past-defects"
DEFECTS = Path(__file__).with_name("defects")
FAILED = 1
"""Exit status of pytest: tests ran, and one failed. Others mean that a test or module could not be read."""
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "site", "dist")


@dataclass(frozen=True)
class Defect:
    area: str
    what: str
    file: str
    text: str
    with_defect: str
    tests: tuple[str, ...]

    def put_back(self, source: str) -> str:
        """The source with the defect. Raises ValueError unless it has the text exactly once."""
        if (count := source.count(self.text)) != 1:
            raise ValueError(
                f"{self.area}.toml, {self.what!r}: {self.file} has its text {count} times, not once: write today's text"
            )
        return source.replace(self.text, self.with_defect)


def defects() -> Iterator[Defect]:
    for path in sorted(DEFECTS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["defect"]:
            yield Defect(path.stem, **{**entry, "tests": tuple(entry["tests"])})


def tier(test: str) -> str:
    """The tier of a test, as its file's marker says."""
    text = (ROOT / test.partition("::")[0]).read_text("utf-8")
    found = re.search(r"^pytestmark = .*pytest\.mark\.(process|soak)", text, re.MULTILINE)
    return found[1] if found else "unit"


def run(tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests on the copy's sources."""
    sources = ":".join(str(path) for path in sorted(COPY.glob("*/src")))
    options = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutation")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=COPY,
        env={**os.environ, "PYTHONPATH": f"{sources}:{COPY / 'tests' / 'harness'}"},
        capture_output=True,
        text=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Put defects of the past back: do the tests notice?")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="defects with these words, or of this area"
    )
    options = parser.parse_args()
    chosen = [each for each in defects() if options.only in (each.area, "") or options.only in each.what]
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT, COPY, symlinks=True, ignore=LEFT_OUT)
    (COPY / ".jars").symlink_to(ROOT / ".jars")  # ZooKeeper, among others
    before = run(tuple(sorted({test for each in chosen for test in each.tests})))
    if before.returncode:
        print(before.stdout, before.stderr, "\nThese tests fail without any defect.", sep="\n")
        return 1
    missed = []
    for number, each in enumerate(chosen, 1):
        path = COPY / each.file
        source = path.read_text("utf-8")
        path.write_text(each.put_back(source), "utf-8")
        os.utime(path, (number, number))  # compiled modules are told apart by their time
        result = run(each.tests)
        path.write_text(source, "utf-8")
        if result.returncode != FAILED:
            missed.append(each)
        tiers = "+".join(sorted({tier(test) for test in each.tests}))
        state = f"noticed ({tiers})" if result.returncode == FAILED else f"NOT NOTICED ({result.returncode})"
        print(f"{state:20} {each.area}: {each.what}", flush=True)
    print(f"\n{len(chosen)} defects, {len(missed)} of them not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
