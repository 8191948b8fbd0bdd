"""Times batch loads in one Spark: `spark-submit spark_job.py WARM_UP.json RUN.json FOLDER`, RUN.json as for loads.

The first run warms Spark up. Then the records of the second are written three times: by a bare `write.parquet`, by the
load, by a bare `write.parquet` again. Prints the seconds of the load, and the average of the other two, as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from millstream_jobs import table
from millstream_jobs.load import load, open_session
from millstream_jobs.run import read_run


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main(warm_up: Path, path: Path, folder: Path) -> None:
    spark = open_session("bench", ["Parquet"])
    run = read_run(path)

    def bare() -> float:
        taken = seconds(lambda: table.read(spark, run).write.parquet(str(folder)))
        shutil.rmtree(folder)
        return taken

    load(spark, read_run(warm_up))
    before = bare()
    loaded = seconds(lambda: load(spark, run))
    after = bare()
    spark.stop()
    print(json.dumps({"load": loaded, "bare": (before + after) / 2}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
