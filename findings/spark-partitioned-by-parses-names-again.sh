#!/usr/bin/env bash
# Spark 4.1.1: writeTo(…).partitionedBy(…) refuses a column whose name has a space, however the name is quoted.
#
# partitionedBy takes columns, and parses the name of each once more as SQL, without its quotes. So a column "a b" fails
# with a ParseException, also as `a b`, and as the column of the very frame that is written, frame["a b"]. SQL (PARTITIONED BY
# (`a b`)) and write.partitionBy("a b") take it. What works is to quote twice: col("```a b```").
#
# Seen: "SQL works", "partitionBy works", "a b ParseException", "`a b` ParseException", "frame[] ParseException",
# "```a b``` works".
#
# Needs Java 17 and Python 3.11; installs 450 MB. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check setuptools pyspark==4.1.1
cd "$folder"
seen=$("$folder/venv/bin/python" 2>"$folder/errors" - <<'PY'
from collections.abc import Callable

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(3).select("id", F.lit("x").alias("a b"))


def partitioned_by(table: str, column: Column) -> Callable[[], None]:
    return lambda: frame.writeTo(table).using("parquet").partitionedBy(column).create()


tries = {
    "SQL": lambda: spark.sql("CREATE TABLE t1 (id BIGINT, `a b` STRING) USING parquet PARTITIONED BY (`a b`)"),
    "partitionBy": lambda: frame.write.format("parquet").partitionBy("a b").saveAsTable("t2"),
    "a b": partitioned_by("t3", F.col("a b")),
    "`a b`": partitioned_by("t4", F.col("`a b`")),
    "frame[]": partitioned_by("t5", frame["a b"]),
    "```a b```": partitioned_by("t6", F.col("```a b```")),
}
for name, tried in tries.items():
    try:
        tried()
        print(name, "works")
    except Exception as error:
        print(name, type(error).__name__)
PY
)
echo "$seen"
[ "$seen" = 'SQL works
partitionBy works
a b ParseException
`a b` ParseException
frame[] ParseException
```a b``` works' ]
