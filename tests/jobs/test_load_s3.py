"""Loads into S3: Parquet and Delta on s3a://, on a server that speaks its protocol and checks signatures."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.load_conditions import ready
from millstream_harness.s3 import BUCKET, S3Server, s3_server
from millstream_harness.spark import LoadProcess, publish, spark_jars
from millstream_harness.spark_loads import PY4J, SCHEMA, Loads, without_bytes
from millstream_jobs import files
from millstream_jobs.failures import root_cause
from millstream_jobs.outputs import session
from millstream_jobs.outputs.parquet import ObjectsOutput
from millstream_jobs.run import S3, Result

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(PY4J),
]
RECORD = b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as started:
        yield started


def read_table(format: str, server: S3Server, path: str) -> pyarrow.Table:
    bucket = path.removeprefix("s3a://")
    if format == "Delta":
        return DeltaTable(f"s3://{bucket}", storage_options=server.delta_options).to_pyarrow_table()
    return pyarrow.dataset.dataset(
        bucket, filesystem=server.filesystem, format="parquet", partitioning="hive"
    ).to_table()


@pytest.mark.parametrize("format", ["Parquet", "Delta"])
def test_wrong_credentials_are_told_and_right_ones_bring_the_rows_into_the_bucket(
    server: S3Server,
    shared_broker: InProcessBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    spark_jars()
    topic = f"to-s3-{uuid.uuid4().hex[:8]}"
    publish(shared_broker.bootstrap, topic, [[(None, RECORD)] * 5])
    path = f"s3a://{BUCKET}/{topic}"
    run = {
        "name": "run-0001",
        "bootstrap": shared_broker.bootstrap,
        "offsets": [{"topic": topic, "partition": 0, "from": 0, "until": 5}],
        "value": {"format": "JSON", "schema": SCHEMA},
        "output": {
            "format": format,
            "path": path,
            "partitionBy": ["date"],
            "s3": {"endpoint": server.endpoint, "pathStyle": True, "region": "us-east-1"},
        },
    }
    for name, value in {**server.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}.items():
        monkeypatch.setenv(name, value)
    refused = LoadProcess(tmp_path / "refused", run).wait()
    assert refused.status == 1
    assert f"{path}: the store refuses the credentials: check AWS_ACCESS_KEY_ID" in refused.last_line
    assert ready(refused.result)[:2] == ("False", "OutputNotWritable")
    assert not server.filesystem.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/{topic}", True, True))

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    loaded = LoadProcess(tmp_path / "loaded", run).wait()
    assert loaded.status == 0, loaded.stderr
    assert loaded.result["rows"] == 5
    assert sorted(read_table(format, server, path)["_offset"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_load_ends_when_the_store_falls_silent_and_a_retry_brings_the_rows(
    server: S3Server, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first load has shorter time limits than others; S3A's minimum is 15 s."""
    limits = {f"fs.s3a.{name}": "15s" for name in session.S3A_LIMITS if name.endswith("timeout")}
    in_this_process = {
        "fs.s3a.impl.disable.cache": "true",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.access.key": server.access_key,
        "fs.s3a.secret.key": server.secret_key,
    }
    s3a = session._s3a
    monkeypatch.setattr(session, "_s3a", lambda output: {**s3a(output), **in_this_process})
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    loads.publish([(None, RECORD)] * 5)
    path = f"s3a://{BUCKET}/{loads.topic}"
    output = {"path": path, "s3": S3(server.endpoint, "us-east-1", path_style=True)}
    stage = ObjectsOutput.stage

    def stage_with_a_silent_store(own: ObjectsOutput, rows: DataFrame) -> DataFrame:
        os.kill(server.pid, signal.SIGSTOP)
        return stage(own, rows)

    try:
        with monkeypatch.context() as patch:
            hasty = {**in_this_process, **limits, "fs.s3a.retry.limit": "0"}
            patch.setattr(session, "_s3a", lambda output: {**s3a(output), **hasty})
            patch.setattr(files, "TIMEOUTS", {"timeout": "10s", "connect_timeout": "10s"})
            patch.setattr(files, "RETRIES", {"max_retries": 0})
            patch.setattr(ObjectsOutput, "stage", stage_with_a_silent_store)
            with pytest.raises(Exception, match="ApiCallTimeoutException") as silent:
                loads.load((0, 0, 5), output=output)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    said = root_cause(silent.value)
    assert f"{path}" in said
    assert "the store does not respond: ApiCallTimeoutException" in said
    assert "check output.s3.endpoint and whether the store is up" in said

    assert without_bytes(loads.load((0, 0, 5), output=output)) == Result("Succeeded", rows=5)
    assert sorted(read_table("Parquet", server, path)["_offset"].to_pylist()) == [0, 1, 2, 3, 4]
