"""A short attack of what `make faults FAULTS="hostility"` does for an hour, and a small crowd."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.faults_command import check_refusal, run
from millstream_harness.tools import require

pytestmark = [pytest.mark.soak, pytest.mark.once]

OF_TIME = ("fetch: p99 was", "produce: p99 was")
"""Violations that the machine may be to blame for."""


@pytest.mark.timeout(900)
def test_hostile_traffic_gets_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    require("java")
    out = tmp_path / "run"
    done = run("hostility", "--seconds", "20", "--seed", "5", "--out", str(out), timeout=880)
    violations = [line for line in done.stdout.splitlines() if "VIOLATION" in line]
    assert [line for line in violations if not any(text in line for text in OF_TIME)] == []
    assert "attacks:" in (out / "summary.txt").read_text(), done.stderr


@pytest.mark.timeout(900)
def test_a_crowd_that_does_not_log_in_costs_little(tmp_path: Path) -> None:
    done = run(
        "crowd",
        "--connections",
        "200",
        "--listeners",
        "CLEAR,SECURE",
        "--out",
        str(tmp_path / "run"),
        timeout=880,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout


def test_more_connections_than_file_descriptors_are_refused() -> None:
    check_refusal(["crowd", "--connections", "100000000"], "raise the limit (ulimit -n)")
