"""`make demo`, the first command of the README, ends as the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream_harness.java import ROOT
from millstream_harness.spark import environment as job_environment

pytestmark = pytest.mark.soak

TIMEOUT_S = 1600


@pytest.mark.timeout(1700)
def test_the_demo_ends_as_the_readme_says(tmp_path: Path) -> None:
    """The Makefile's command, in an empty folder; SIGTERM at the deadline makes it stop all its processes."""
    (command,) = re.findall(r"^demo: .*\n\t@\$\(BIN\)/python (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    (last,) = re.findall(r"`(demo: published = .*)`", (ROOT / "README.md").read_text())
    environment = {**os.environ, **job_environment()}
    demo = subprocess.Popen(
        [sys.executable, ROOT / command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = demo.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        demo.terminate()
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, output
    assert output.splitlines()[-1] == last
    assert (tmp_path / "demo-out/report.html").stat().st_size > 10_000
