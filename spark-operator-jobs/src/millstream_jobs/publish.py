"""`millstream-publish PUBLISH.json`: a table or a query into a topic, each row once however often it is started.

One attempt fixes the content: it runs the query, numbers the rows of each target partition and stores them in the
staging folder with the topic's end offsets (`publication`). Every attempt then sends the rows that the topic does not
have yet (`sending`), and finally checks that the topic has each row once.
"""

from __future__ import annotations

import contextlib
import sys

from pyspark.sql import SparkSession

from millstream_jobs import command, publication, sending
from millstream_jobs.command import Job
from millstream_jobs.files import Files, files_below, one_at_a_time
from millstream_jobs.load import open_session
from millstream_jobs.outputs import OutputError
from millstream_jobs.progress import say
from millstream_jobs.publish_file import Publish, read_publish
from millstream_jobs.run import BadRun, Output, Result
from millstream_jobs.words import count_of


def main(arguments: list[str] | None = None) -> int:
    return command.run(Job("publish", read_publish, start), arguments)


def start(wanted: Publish) -> Result:
    """Run it in its own Spark session."""
    spark = open_session(wanted.name, [wanted.source.format])
    try:
        return publish(spark, wanted)
    finally:
        spark.stop()


def publish(spark: SparkSession, wanted: Publish) -> Result:
    """Complete the publication from where an earlier attempt left it."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise BadRun(
            "spark.speculation: true is not allowed: two tasks with the same rows would fence one another"
        )
    staging = files_below(Output(wanted.staging, s3=wanted.s3))
    try:
        staging.make_folder("")
        with one_at_a_time(staging, f".{wanted.name}.lock"):
            return _publish(spark, wanted, staging)
    except OSError as error:
        raise OutputError(f"staging: {wanted.staging}: {error.strerror or error}") from None


def _publish(spark: SparkSession, wanted: Publish, staging: Files) -> Result:
    done = f"{wanted.name}.done.json"
    plan = publication.find(staging, wanted.name, wanted.content)
    if plan is not None and staging.exists(done):
        say(f"{wanted.name} has been published before; nothing to do")
        return Result("Succeeded", rows=plan.rows)
    resumed = plan is not None
    if plan is None:
        plan, resumed = publication.make(spark, wanted, staging)
    say(f"{count_of(plan.rows, 'row')} for {wanted.topic}{', some of which may be there' if resumed else ''}")
    publication.check_topic(wanted, plan)
    if plan.rows:
        transactions = sending.send(spark, wanted, plan, publication.staged(spark, wanted, plan))
        sending.check(spark, wanted, plan, transactions)
        publication.check_topic(wanted, plan)
    with contextlib.suppress(FileExistsError):
        staging.create(done, b"{}")
    staging.delete(wanted.name)
    return Result("Succeeded", rows=plan.rows)


if __name__ == "__main__":
    sys.exit(main())
