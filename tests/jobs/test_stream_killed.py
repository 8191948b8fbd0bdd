"""`millstream-stream` is killed at random moments and started again: each record is in the table once."""

from __future__ import annotations

import json
import random
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.spark import job_process, publish
from millstream_harness.spark_loads import PY4J, read_table
from millstream_jobs.stream import read_stream, stream

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings(PY4J),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of deltalake
]
RECORDS, A_BATCH = 200, 20


def test_killed_at_random_moments_each_record_is_there_once(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    """Three processes are killed after another batch is in the table; a fourth run finishes."""
    topic, lake, path = f"streamed-{uuid.uuid4().hex[:8]}", tmp_path / "lake", tmp_path / "stream.json"
    publish(shared_broker.bootstrap, topic, [[(None, b"%d" % number) for number in range(RECORDS // 2)]] * 2)
    wanted = {
        "name": "flights",
        "bootstrap": shared_broker.bootstrap,
        "topics": [topic],
        "maxRecordsPerBatch": A_BATCH,
        "checkpoint": str(tmp_path / "checkpoint"),
        "value": {"format": "Text"},
        "output": {"format": "Delta", "path": str(lake)},
    }
    path.write_text(json.dumps(wanted))
    log = path.with_suffix(".log")

    def offsets() -> list[tuple[int, int]]:
        if not any((lake / "_delta_log").glob("*.json")):
            return []
        table = read_table("Delta", lake)
        return sorted(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))

    there = 0
    for _ in range(3):
        with job_process("stream", path) as started:
            deadline = time.monotonic() + 300
            while len(offsets()) <= there:
                if (status := started.poll()) == 0:  # a fast one may end before the kill
                    break
                assert status is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.05)
            pause = random.uniform(0, 2)
            time.sleep(pause)
        there = len(offsets())
        print(f"killed {pause:.3f} s after another batch, with {there} records there")
        assert there == len(set(offsets()))
    stream(spark, read_stream(path))
    assert offsets() == [(partition, offset) for partition in (0, 1) for offset in range(RECORDS // 2)]
