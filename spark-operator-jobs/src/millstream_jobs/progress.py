"""Spark's progress, as lines on stdout: ``load: 120,000 of 336,776 records``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from pyspark import InheritableThread
from pyspark.sql import SparkSession

EVERY_S = 1.0
_job = "load"


@contextmanager
def told_by(job: str) -> Iterator[None]:
    """While entered, progress lines name this job."""
    global _job
    before, _job = _job, job
    try:
        yield
    finally:
        _job = before


def say(line: str) -> None:
    print(f"{_job}: {line}", flush=True)


class Progress:
    """While entered, prints every second roughly how many records have been read, if that has changed.

    Tasks have about as many records each, so the share of a stage's finished tasks is that of its records.
    """

    def __init__(self, spark: SparkSession, total: int) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._total = total
        self._done = 0
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        say(f"0 of {self._total:,} records")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None and self._done < self._total:
            say(f"{self._total:,} of {self._total:,} records")

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
            shares = [
                stage.numCompletedTasks / stage.numTasks for stage in stages if stage and stage.numTasks
            ]
            done = int(max(shares, default=0.0) * self._total)
            if done > self._done:
                self._done = min(done, self._total)
                say(f"{self._done:,} of {self._total:,} records")
