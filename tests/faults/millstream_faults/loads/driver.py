"""A driver that loads one run after the other, each as `millstream-load` does: ``spark-submit driver.py SOCKET``.

It connects to the socket, sends ``{}`` when Spark is ready, reads the path of one RUN.json a line, and answers with
the result in JSON: ``{"state": "Succeeded", "rows": 80, …}``.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millstream_jobs.failures import JobError, root_cause
from millstream_jobs.load import load, open_session
from millstream_jobs.run import BadRun, Result, read_run


def main() -> None:
    spark = open_session("faults", ["Delta", "Iceberg"])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        with connection.makefile("rw") as channel:
            print("{}", file=channel, flush=True)
            for line in channel:
                try:
                    result = load(spark, read_run(Path(line.strip())))
                except (BadRun, JobError) as error:
                    result = Result("Failed", error=str(error), reason=error.reason)
                except (Py4JError, PySparkException, OSError) as error:
                    result = Result("Failed", error=root_cause(error))
                print(result.encode().decode().strip(), file=channel, flush=True)


if __name__ == "__main__":
    main()
