"""The Java client, today's and the one in Spark: one program plays every scenario of `java/JavaClient.java`.

Each is a test here; a version's scenarios are played in one JVM.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import KAFKA_VERSION, client_classpath, java_command
from millstream_harness.kafka import KafkaProcess
from millstream_harness.played import PASSED, Verdicts, play
from millstream_harness.scenario import CODECS

pytestmark = pytest.mark.soak

SOURCE = Path(__file__).parent / "java" / "JavaClient.java"
SCENARIOS = re.findall(r'scenarios\.put\("([a-z-]+)",', SOURCE.read_text()) + [
    f"codec-{one}" for one in CODECS
]


VERSIONS = (KAFKA_VERSION, "3.9.1")


@pytest.fixture(scope="module", params=VERSIONS)
def played(request: pytest.FixtureRequest, compat_broker: InProcessBroker | KafkaProcess) -> Verdicts:
    classpath = client_classpath(request.param)
    return play(java_command(str(SOURCE), compat_broker.bootstrap, classpath=classpath))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client(played: Verdicts, scenario: str) -> None:
    assert played.get(scenario, "it was not played") == PASSED
