"""`make faults` as a process."""

from __future__ import annotations

import os
import subprocess
import sys

from .chart import ROOT

COMMAND = [sys.executable, "-P", "-m", "millstream_faults"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / "tests" / name) for name in ("faults", "harness")),
}


def run(*arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run it to its end; subprocess.TimeoutExpired after ``timeout`` seconds."""
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout, check=False
    )


def check_refusal(arguments: list[str], said: str) -> None:
    """Check that it does not start, and gives the reason in a line."""
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
