"""Jobs other than loads with everything in S3, on a server that speaks its protocol and checks signatures."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.s3 import REGION, S3Server, s3_server
from millstream_harness.spark_loads import PY4J, Loads
from millstream_harness.spark_publications import Topic
from millstream_jobs.audit import audit
from millstream_jobs.audits.file import Audit
from millstream_jobs.compact import Compact, Compacted, compact
from millstream_jobs.outputs import session
from millstream_jobs.publish import publish
from millstream_jobs.publish_file import Content, Publish, Source
from millstream_jobs.rewind import Rewind, rewind
from millstream_jobs.run import S3, Output
from millstream_jobs.stream import Stream, stream
from millstream_jobs.value import Value

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of deltalake
    pytest.mark.filterwarnings(PY4J),
]
START = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
RECORDS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as started:
        yield started


class Lake:
    """A topic with a record an hour from START on, and a stream that loads it into a Delta table in a bucket."""

    def __init__(self, loads: Loads, server: S3Server) -> None:
        self.spark, self.bootstrap, self.topic = loads.spark, loads.bootstrap, loads.topic
        self.server = server
        self.root = f"s3a://{loads.topic}/lake"
        server.make_bucket(loads.topic)
        self.s3 = S3(server.endpoint, REGION, path_style=True)
        loads.publish([])
        self.produce(range(RECORDS))

    def produce(self, numbers: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in numbers:
            at = int((START + number * HOUR).timestamp() * 1000)
            producer.produce(self.topic, b'{"id": %d}' % number, None, 0, timestamp=at)
        assert producer.flush(30) == 0

    def output(self, name: str = "table", **more: Any) -> Output:
        return Output(f"{self.root}/{name}", format="Delta", s3=self.s3, **more)

    def stream(self, batch: int = RECORDS) -> int:
        wanted = Stream(
            "flights",
            self.bootstrap,
            (self.topic,),
            checkpoint=f"{self.root}/checkpoint",
            output=self.output(),
            value=Value(schema="id INT"),
            max_records_per_batch=batch,
        )
        return stream(self.spark, wanted).rows

    def delta(self, name: str = "table") -> DeltaTable:
        return DeltaTable(
            f"{self.root.replace('s3a:', 's3:')}/{name}", storage_options=self.server.delta_options
        )

    def rows(self) -> list[tuple[int, int | None]]:
        """Offset and id of each row."""
        table = self.delta().to_pyarrow_table()
        return sorted(zip(table["_offset"].to_pylist(), table["id"].to_pylist(), strict=True))

    def read(self, path: str) -> bytes:
        with self.server.filesystem.open_input_file(f"{self.root}/{path}".removeprefix("s3a://")) as file:
            return bytes(file.read())


@pytest.fixture
def lake(loads: Loads, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Spark's JVM does not see variables set here, so its configuration carries the credentials.

    The bucket is the test's own: the JVM caches a file system for each bucket's name."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    s3a = session._s3a
    in_this_process = {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.access.key": server.access_key,
        "fs.s3a.secret.key": server.secret_key,
    }
    monkeypatch.setattr(session, "_s3a", lambda output: {**s3a(output), **in_this_process})
    return Lake(loads, server)


def test_a_stream_goes_on_from_its_checkpoint_and_its_files_are_merged(lake: Lake) -> None:
    assert lake.stream(batch=RECORDS // 2) == RECORDS
    lake.produce([RECORDS])
    assert lake.stream() == 1
    assert lake.stream() == 0
    whole = [(number, number) for number in range(RECORDS + 1)]
    assert lake.rows() == whole

    before = len(lake.delta().file_uris())
    assert before >= 3, "a file or more for each batch"
    assert compact(lake.spark, Compact("compact", lake.output())) == Compacted(before, 1)
    assert len(lake.delta().file_uris()) == 1
    assert lake.rows() == whole
    lake.produce([RECORDS + 1])
    assert lake.stream() == 1
    assert lake.rows() == [*whole, (RECORDS + 1, RECORDS + 1)]


def test_a_rewind_replaces_rows_and_keeps_its_offsets(lake: Lake) -> None:
    lake.stream()
    wanted = Rewind(
        "again",
        lake.bootstrap,
        (lake.topic,),
        since=START + 4 * HOUR,
        output=lake.output(mode="Replace"),
        value=Value(schema="id INT, twice INT"),
    )
    assert rewind(lake.spark, wanted).rows == 2
    pinned = json.loads(lake.read("table/_rewinds/again.json"))
    assert pinned["offsets"] == [{"topic": lake.topic, "partition": 0, "from": 4, "until": RECORDS}]
    lake.produce([RECORDS])
    assert rewind(lake.spark, wanted).rows == 2, "known, with the same offsets"
    assert lake.rows() == [(number, number) for number in range(RECORDS)]
    assert lake.delta().to_pyarrow_table().column_names.count("twice") == 1


def test_a_table_is_published_from_staging(lake: Lake, shared_broker: InProcessBroker) -> None:
    lake.stream()
    topic = Topic(shared_broker)
    wanted = Publish(
        "again",
        lake.bootstrap,
        topic.name,
        Source(f"{lake.root}/table", "Delta"),
        staging=f"{lake.root}/publications",
        record=Content(value="to_json(struct(id))"),
        s3=lake.s3,
    )
    for _ in range(2):
        assert publish(lake.spark, wanted).rows == RECORDS
        assert topic.ids() == list(range(RECORDS))
    assert lake.read("publications/again.done.json") == b"{}"


def test_a_folder_is_published_by_staging_in_s3(
    lake: Lake, shared_broker: InProcessBroker, tmp_path: Path
) -> None:
    """Only the staging folder is in S3; the table is on local disk."""
    topic = Topic(shared_broker)
    lake.spark.range(3).write.parquet(str(tmp_path / "table"))
    wanted = Publish(
        "folder",
        lake.bootstrap,
        topic.name,
        Source(str(tmp_path / "table")),
        staging=f"{lake.root}/publications",
        s3=lake.s3,
    )
    assert publish(lake.spark, wanted).rows == 3
    assert topic.ids() == [0, 1, 2]


def test_an_audit_finds_what_a_table_in_s3_misses(lake: Lake) -> None:
    lake.stream()
    lake.produce([RECORDS])
    wanted = Audit(
        "audit",
        lake.bootstrap,
        (lake.topic,),
        tables=(lake.output(),),
        output=lake.output("audits"),
        report=f"{lake.root}/audit.html",
        s3=lake.s3,
    )
    assert audit(lake.spark, wanted).missing == 1
    rows = lake.delta("audits").to_pyarrow_table().to_pylist()
    assert sum(row["in_log"] for row in rows) == RECORDS + 1
    assert [row["state"] for row in rows].count("Missing") == 1
    assert b"<svg" in lake.read("audit.html")
