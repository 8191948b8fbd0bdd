"""kafkajs: one Node.js program plays every scenario of `node/client.js`; each is a test here."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import run
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.tools import missing, require

pytestmark = pytest.mark.soak

FOLDER = Path(__file__).parent / "node"
SCENARIOS = re.findall(r"^  '?([a-z-]+)'?: (?:async )?\(\)", (FOLDER / "client.js").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def played(compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    node = require("node")
    install(require("npm"))
    return play([node, "client.js", compat_broker.bootstrap], cwd=FOLDER)


def install(npm: str) -> None:
    """Install the pinned versions of package-lock.json into node/node_modules, once."""
    with (FOLDER / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        installed = FOLDER / "node_modules" / ".package-lock.json"
        if installed.exists() and installed.stat().st_mtime >= (FOLDER / "package-lock.json").stat().st_mtime:
            return
        done = run([npm, "ci", "--no-audit", "--no-fund"], cwd=FOLDER, check=False, timeout=110)
        if done.returncode != 0:
            missing(f"kafkajs and its codecs, which npm could not fetch and build: {done.stderr.strip()}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kafkajs(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED
