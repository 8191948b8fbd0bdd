"""The root cause of a failure, in one line: what Spark, Iceberg and S3A say, and what to do."""

from __future__ import annotations

import pytest

from millstream_jobs.failures import root_cause

JVM = """An error occurred while calling o58.save.
: org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.writingJobFailedError(QueryExecutionErrors.scala:900)
Caused by: org.apache.iceberg.exceptions.Root: first
\tat org.apache.iceberg.Catalog.load(Catalog.java:1)
Caused by: {}
\t... 60 more
"""


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("java.io.IOException: No space left on device", "IOException: No space left on device"),
        ("java.lang.StackOverflowError", "StackOverflowError"),
        ("not the name of a class", "not the name of a class"),
        (
            "org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked (database is locked)",
            "SQLiteException: [SQLITE_BUSY] The database file is locked (database is locked): SQLite serves one driver"
            " at a time: use PostgreSQL, or a REST catalog",
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException: getFileStatus on s3a://tables/flights: timed out",
            "s3a://tables/flights: the store does not respond: AWSApiCallTimeoutException: getFileStatus on"
            " s3a://tables/flights: timed out: check output.s3.endpoint and whether the store is up",
        ),
    ],
)
def test_the_last_cause_is_named(cause: str, line: str) -> None:
    assert root_cause(Exception(JVM.format(cause))) == line


@pytest.mark.parametrize(
    "text",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the provider name is correct",
        ": java.lang.ClassNotFoundException: Class delta not found",
    ],
)
def test_a_missing_jar_is_named(text: str) -> None:
    assert root_cause(Exception(text)) == (
        "Spark does not have delta: a jar is missing: take the image millstream/spark, or one with all jars of"
        " spark-operator-jobs/pom.xml"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  the first line\nanother"), "the first line"),
        (ValueError(), "ValueError"),
        (Exception("An error occurred\n: java.io.IOException: gone"), "IOException: gone"),
    ],
)
def test_without_a_cause_the_first_line_counts(error: Exception, line: str) -> None:
    assert root_cause(error) == line
