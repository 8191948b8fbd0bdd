"""A job's progress, as lines on stdout: ``load: reading: 120,000 of 336,776 records, stage 3, 5 of 16 tasks``.

A load reads (records into staged files), checks (the staged rows) and publishes. Each of these steps runs stages of
Spark, whose rows and tasks so far Spark's own status store has: those of a task that runs are up to ten seconds old,
as executors report them with their heartbeats.
Lines come when something has changed: every second at first, then after a tenth of the time so far, up to half a
minute, so that the log of a long run stays short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from pyspark import InheritableThread
from pyspark.sql import SparkSession

EVERY_S = 1.0
LONGEST_S = 30.0
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


class Stage(Struct, frozen=True):
    """A stage of Spark that runs."""

    number: int
    rows: int
    done: int
    tasks: int

    def __str__(self) -> str:
        return f"stage {self.number}, {self.done:,} of {self.tasks:,} tasks"


def active_stage(spark: SparkSession) -> Stage | None:
    """The last stage that has begun and still runs."""
    stages: Any = spark.sparkContext._jsc.sc().statusStore().activeStages()
    found = [stages.apply(number) for number in range(stages.size())]
    last = max(found, key=lambda stage: stage.stageId(), default=None)
    if last is None:
        return None
    counts = (last.inputRecords(), last.shuffleReadRecords(), last.outputRecords())
    return Stage(last.stageId(), max(counts), last.numCompleteTasks(), last.numTasks())


def pause(since: float) -> float:
    """Seconds until the next line of a step that has taken so long."""
    return min(LONGEST_S, max(EVERY_S, since / 10))


class Progress:
    """The progress of a job over ``total`` records."""

    def __init__(self, spark: SparkSession, total: int) -> None:
        self._spark = spark
        self._total = total

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """While entered, lines say how far the step is. The first comes at once, a last one only after others."""
        ended, lines = threading.Event(), [_line(name, 0, self._total)]
        say(lines[0])
        thread = InheritableThread(target=self._watch, args=(name, lines, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if len(lines) > 1:
            say(_line(name, self._total, self._total))

    def _watch(self, name: str, lines: list[str], ended: threading.Event) -> None:
        begun = time.monotonic()
        while not ended.wait(pause(time.monotonic() - begun)):
            if (stage := active_stage(self._spark)) is not None:
                line = f"{_line(name, min(stage.rows, self._total), self._total)}, {stage}"
                if line != lines[-1]:
                    lines[1:] = [line]
                    say(line)


def _line(step: str, records: int, total: int) -> str:
    return f"{step}: {records:,} of {total:,} records"
