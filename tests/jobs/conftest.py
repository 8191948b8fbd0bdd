"""A Spark session for tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream_harness.broker import BrokerProcess
from millstream_harness.spark import spark_session
from millstream_harness.spark_loads import Loads


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session as the job opens it, to run a job or to read its table."""
    with spark_session() as session:
        yield session


@pytest.fixture
def loads(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> Loads:
    return Loads(spark, shared_broker.bootstrap, tmp_path)
