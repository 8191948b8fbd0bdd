"""Runs pytest, and what failed once more: ``run_tests.py [--workers N] -- ARGUMENTS``.

A test that fails runs a second time at the end, alone. If it passes then, the run has passed, and its last lines are
``FLAKY name``: each is a defect of the product or of the test. A failure of a model, a state machine or a comparison
stands (``tiers.runs_once``), and so do more failures than chance explains.

The file that ``FLAKY`` names in the environment gets those lines, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST = 8
"""More failures than this have one cause, and it is not chance."""
FAILED = 1
"""Pytest's status when tests failed; the others say that the run itself did not work."""


@dataclass(frozen=True)
class Failure:
    test: str
    once: bool


def verdict(failures: Sequence[Failure]) -> str:
    """Why there is no second run; empty if there is one."""
    if not failures:
        return "pytest failed, but no test did"
    if len(failures) > MOST:
        return f"{len(failures)} tests failed, and a second run is for at most {MOST}"
    if stands := [one.test for one in failures if one.once]:
        return f"a failure of a model, a state machine or a comparison stands: {', '.join(stands)}"
    return ""


def again(arguments: Sequence[str], failures: Sequence[Failure]) -> list[str]:
    """Pytest's arguments for the second run: those of the first, with these tests for its files."""
    options = [one for one in arguments if not Path(one.partition("::")[0]).exists()]
    return [*options, *(one.test for one in failures)]


def read(path: Path) -> list[Failure]:
    return [Failure(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run pytest, and what failed once more, alone.")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that share the tests of the first run"
    )
    parser.add_argument("arguments", nargs="*", help="arguments for pytest")
    options = parser.parse_args(argv)
    shared = (
        ["-n", str(options.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        if options.workers
        else []
    )
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        status = _pytest([*shared, *options.arguments], first)
        if status != FAILED:
            return status
        failures = read(first)
        if why := verdict(failures):
            print(f"\nno second run: {why}", flush=True)
            return FAILED
        print(f"\n{len(failures)} failed: once more, alone", flush=True)
        status = _pytest(again(options.arguments, failures), second)
        failed = {one.test for one in read(second)}
    flaky = (
        [f"FLAKY {one.test}" for one in failures if one.test not in failed] if status in (0, FAILED) else []
    )
    print("\n".join(["", *flaky]), flush=True)
    if path := os.environ.get("FLAKY"):
        with Path(path).open("a", encoding="utf-8") as lines:
            lines.writelines(f"{line}\n" for line in flaky)
    return status


def _pytest(arguments: Sequence[str], failures: Path) -> int:
    failures.touch()
    command = [sys.executable, "-P", "-m", "pytest", f"--failures={failures}", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
