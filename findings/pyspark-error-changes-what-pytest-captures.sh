#!/usr/bin/env bash
# PySpark 4.1.1 with pytest 9.2.0: after one error of a query, caplog.text is JSON in every later test of the session.
#
# When a query fails with a context, PySpark writes the error with a PySparkLogger that does not propagate. From the next test on,
# pytest attaches its log handlers to that logger, as to all that do not propagate. A PySparkLogger gives each handler that it gets
# its own JSON format, and pytest keeps one handler for the whole session. So assertions about caplog.text fail in tests that
# never saw Spark, only after the one with the error, and only in the same worker of pytest-xdist.
#
# Seen: "before: WARNING  x:test_lines.py:7 a line", "error: AnalysisException", "after: {"ts": …, "level": "WARNING", "logger": "x", "msg": "a line", "context": {}}".
#
# Needs Java 17 and Python 3.11; installs 450 MB. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check setuptools pyspark==4.1.1 pytest==9.2.0
cd "$folder"
cat >test_lines.py <<'PY'
import logging

from pyspark.sql import SparkSession


def line(caplog, when):
    logging.getLogger("x").warning("a line")
    print(f"{when}: {caplog.text.strip()}")


def test_before(caplog):
    line(caplog, "before")


def test_an_error_of_a_query():
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.sql("SELECT nothing FROM nowhere")
    except Exception as error:
        print("error:", type(error).__name__)
    spark.stop()


def test_after(caplog):
    line(caplog, "after")
PY
seen=$("$folder/venv/bin/python" -m pytest -q -s test_lines.py 2>>errors | grep -oE '(before|after|error): .*')
echo "$seen"
grep -q '^before: WARNING .*a line$' <<<"$seen"
grep -q '^error: AnalysisException$' <<<"$seen"
grep -q '^after: {"ts": .*"level": "WARNING", "logger": "x", "msg": "a line", "context": {}}$' <<<"$seen"
