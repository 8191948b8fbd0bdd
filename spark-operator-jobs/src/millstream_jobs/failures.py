"""The root cause of a failure, in one line.

With `spark.sql.pyspark.jvmStacktrace.enabled` an exception's text has the JVM's stack trace, whose last "Caused by:"
names the root.
"""

from __future__ import annotations

import re

_THROWABLE = re.compile(r"(?:[\w$]+\.)*([\w$]+)(?:: (.*))?")
_S3A = re.compile(
    r"(?:AWSApiCallTimeoutException|ConnectException|SocketTimeoutException|ConnectTimeoutException)"
    r": \w+ on (s3a?://[^:\s]+)"
)
"""S3A's failure of a request to a store that is away, and the path."""

_MISSING = re.compile(
    r"Failed to find (?:the )?data source: (\w+)|ClassNotFoundException: (?:Class )?([\w.$]+)"
)
"""Spark's failures without a jar: the format that it does not know, or the class."""


class JobError(Exception):
    """The job failed; the message is one line for the user. A retry may succeed, unless ``final``."""

    reason = ""
    """One word for programs, such as the reason of a condition; "" is none."""
    final = False


def root_cause(error: BaseException) -> str:
    if missing := _MISSING.search(str(error)):
        return (
            f"Spark does not have {missing[1] or missing[2]}: a jar is missing: take the image millstream/spark, or"
            " one with all jars of spark-operator-jobs/pom.xml"
        )
    root = _root(error)
    if "SQLITE_BUSY" in root:
        return f"{root}: SQLite serves one driver at a time: use PostgreSQL, or a REST catalog"
    if away := _S3A.search(str(error)):
        return f"{away[1]}: the store does not respond: {root}: check output.s3.endpoint and whether the store is up"
    return root


def _root(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = causes or [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # of py4j
    if not causes:
        return next((line for line in lines if line), type(error).__name__)
    found = _THROWABLE.fullmatch(causes[-1])
    if found is None:
        return causes[-1]
    return f"{found[1]}: {found[2] or ''}".removesuffix(": ")
