"""GitHub's workflows, read by actionlint: expressions, inputs of actions, shell syntax."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.java import run
from millstream_harness.tools import missing, require

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[1]


def test_workflows_have_no_mistake() -> None:
    require("go")
    done = run(["make", "--silent", "workflows"], cwd=ROOT, check=False, timeout=280)
    if "go: " in done.stderr:
        missing(f"actionlint, which go could not fetch and build: {done.stderr.strip()}")
    assert (done.stdout, done.returncode) == ("", 0)
