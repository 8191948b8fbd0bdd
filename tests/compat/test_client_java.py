"""The Java client: one program plays every scenario of `java/JavaClient.java` in one JVM; each is a test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import KAFKA_VERSION, java_command, run
from millstream_harness.kafka import KafkaProcess

SOURCE = Path(__file__).parent / "java" / "JavaClient.java"
SCENARIOS = re.findall(r'scenarios\.put\("([a-z-]+)"(?! \+)', SOURCE.read_text()) + [
    f"codec-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")
]


@pytest.fixture(scope="module")
def played(compat_broker: BrokerProcess | KafkaProcess) -> dict[str, str]:
    """What the program said of each scenario: ``PASS``, or why it failed."""
    done = run(java_command(str(SOURCE), compat_broker.bootstrap), timeout=110)
    lines = (line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("PASS ", "FAIL ")))
    said = {rest.split(":")[0]: verdict if verdict == "PASS" else rest for verdict, rest in lines}
    assert said, done.stdout + done.stderr
    return said


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client(played: dict[str, str], scenario: str) -> None:
    assert played.get(scenario, "it was not played") == "PASS", f"kafka-clients {KAFKA_VERSION}"
