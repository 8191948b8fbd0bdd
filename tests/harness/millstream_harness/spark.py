"""Batch loads as separate processes, and the records that they load."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness import spark_classes
from millstream_harness.java import SPARK_JARS, fetched
from millstream_harness.tools import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD_TIMEOUT_S = 240.0
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Spark that lives for seconds: a compiler and a collector with a long start-up do not pay off."""
SMALL_TABLES = "-Dspark.sql.shuffle.partitions=2 -Dspark.databricks.delta.snapshotPartitions=2"
"""For tables of a few rows: Spark's and Delta's own numbers make 200 and 50 tasks of each step."""


def environment(jvm_options: str = "") -> dict[str, str]:
    """The environment of a job that has a few rows to load; by default, its JVM uses the archive of Spark's classes."""
    shared = jvm_options or f"{spark_classes.QUIET} -XX:SharedArchiveFile={spark_classes.archive()}"
    return {
        "MILLSTREAM_SPARK_JARS": str(SPARK_JARS),
        "JDK_JAVA_OPTIONS": SHORT_LIVED,
        "SPARK_SUBMIT_OPTS": f"{SMALL_TABLES} {shared}",
    }


def spark_jars() -> Path:
    """The folder of Spark's Kafka source, fetched by Maven the first time."""
    require("java")
    return fetched(SPARK_JARS)


def use_spark(patch: pytest.MonkeyPatch) -> None:
    """Give that environment to this process, and to those that it starts."""
    for name, value in environment().items():
        patch.setenv(name, value)


def keep_log_formats() -> None:
    """Have PySpark's loggers leave handlers as they are.

    pytest attaches its handlers, which last for the session, to loggers that do not propagate, as these two after an
    error of a query; and a PySparkLogger gives its handlers a format in JSON, so that no later test finds its lines.
    """
    from pyspark.logger import PySparkLogger

    class Logger(PySparkLogger):
        def addHandler(self, handler: logging.Handler) -> None:
            logging.Logger.addHandler(self, handler)

    before = logging.getLoggerClass()
    logging.setLoggerClass(Logger)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name)
    logging.setLoggerClass(before)


_users = 0
"""How many blocks of `spark_session` are open: the session ends with the last one."""


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Spark in this process, configured as in a batch load. Nested blocks, in any file, share one session."""
    global _users
    from millstream_jobs.load import open_session

    keep_log_formats()
    with pytest.MonkeyPatch.context() as patch:
        use_spark(patch)
        interrupt = signal.getsignal(signal.SIGINT)
        session = open_session("tests", ["Delta", "Iceberg"])
        signal.signal(
            signal.SIGINT, interrupt
        )  # PySpark's own handler outlives the session and fails without it
    _users += 1
    try:
        yield session
    finally:
        _users -= 1
        if not _users:
            session.stop()
        collect_sockets()


@contextlib.contextmanager
def as_configured(session: SparkSession) -> Iterator[SparkSession]:
    """The session; afterwards its settings are what they were before, and no query of the block runs."""
    before = session.conf.getAll
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        after = session.conf.getAll
        for key in after.keys() - before.keys():
            session.conf.unset(key)
        for key, value in before.items():
            if after.get(key) != value:
                session.conf.set(key, value)


def collect_sockets() -> None:
    """Each Python thread has its own connection to the JVM, which py4j leaves to the garbage collector.

    Collect them here: otherwise a test that has no Spark may get the warning that a socket was left open.
    """
    gc.collect()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The end of a load: ``result`` is the content of its result file, {} if it wrote none."""

    status: int
    stdout: str
    stderr: str
    result: dict[str, Any]

    @property
    def last_line(self) -> str:
        """Its last line on stderr: after a failure, the reason."""
        return self.stderr.strip().rpartition("\n")[2]


class LoadProcess:
    """``millstream-load`` over RUN.json in ``folder``, in its own process group."""

    def __init__(self, folder: Path, run: Mapping[str, Any] | str, jars: Path = SPARK_JARS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._result = folder / "result.json"
        self._result.unlink(missing_ok=True)
        self._out, self._err = folder / "stdout", folder / "stderr"
        path = folder / "run.json"
        path.write_text(run if isinstance(run, str) else json.dumps({**run, "result": str(self._result)}))
        executable = str(Path(sys.executable).parent / "millstream-load")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [executable, str(path)],
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, **environment(), "MILLSTREAM_SPARK_JARS": str(jars)},
            )

    def kill(self) -> None:
        """SIGKILL for the job and Spark's JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> Loaded:
        try:
            status = self.process.wait(LOAD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        result = json.loads(self._result.read_bytes()) if self._result.exists() else {}
        return Loaded(status, self._out.read_text(), self._err.read_text(), result)


@contextlib.contextmanager
def job_process(job: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``millstream-JOB`` with all its processes in a separate session, which is killed at the end.

    Its output is in a file beside ``path``, with the suffix .log.
    """
    spark_jars()
    executable = str(Path(sys.executable).parent / f"millstream-{job}")
    with path.with_suffix(".log").open("ab") as log:
        started = subprocess.Popen(
            [executable, str(path)],
            start_new_session=True,
            env={**os.environ, **environment()},
            stdout=log,
            stderr=log,
        )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def publish(
    bootstrap: str,
    topic: str,
    partitions: Iterable[Iterable[tuple[bytes | None, bytes | None]]],
    config: dict[str, str] | None = None,
) -> None:
    """Create a topic with these keys and values in its partitions."""
    contents = [list(records) for records in partitions]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, len(contents), 1, config=config or {})])[topic].result(10)
    queue = {"queue.buffering.max.messages": max(100_000, sum(map(len, contents)))}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **queue})
    for partition, records in enumerate(contents):
        for key, value in records:
            producer.produce(topic, value, key, partition)
    assert producer.flush(120) == 0
