"""kafkajs: one Node.js program plays every scenario of `node/client.js`; each is a test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kafka import KafkaProcess
from millstream_harness.node_programs import installed
from millstream_harness.played import PASSED, Verdicts, play

pytestmark = pytest.mark.soak

FOLDER = Path(__file__).parent / "node"
SCENARIOS = re.findall(r"^  '?([a-z-]+)'?: (?:async )?\(\)", (FOLDER / "client.js").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def played(compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    return play([installed(FOLDER), "client.js", compat_broker.bootstrap], cwd=FOLDER)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kafkajs(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED
