"""A few rounds of what `make faults FAULTS=mirrors` does for longer: copies are right and group positions follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream_faults import isolation
from millstream_faults.mirrors.faults import STRIKES
from millstream_faults.mirrors.plan import Kind
from millstream_harness.faults_command import check_refusal, run
from millstream_harness.links import has_tun
from millstream_harness.tools import missing, require

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

KINDS = "stall worker,kill source leader,kill target brokers,flapping link,recreate topic"
SEED = os.environ.get("MILLSTREAM_SEED", "7")


@pytest.mark.timeout(1200)
def test_mirrors_between_clusters_that_are_broken(tmp_path: Path) -> None:
    require("java")
    if isolation.unshare() is None or not has_tun():
        missing("the right to make namespaces and TUN devices (root, or user namespaces; iproute2, iptables)")
    kinds = KINDS.split(",")
    few = ["--rounds", str(len(kinds)), "--seed", SEED, "--kinds", KINDS]
    done = run("mirrors", *few, "--out", str(tmp_path / "run"), timeout=1160)
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
    check_refusal(["mirrors", *arguments], said)
