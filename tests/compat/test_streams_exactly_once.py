"""Kafka Streams with exactly_once_v2 counts each word once, while brokers and the application are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.java import ROOT, fetched, java_command
from millstream_harness.word_count import counts_each_word_once

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "frameworks" / "WordCount.java"
JARS = ROOT / ".jars" / "frameworks"


def test_each_word_is_counted_once(tmp_path: Path) -> None:
    def application(bootstrap: str) -> list[str]:
        config = tmp_path / "streams.properties"
        properties = {
            "bootstrap.servers": bootstrap,
            "application.id": "words",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(tmp_path / "state"),
            "statestore.cache.max.bytes": "0",  # each update of a count is a record
            "commit.interval.ms": "1000",
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1000",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return java_command(str(PROGRAM), str(config), "lines", "counts", classpath=f"{fetched(JARS)}/*")

    counts_each_word_once(tmp_path, application)
