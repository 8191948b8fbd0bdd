"""`millstream-stream STREAM.json`: loads topics into a table by Structured Streaming, each micro-batch as a load's run.

    {"name": "flights",                     names the stream: batch 7 is the run flights-00000007
     "bootstrap": "host:9092", "topics": ["flights"],
     "startingOffsets": "Earliest",         of a new checkpoint; or Latest
     "interval": "60 seconds",              between micro-batches; left out: load what there is, then end
     "maxRecordsPerBatch": 1000000,
     "checkpoint": "/lake/_checkpoints/flights",    a folder, or s3a://BUCKET/FOLDER
     "value": …, "record": …, "output": …, "minPartitions": …, "result": …,
     "login": …, "tls": …}    as in RUN.json, see `run`

The checkpoint fixes the offsets of a micro-batch before it runs, and a restart repeats the last one. `checkpoint` reads
them there, and a load with these offsets reads the records: the same columns, checks and commit, under a name with the
batch's number. So the table shows whether it already has the batch, and a killed stream leaves each row in it once.
Spark's own rows of a micro-batch are never read, so its progress reports no input rows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from millstream_jobs import checkpoint, command, load, positions, table
from millstream_jobs.brokers import Bootstrap, Brokers, Login, Tls
from millstream_jobs.command import Job
from millstream_jobs.files import Files, files_at
from millstream_jobs.outputs.session import configure
from millstream_jobs.progress import say
from millstream_jobs.run import (
    ALLOWED,
    Output,
    Result,
    Run,
    Topic,
    check_table,
    read_config,
)
from millstream_jobs.value import Record, Value

StartingOffsets = Literal["Earliest", "Latest"]


class Stream(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,180}$")]
    bootstrap: Bootstrap
    topics: Annotated[tuple[Topic, ...], Meta(min_length=1)]
    checkpoint: Annotated[str, Meta(pattern=r"^(/|s3a://[^/]+/[^/])")]
    output: Output
    starting_offsets: StartingOffsets = "Earliest"
    interval: Annotated[str, Meta(pattern=r"^([1-9][0-9]{0,5} (seconds|minutes|hours))?$")] = ""
    max_records_per_batch: Annotated[int, Meta(ge=1)] | None = None
    value: Value = Value()
    record: Record = Record()
    min_partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    result: str = ""
    login: Login | None = None
    tls: Tls | None = None

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.bootstrap, self.login, self.tls)


ALLOWED.update(
    {
        "startingOffsets": ", ".join(get_args(StartingOffsets)),
        "interval": 'a time such as "60 seconds", "5 minutes" or "1 hours"',
        "checkpoint": "an absolute path, or s3a://BUCKET/FOLDER",
    }
)


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("stream", read_stream, start), arguments)


def read_stream(path: Path) -> Stream:
    wanted = read_config(path, Stream)
    check_table(wanted.output, wanted.value, path)
    return wanted


def start(wanted: Stream) -> Result:
    """Run it in its own Spark session."""
    spark = load.open_session(wanted.name, [wanted.output.format])
    try:
        return stream(spark, wanted)
    finally:
        spark.stop()


def stream(spark: SparkSession, wanted: Stream) -> Result:
    """Load everything there is or, with an interval, until the query is stopped; returns what this call loaded."""
    configure(spark, wanted.output, wanted.checkpoint)
    _check_topics(wanted)
    done: list[Result] = []
    failures: list[Exception] = []

    def batch(_: DataFrame, number: int) -> None:
        try:
            run = _run(wanted, number)
            if run is not None:
                done.append(load.load(spark, run))
        except Exception as error:
            failures.append(error)
            raise

    source = (
        spark.readStream.format("kafka")
        .options(**table.source_options(wanted.brokers))
        .option("subscribe", ",".join(wanted.topics))
        .option("startingOffsets", wanted.starting_offsets.lower())
    )
    if wanted.max_records_per_batch is not None:
        source = source.option("maxOffsetsPerTrigger", wanted.max_records_per_batch)
    writer = source.load().writeStream.foreachBatch(batch)
    writer = writer.queryName(wanted.name).option("checkpointLocation", wanted.checkpoint)
    writer = (
        writer.trigger(processingTime=wanted.interval)
        if wanted.interval
        else writer.trigger(availableNow=True)
    )
    query = writer.start()
    say(f"{wanted.name} loads {', '.join(wanted.topics)} into {wanted.output.path}")
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if failures:
            raise failures[0] from None  # the more informative error
        raise
    finally:
        query.stop()
    return Result(
        "Succeeded",
        rows=sum(result.rows for result in done),
        corrupt_records=sum(result.corrupt_records for result in done),
        bytes_=sum(result.bytes_ or 0 for result in done),
    )


def _run(wanted: Stream, number: int) -> Run | None:
    """The run of a micro-batch; None if it has no records."""
    ids = _check_topics(wanted)
    offsets = checkpoint.ranges(_files(wanted), number)
    if not offsets:
        return None
    return Run(
        name=f"{wanted.name}-{number:08}",
        bootstrap=wanted.bootstrap,
        offsets=offsets,
        output=wanted.output,
        value=wanted.value,
        record=wanted.record,
        topic_ids=ids,
        min_partitions=wanted.min_partitions,
        login=wanted.login,
        tls=wanted.tls,
    )


def _check_topics(wanted: Stream) -> dict[str, str]:
    """The topics' ids, which match those of the checkpoint."""
    found = positions.topic_ids(wanted.brokers, wanted.topics)
    for topic in wanted.topics:
        if topic not in found:
            raise positions.NoTopic(f"topics: {topic} is not there: {positions.CREATE}")
    ids = {topic: number for topic, number in found.items() if number}
    checkpoint.check_topics(_files(wanted), ids)
    return ids


def _files(wanted: Stream) -> Files:
    return files_at(wanted.checkpoint, wanted.output.s3)


if __name__ == "__main__":
    sys.exit(main())
