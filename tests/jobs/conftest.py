"""A Spark session for all tests of jobs, and loads as processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream_harness.spark import spark_jars
from millstream_jobs.load import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """As the job opens it; read what a job has written with it, or run one in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLSTREAM_SPARK_JARS", str(spark_jars()))
        session = open_session("tests")
    yield session
    session.stop()
