"""franz-go: one Go program plays every scenario of `go/main.go`; each is a test here."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import ROOT, run
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.scenario import CODECS
from millstream_harness.tools import missing, require

pytestmark = pytest.mark.soak

FOLDER = Path(__file__).parent / "go"
PROGRAM = ROOT / ".cache" / "compat-franz-go"
SCENARIOS = re.findall(r'play\("([a-z-]+)",', (FOLDER / "main.go").read_text()) + [
    f"codec-{one}" for one in CODECS
]


@pytest.fixture(scope="session")
def program() -> Path:
    """The program, built again if its source is newer."""
    go = require("go")
    PROGRAM.parent.mkdir(exist_ok=True)
    with PROGRAM.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        newest = max(path.stat().st_mtime for path in FOLDER.iterdir())
        if not PROGRAM.exists() or PROGRAM.stat().st_mtime < newest:
            done = run([go, "build", "-o", str(PROGRAM), "."], cwd=FOLDER, check=False, timeout=110)
            if done.returncode != 0:
                missing(f"franz-go, which go could not fetch and build: {done.stderr.strip()}")
            os.utime(PROGRAM)
    return PROGRAM


@pytest.fixture(scope="session")
def played(program: Path, compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    return play([str(program), compat_broker.bootstrap])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_franz_go(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED


def test_franz_go_has_no_transactions(program: Path, start_broker: Callable[..., InProcessBroker]) -> None:
    """Apache Kafka has some, so this test uses its own broker."""
    assert play([str(program), start_broker().bootstrap, "refusals"]) == {"no-transactions": PASSED}
