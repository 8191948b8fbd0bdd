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
    """As the job opens it; read what a job has written with it, or run one in it."""
    with spark_session() as session:
        yield session


@pytest.fixture
def loads(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> Loads:
    return Loads(spark, shared_broker.bootstrap, tmp_path)
