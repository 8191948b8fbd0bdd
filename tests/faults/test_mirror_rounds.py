"""A few rounds of what `make faults FAULTS=mirrors` does for longer: copies are right and group positions follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream_faults import isolation
from millstream_faults.mirrors.faults import STRIKES
from millstream_faults.mirrors.plan import Kind
from millstream_harness.tools import missing, require

KINDS = "stall worker,kill source leader,kill target brokers,flapping link,recreate topic"
SEED = os.environ.get("MILLSTREAM_SEED", "7")
FOLDERS = [Path(__file__).parent, Path(__file__).parents[1] / "harness"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
COMMAND = [sys.executable, "-P", "-m", "millstream_faults", "mirrors"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=560, check=False
    )


@pytest.mark.timeout(600)
def test_mirrors_between_clusters_that_are_broken(tmp_path: Path) -> None:
    require("java")
    if isolation.unshare() is None or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        missing("the right to make namespaces and TUN devices (root, or user namespaces; iproute2, iptables)")
    kinds = KINDS.split(",")
    done = run(
        "--rounds", str(len(kinds)), "--seed", SEED, "--kinds", KINDS, "--out", str(tmp_path / "run")
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    for kind in kinds:
        assert f": {kind} for " in done.stdout


def test_each_kind_is_done() -> None:
    assert set(STRIKES) == set(Kind)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kinds", "kill everybody"], "kill everybody: there are kill worker,"),
        (["--rounds", "0"], "0: is less than 1"),
        (["--out", str(Path(__file__).parent)], "there is something in it already"),
    ],
)
def test_what_it_does_not_take(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
