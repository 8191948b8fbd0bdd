"""`.ci/step.py`, which shows what long steps of `make` do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

STEP = [sys.executable, str(Path(__file__).parents[1] / ".ci" / "step.py"), "setup"]


def test_a_step_that_succeeds_is_one_line() -> None:
    command = ["sh", "-c", r"printf '\033[0mInstalling\n'"]
    ended = subprocess.run([*STEP, *command], capture_output=True, text=True, check=True)
    (line,) = ended.stdout.splitlines()
    assert line.startswith("setup: done in ")


def test_a_step_that_fails_shows_why() -> None:
    command = ["sh", "-c", r"printf '\033[31m[ERROR] no such jar\033[0m\n' >&2; exit 3"]
    ended = subprocess.run([*STEP, *command], capture_output=True, text=True)
    assert ended.returncode == 3
    assert ended.stdout.splitlines()[0] == "[ERROR] no such jar"
    assert ended.stdout.splitlines()[1].endswith("with exit status 3")


def test_a_long_step_says_what_goes_on(tmp_path: Path) -> None:
    """In a pipe, a line now and then, until the test ends the step."""
    running = tmp_path / "running"
    running.touch()
    line = "[INFO] Downloading from central: https://maven.example/a/b.jar"
    passing = "  Successfully uninstalled setuptools-65.5.0"
    wait = f"echo '{line}'; echo '{passing}'; while [ -e {running} ]; do sleep 0.1; done"
    environment = {**os.environ, "STEP_EVERY_S": "0.1"}
    with subprocess.Popen(
        [*STEP, "sh", "-c", wait], stdout=subprocess.PIPE, text=True, env=environment
    ) as step:
        assert step.stdout is not None
        assert any(line.endswith(" s: Downloading from central: b.jar\n") for line in step.stdout)
        running.unlink()
        assert step.wait() == 0


def test_an_interrupted_step_ends_its_command() -> None:
    with subprocess.Popen(
        [*STEP, "sleep", "1000"], stdout=subprocess.PIPE, text=True, env={**os.environ, "STEP_EVERY_S": "0.1"}
    ) as step:
        assert step.stdout is not None
        step.stdout.readline()
        step.send_signal(signal.SIGTERM)
        assert step.wait() == 128 + signal.SIGTERM
