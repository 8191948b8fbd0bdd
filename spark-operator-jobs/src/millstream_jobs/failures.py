"""The root cause of a failure, in one line.

With `spark.sql.pyspark.jvmStacktrace.enabled` an exception's text has the JVM's stack trace, whose last "Caused by:"
names the root.
"""

from __future__ import annotations

import re

_THROWABLE = re.compile(r"(?:[\w$]+\.)*([\w$]+)(?:: (.*))?")


class JobError(Exception):
    """The job failed; the message is one line for the user. A retry may succeed."""


def root_cause(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = causes or [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # of py4j
    if not causes:
        return next((line for line in lines if line), type(error).__name__)
    found = _THROWABLE.fullmatch(causes[-1])
    if found is None:
        return causes[-1]
    return f"{found[1]}: {found[2] or ''}".removesuffix(": ")
