"""Shared by the commands of all jobs: `millstream-JOB FILE.json`.

Stdout shows progress; stderr has Spark's log and, after a failure, ends with one line about it. Exit status: 0
succeeded, 1 failed, 2 failed for good: the file is not valid, or no retry can help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millstream_jobs import progress
from millstream_jobs.failures import JobError, root_cause
from millstream_jobs.run import BadRun, Result, name_and_result
from millstream_jobs.words import count_of

Config = TypeVar("Config")


class Job(Struct, Generic[Config], frozen=True):
    name: str
    read: Callable[[Path], Config]
    """The configuration in a file; BadRun if it is not valid."""
    start: Callable[[Config], Result]
    """Run it in its own Spark session."""
    counts_rows: bool = True


def run(job: Job[Config], arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or given[0].startswith("-"):
        print(f"usage: millstream-{job.name} FILE.json", file=sys.stderr)
        return 0 if given in (["-h"], ["--help"]) else 2
    with progress.told_by(job.name):
        return _run(job, Path(given[0]))


def _run(job: Job[Config], path: Path) -> int:
    try:
        result = job.start(job.read(path))
    except BadRun as error:
        return _fail(job.name, path, str(error), error.reason, status=2)
    except JobError as error:
        return _fail(job.name, path, str(error), error.reason, status=2 if error.final else 1)
    except OSError as error:  # of a file system or store
        return _fail(job.name, path, root_cause(error), "OutputNotWritable")
    except (Py4JError, PySparkException) as error:
        return _fail(job.name, path, root_cause(error))
    return _succeed(job, path, result)


def _succeed(job: Job[Config], path: Path, result: Result) -> int:
    corrupt = f", {result.corrupt_records:,} of them corrupt" if result.corrupt_records else ""
    progress.say(f"Succeeded: {count_of(result.rows, 'row')}{corrupt}" if job.counts_rows else "Succeeded")
    return 0 if _report(job.name, path, result) else 1


def _fail(job: str, path: Path, error: str, reason: str = "", status: int = 1) -> int:
    _report(job, path, Result("Failed", error=error, reason=reason))
    print(f"millstream-{job}: {error}", file=sys.stderr)
    return status


def _report(job: str, path: Path, result: Result) -> bool:
    """Write the result to the file's path, in place: it may be /dev/termination-log, which cannot be renamed."""
    name, wanted = name_and_result(path)
    try:
        if wanted:
            Path(wanted).write_bytes(replace(result, run=name).encode())
    except OSError as error:
        print(f"millstream-{job}: result: {wanted} cannot be written: {error.strerror}", file=sys.stderr)
        return False
    return True
