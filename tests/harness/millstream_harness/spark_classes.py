"""The archive of Spark's classes: with it, a JVM of Spark starts a job in two thirds of the time (JEP 350).

The tests start Spark hundreds of times. An archive belongs to one Java and one set of jars; its name has a digest of
both. `make spark-classes`, which `make test` runs first, makes it in half a minute; otherwise the first test that needs
it does. It stays in `.jars`. A JVM that cannot use it goes on without it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from millstream_harness.broker import BrokerProcess
from millstream_harness.java import SPARK_JARS, fetched
from millstream_harness.tools import require

LOCK = SPARK_JARS.parent / ".spark-classes.lock"
MAKING_S = 900.0
"""On a busy machine."""
QUIET = "-Xlog:cds=off -Xlog:class+path=off"
"""What does not fit into the archive is of no interest."""


@functools.cache
def archive() -> Path:
    """The archive for this machine's Java and Spark's jars, made now if it is missing."""
    folders = (fetched(SPARK_JARS), Path(pyspark.__file__).parent / "jars")
    jars = [entry for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".jar")]
    told = [
        f"{jar.path} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars
    ]  # in the order of the classpath
    told.append(
        subprocess.run([require("java"), "-version"], capture_output=True, text=True, check=True).stderr
    )
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    made = SPARK_JARS.parent / f"spark-classes-{digest}.jsa"
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need it, too
        if not made.exists():
            for old in made.parent.glob("spark-classes-*.jsa"):
                old.unlink()
            print(f"spark-classes: making {made.name}: half a minute", flush=True)
            command = [sys.executable, "-m", "millstream_harness.spark_classes", str(made)]
            env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAKING_S, check=False, env=env
            )
            assert made.exists(), f"no archive of Spark's classes: {done.stdout}{done.stderr}"
    return made


def make(path: Path) -> None:
    """Load a few records into a table of each format, and keep the classes that this took."""
    from millstream_harness.spark import environment
    from millstream_harness.spark_loads import ICEBERG_TABLE, Loads
    from millstream_jobs.load import open_session

    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    os.environ.update(environment(f"{QUIET} -XX:ArchiveClassesAtExit={unfinished}"))
    with tempfile.TemporaryDirectory() as folder:
        with BrokerProcess(Path(folder) / "broker") as broker:
            spark = open_session("classes", ["Delta", "Iceberg"])
            for format, table in (("Delta", ""), ("Iceberg", ICEBERG_TABLE), ("Parquet", "")):
                loads = Loads(spark, broker.bootstrap, Path(folder) / format)
                loads.publish([(None, b'{"carrier": "UA"}')])
                loads.load((0, 0, 1), output={"format": format, "table": table}, partition_by=("date",))
            spark.stop()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        jvm = gateway.proc
        jvm.stdin.close()
        jvm.wait(MAKING_S)
    unfinished.rename(path)


if __name__ == "__main__":
    if sys.argv[1:]:
        make(Path(sys.argv[1]))
    else:
        archive()
