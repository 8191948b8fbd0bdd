"""The Java client: one program plays every scenario of `java/JavaClient.java` in one JVM; each is a test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import KAFKA_VERSION, java_command
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.scenario import CODECS

SOURCE = Path(__file__).parent / "java" / "JavaClient.java"
SCENARIOS = re.findall(r'scenarios\.put\("([a-z-]+)",', SOURCE.read_text()) + [
    f"codec-{one}" for one in CODECS
]


@pytest.fixture(scope="module")
def played(compat_broker: BrokerProcess | KafkaProcess) -> Verdicts:
    return play(java_command(str(SOURCE), compat_broker.bootstrap))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED, f"kafka-clients {KAFKA_VERSION}"
