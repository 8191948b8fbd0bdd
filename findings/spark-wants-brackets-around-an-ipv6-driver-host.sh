#!/usr/bin/env bash
# Spark 4.1.1: spark.driver.host takes an IPv6 address in brackets only; spark.driver.bindAddress takes it without them.
#
# A pod's address comes from Kubernetes without brackets. With spark.driver.host=::1 the session ends with "assertion failed:
# Expected hostname or IPv6 IP enclosed in [] but got ::1", before anything listens. The address to bind is another setting of
# the same pair, and the same value is right there.
#
# Seen: "host ::1: refused", "host [::1], bind ::1: 3 rows".
#
# Needs Java 17, Python 3.11 and IPv6 on the loopback interface; installs 450 MB. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check setuptools pyspark==4.1.1
cd "$folder"
cat >count.py <<'PY'
import sys

from pyspark.sql import SparkSession

host, bind = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
try:
    spark = builder.config("spark.driver.host", host).config("spark.driver.bindAddress", bind).getOrCreate()
except Exception as error:
    known = "Expected hostname or IPv6 IP enclosed in [] but got ::1" in str(error)
    print(f"host {host}: {'refused' if known else error}")
else:
    print(f"host {host}, bind {bind}: {spark.range(3).count()} rows")
PY
seen=$("$folder/venv/bin/python" count.py ::1 ::1 2>>errors; "$folder/venv/bin/python" count.py '[::1]' ::1 2>>errors)
echo "$seen"
[ "$seen" = "host ::1: refused
host [::1], bind ::1: 3 rows" ]
