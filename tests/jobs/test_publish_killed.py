"""`millstream-publish` is killed at random moments and started again: each row is in the topic once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.spark import job_process
from millstream_harness.spark_loads import PY4J
from millstream_harness.spark_publications import Topic, publication
from millstream_jobs.publish import publish
from millstream_jobs.publish_file import read_publish

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings(PY4J),
]
ROWS = 3000


def test_killed_at_random_moments_each_row_is_there_once(
    spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    """Three processes are killed while they send, before or after a commit; a fourth run finishes.

    It takes ten seconds in all, and a transaction five.
    """
    path = tmp_path / "publish.json"
    log = path.with_suffix(".log")
    topic = Topic(shared_broker)
    wanted = publication(topic, tmp_path, ROWS)
    settings = {**wanted, "maxRecordsPerSecond": ROWS // 10, "partitioner": "RoundRobin"}
    path.write_text(json.dumps(settings))
    before = 0
    for _ in range(3):
        with job_process("publish", path) as started:
            deadline = time.monotonic() + 300
            while topic.end() <= before:
                if (
                    status := started.poll()
                ) == 0:  # on a slow machine, one may have sent all before the kill
                    break
                assert status is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.05)
            pause = random.uniform(0, 8)
            time.sleep(pause)
        before = topic.end()
        visible = len(topic.messages())
        print(f"killed {pause:.3f} s after its first record, at offset {before}, with {visible} rows there")
    assert publish(spark, read_publish(path)).rows == ROWS
    counted = Counter(topic.ids())
    assert counted == Counter(range(ROWS))
