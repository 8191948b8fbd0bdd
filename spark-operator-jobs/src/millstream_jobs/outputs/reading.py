"""A table of any format, as Spark reads it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from millstream_jobs.outputs.iceberg import quoted
from millstream_jobs.outputs.session import catalog_name
from millstream_jobs.run import Output


def read_table(spark: SparkSession, output: Output) -> DataFrame:
    """All rows of a table; the session must be configured for it. AnalysisException if it does not exist."""
    if output.format == "Iceberg":
        return spark.table(f"`{catalog_name(output)}`.{quoted(output.table)}")
    if output.format == "Delta":
        return spark.read.format("delta").load(output.path)
    return spark.read.option("mergeSchema", "true").parquet(output.path)
