"""A batch load of a topic of eight partitions into Parquet, by Spark with two cores, and a bare write of the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from millstream_bench import perf
from millstream_bench.figures import Figure, cpu, rate
from millstream_bench.peers import KAFKA, MILLSTREAM, Peer
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import LARGE
from millstream_harness.java import SPARK_JARS
from millstream_harness.spark import spark_jars

JOB = Path(__file__).resolve().parents[1] / "spark_job.py"
PARTITIONS = 8
WARM_UP_SHARE = 20
"""The warm-up loads one record of this many."""
SPARK_CONF = {
    "spark.driver.memory": "2g",
    "spark.driver.extraClassPath": f"{SPARK_JARS}/*",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def loading(records: int, size: int) -> Callable[[Peer, float], Numbers]:
    def run(peer: Peer, scale: float) -> Numbers:
        spark_jars()
        count = scaled(records, scale)
        peer.start()
        with (
            perf.new_topic(peer.bootstrap, PARTITIONS) as topic,
            tempfile.TemporaryDirectory(prefix="millstream-bench-lake-", dir=peer.folder.parent) as lake,
        ):
            perf.produce(peer.bootstrap, topic, count, size, LARGE)
            ends = end_offsets(peer.bootstrap, topic)
            folder = Path(lake)
            first = [end // WARM_UP_SHARE for end in ends]
            warm_up = run_file(folder, "warm-up", peer.bootstrap, topic, first)
            whole = run_file(folder, "whole", peer.bootstrap, topic, ends)
            before = peer.cpu_seconds()
            taken = spark(str(warm_up), str(whole), str(folder / "bare"))
            used = peer.cpu_seconds() - before
            return {
                "rate": count / taken["load"],
                "broker CPU": used,
                "time beside a bare write": taken["load"] / taken["bare"],
            }

    return run


def end_offsets(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()


def run_file(folder: Path, name: str, bootstrap: str, topic: str, ends: list[int]) -> Path:
    path = folder / f"{name}.json"
    run: dict[str, Any] = {
        "name": name,
        "bootstrap": bootstrap,
        "offsets": [
            {"topic": topic, "partition": number, "from": 0, "until": end} for number, end in enumerate(ends)
        ],
        "value": {"format": "Binary"},
        "output": {"format": "Parquet", "path": str(folder / name)},
    }
    path.write_text(json.dumps(run))
    return path


def spark(*arguments: str) -> dict[str, float]:
    """The job's output; RuntimeError with it if the job fails."""
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]"]
    conf = [part for key, value in SPARK_CONF.items() for part in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [*submit, *conf, str(JOB), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        timeout=perf.TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Spark ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    taken: dict[str, float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return taken


def workload(name: str, title: str, records: int, size: int) -> Workload:
    return Workload(
        name=name,
        title=title,
        figures=(rate(1.0), cpu(0.6), Figure("time beside a bare write", "×", value=1.05)),
        run=loading(records, size),
        own=True,
        rounds={MILLSTREAM: 1, KAFKA: 1},
    )


SPARK = (
    workload("spark-200b", "Batch load by Spark, 200 B records, 8 partitions, local[2]", 20_000_000, 200),
    workload("spark-1k", "Batch load by Spark, 1 KB records, 8 partitions, local[2]", 2_000_000, 1000),
)
