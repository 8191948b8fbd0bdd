"""Programs in other languages that play scenarios and print ``PASS name`` or ``FAIL name: why`` for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from millstream_harness.java import run

Verdicts = dict[str, str]
PASSED = "PASS"
# A test's own limit is 120 seconds, and it should report the scenarios played until then.
TIMEOUT_S = 100.0


def play(command: Sequence[str], cwd: Path | None = None) -> Verdicts:
    """The program's result for each scenario: PASSED, or the reason of the failure."""
    done = run(command, timeout=TIMEOUT_S, cwd=cwd)
    lines = re.findall(r"^(PASS|FAIL) ([\w-]+)(?:: (.*))?$", done.stdout, re.MULTILINE)
    assert lines, done.stdout + done.stderr
    return {name: PASSED if verdict == "PASS" else why for verdict, name, why in lines}
