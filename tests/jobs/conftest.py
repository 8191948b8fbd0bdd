"""A Spark session for tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.spark import as_configured, collect_sockets, spark_session
from millstream_harness.spark_loads import Loads


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SparkSession]:
    """A session as the job opens it. All files share it, because it takes seconds to start and longer to warm up."""
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def spark_of_module(shared_spark: SparkSession) -> Iterator[SparkSession]:
    yield shared_spark
    collect_sockets()


@pytest.fixture
def spark(spark_of_module: SparkSession) -> Iterator[SparkSession]:
    """The session to run a job or to read its table; a test leaves no settings in it."""
    with as_configured(spark_of_module) as session:
        yield session


@pytest.fixture
def loads(spark: SparkSession, shared_broker: InProcessBroker, tmp_path: Path) -> Loads:
    return Loads(spark, shared_broker.bootstrap, tmp_path)
