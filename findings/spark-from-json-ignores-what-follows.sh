#!/usr/bin/env bash
# Spark 4.0.0: from_json takes the first JSON value of a string and ignores the rest, even in mode FAILFAST.
#
# A message with two documents ('{"a":7}' newline '{"a":8}'), with a stray bracket or with trailing text is parsed as if only
# the first document were there. The column of corrupt records stays null, and FAILFAST does not fail: a load counts one good
# row, and nothing shows that the second record was lost. (The same option on spark.read.json splits lines itself.)
#
# Seen: "PERMISSIVE [7, null] [7, null] [7, null]", then "FAILFAST 7 7 7".
#
# Needs Java 17 and Python 3.11; installs 430 MB. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check setuptools pyspark==4.0.0
cd "$folder"
seen=$("$folder/venv/bin/python" 2>"$folder/errors" - <<'PY'
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
values = ['{"a":7}\n{"a":8}', '{"a":7} and more', '{"a":7}}']
frame = spark.createDataFrame([(value,) for value in values], "v string")
options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "rest"}
parsed = frame.select(F.from_json("v", "a int, rest string", options).alias("x")).collect()
print("PERMISSIVE", *(f"[{row.x.a}, {'null' if row.x.rest is None else row.x.rest}]" for row in parsed))
strict = frame.select(F.from_json("v", "a int", {"mode": "FAILFAST"}).alias("x")).collect()
print("FAILFAST", *(row.x.a for row in strict))
PY
)
echo "$seen"
[ "$seen" = "PERMISSIVE [7, null] [7, null] [7, null]
FAILFAST 7 7 7" ]
