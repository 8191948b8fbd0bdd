"""franz-go: one Go program plays every scenario of `go/main.go`; each is a test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_harness.go_programs import built
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import ROOT
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.scenario import CODECS

pytestmark = pytest.mark.soak

FOLDER = Path(__file__).parent / "go"
SCENARIOS = re.findall(r'play\("([a-z-]+)",', (FOLDER / "main.go").read_text()) + [
    f"codec-{one}" for one in CODECS
]


@pytest.fixture(scope="session")
def program() -> Path:
    return built(FOLDER, ROOT / ".cache" / "compat-franz-go")


@pytest.fixture(scope="session")
def played(program: Path, compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    return play([str(program), compat_broker.bootstrap])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_franz_go(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED
