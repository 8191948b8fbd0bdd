"""GitHub's workflows, read by actionlint: expressions, inputs of actions, shell syntax."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.java import run
from millstream_harness.tools import missing, require

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[1]
VERSION = "v1.7.7"


def test_workflows_have_no_mistake() -> None:
    go = require("go")
    folder = ROOT / ".cache" / f"actionlint-{VERSION}"
    program = folder / "actionlint"
    if not program.exists():
        package = f"github.com/rhysd/actionlint/cmd/actionlint@{VERSION}"
        done = run([go, "install", package], env={"GOBIN": str(folder)}, check=False, timeout=280)
        if done.returncode != 0:
            missing(f"actionlint, which go could not fetch and build: {done.stderr.strip()}")
    files = sorted(str(path) for path in (ROOT / ".github/workflows").glob("*.yml"))
    # Without programs that exist only on some machines (shellcheck).
    done = run([str(program), "-shellcheck=", "-pyflakes=", *files], check=False)
    assert (done.stdout, done.returncode) == ("", 0)
