"""Output tables: a run is written exactly once, however often it is started and wherever it is killed.

| format | where | what commits rows and end offsets in one step |
|---|---|---|
| Parquet | a POSIX file system | the rename of one folder ([`parquet`]) |
| Parquet | s3a:// | the conditional PUT of a manifest; then objects are moved ([`objects`]) |
| Delta | both | Delta's transaction with txnAppId and txnVersion ([`delta`]) |
| Iceberg | both | the publication of a staged snapshot by its wap.id ([`iceberg`]) |

Of two live drivers of one run, one commits; the other notices this and discards its rows.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millstream_jobs.files import PosixFiles, files_below
from millstream_jobs.outputs.delta import DeltaOutput
from millstream_jobs.outputs.iceberg import IcebergOutput
from millstream_jobs.outputs.output import Committed, Fenced, Output, OutputError
from millstream_jobs.outputs.parquet import FolderOutput, ObjectsOutput
from millstream_jobs.outputs.session import configure
from millstream_jobs.run import Run

__all__ = ["Committed", "Fenced", "Output", "OutputError", "open_output"]


def open_output(spark: SparkSession, run: Run) -> Output:
    """The output of a run; the session can read and write it from then on."""
    configure(spark, run.output)
    files = files_below(run.output)
    if run.output.format == "Delta":
        return DeltaOutput(spark, run, files)
    if run.output.format == "Iceberg":
        return IcebergOutput(spark, run, files)
    return (
        FolderOutput(spark, run, files) if isinstance(files, PosixFiles) else ObjectsOutput(spark, run, files)
    )
