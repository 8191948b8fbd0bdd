"""`millstream-rewind REWIND.json`: reloads topics from a time on, as a load with its own offsets.

    {"name": "flights-july",                   names the rewind: its rows are loaded once, however often it is started
     "bootstrap": "host:9092",
     "topics": ["flights"],
     "from": "2026-07-01T00:00:00Z",           records at or after it
     "until": "2026-08-01T00:00:00Z",          up to the first record at or after it; left out: the end of the log
     "value": …, "record": …, "output": …, "minPartitions": …, "result": …,
     "login": …, "tls": …}    as in RUN.json, see `run`

`output.mode` decides about existing rows of these records: `Append`, for a separate table, leaves them; `Replace`
removes exactly these in the commit that adds the new ones. For a rewind between two offsets, write a RUN.json with
these offsets.

The first attempt resolves times to offsets, and stores them as `_rewinds/NAME.json` below the output's path, with the
topics' ids: each retry, and each concurrent driver, loads the same records. A topic that is deleted and created again
fails the rewind.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from pyspark.sql import SparkSession

from millstream_jobs import command, load, positions
from millstream_jobs.brokers import Bootstrap, Brokers, Login, Tls
from millstream_jobs.command import Job
from millstream_jobs.files import files_below
from millstream_jobs.outputs import OutputError
from millstream_jobs.progress import say
from millstream_jobs.run import (
    BadRun,
    Name,
    OffsetRange,
    Output,
    Result,
    Run,
    Topic,
    check_table,
    read_config,
)
from millstream_jobs.value import Record, Value

Time = Annotated[datetime, Meta(tz=True)]


class Rewind(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Name
    bootstrap: Bootstrap
    topics: Annotated[tuple[Topic, ...], Meta(min_length=1)]
    since: Time = field(name="from")
    output: Output
    until: Time | None = None
    value: Value = Value()
    record: Record = Record()
    min_partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    result: str = ""
    login: Login | None = None
    tls: Tls | None = None

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.bootstrap, self.login, self.tls)


class Pinned(Struct, frozen=True, rename="camel"):
    """The offsets that the first attempt resolved, and the ids of their topics (not in files of older releases)."""

    topics: tuple[str, ...]
    since: datetime = field(name="from")
    until: datetime | None
    offsets: tuple[OffsetRange, ...]
    topic_ids: dict[str, str] = {}


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("rewind", read_rewind, start), arguments)


def read_rewind(path: Path) -> Rewind:
    wanted = read_config(path, Rewind)
    if wanted.until is not None and wanted.until < wanted.since:
        raise BadRun(f"{path}: until: {wanted.until} is not allowed: it is before from, {wanted.since}")
    if len(set(wanted.topics)) < len(wanted.topics):
        raise BadRun(f"{path}: topics: a topic is listed twice")
    check_table(wanted.output, wanted.value, path)
    return wanted


def start(wanted: Rewind) -> Result:
    """Run it in its own Spark session."""
    return load.start(pin(wanted))


def rewind(spark: SparkSession, wanted: Rewind) -> Result:
    """Complete the rewind from where an earlier attempt left it."""
    return load.load(spark, pin(wanted))


def pin(wanted: Rewind) -> Run:
    """The load of this rewind, with the offsets of the first driver to resolve them."""
    files, path = files_below(wanted.output), f"_rewinds/{wanted.name}.json"
    try:
        if not files.exists(path):
            # Before the offsets, because a topic created in between would not have its id among them.
            ids = positions.topic_ids(wanted.brokers, wanted.topics)
            offsets = positions.between(wanted.brokers, wanted.topics, wanted.since, wanted.until)
            known = {topic: number for topic, number in ids.items() if number}
            own = Pinned(wanted.topics, wanted.since, wanted.until, offsets, known)
            with contextlib.suppress(FileExistsError):  # another driver was first
                files.create(path, msgspec.json.format(msgspec.json.encode(own), indent=1))
        pinned = msgspec.json.decode(files.read(path), type=Pinned)
    except msgspec.DecodeError as error:
        raise OutputError(f"output.path: {path} there is not a rewind's: {error}") from None
    except OSError as error:
        raise OutputError(
            f"output.path: {wanted.output.path} cannot be written to: {error.strerror or error}"
        ) from None
    if (pinned.topics, pinned.since, pinned.until) != (wanted.topics, wanted.since, wanted.until):
        raise BadRun(f"name: {wanted.name} is a rewind of other topics or times there: take another name")
    for part in pinned.offsets:
        say(f"offsets {part}")
    return Run(
        name=wanted.name,
        bootstrap=wanted.bootstrap,
        offsets=pinned.offsets,
        output=wanted.output,
        value=wanted.value,
        record=wanted.record,
        topic_ids=pinned.topic_ids,
        from_timestamp=wanted.since,
        min_partitions=wanted.min_partitions,
        login=wanted.login,
        tls=wanted.tls,
    )


if __name__ == "__main__":
    sys.exit(main())
