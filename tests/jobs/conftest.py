"""A Spark session for tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream_harness.spark import spark_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """As the job opens it; read what a job has written with it, or run one in it."""
    with spark_session() as session:
        yield session
