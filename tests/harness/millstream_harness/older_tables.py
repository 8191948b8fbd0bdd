"""Tables that loads wrote with earlier versions of Spark, Delta and Iceberg, and into which today's loads go on.

`tests/jobs/tables/spark-VERSION.tar.gz` has a table of each format, in a folder of the format's name. Before the
pins in `spark-operator-jobs/pom.xml` change, make the archive of the versions that they still name:

    PYTHONPATH=tests/harness .venv/bin/python -P -m millstream_harness.older_tables

Each table has two runs of the load `ns/daily`, with their claims: the first five of `RECORDS`. One of its rows is
corrupt. In Delta and Iceberg a third run, in mode Replace, has written the first two rows once more.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.spark_loads import ICEBERG_TABLE, Loads
from millstream_jobs.run import Fence, Result

FORMATS = ("Parquet", "Delta", "Iceberg")
FOLDER = Path(__file__).resolve().parents[2] / "jobs/tables"
TOPIC = "older-tables"
WRITTEN = 5
"""How many of the records the table has."""
RECORDS = [
    b'{"carrier": "UA", "delay": 2, "time_hour": "2013-01-01T10:00:00Z"}',
    b'{"carrier": "AA", "delay": -1.5, "time_hour": "2013-01-01T11:00:00Z"}',
    b'{"carrier": "B6"}',
    b"not JSON",
    b'{"carrier": "\xc3\xa9", "delay": 0, "time_hour": "2013-01-02T00:00:00Z"}',
    b'{"carrier": "DL", "delay": 7, "time_hour": "2013-01-02T01:00:00Z"}',
    b'{"carrier": "WN", "delay": 8}',
]
_FIRST = dt.datetime(2026, 11, 28, 23, 58, tzinfo=dt.UTC)
"""The first record's timestamp; the others follow each a minute later, and so are in two partitions of the table."""


def publish(bootstrap: str) -> None:
    """The topic, with the same records and timestamps each time: a claim has the checksums of the last ones."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(10)
    producer = Producer({"bootstrap.servers": bootstrap})
    for minute, value in enumerate(RECORDS):
        time = _FIRST + dt.timedelta(minutes=minute)
        producer.produce(TOPIC, value, b"k", 0, timestamp=int(time.timestamp() * 1000))
    assert producer.flush(30) == 0


class OlderLoads:
    """The load that owns the tables."""

    def __init__(self, loads: Loads, format: str) -> None:
        loads.topic = TOPIC
        self.loads, self.format = loads, format

    def load(self, name: str, first: int, until: int, after: str | None, mode: str = "Append") -> Result:
        output: dict[str, Any] = {"format": self.format, "owner": "ns/daily", "mode": mode}
        if self.format == "Iceberg":
            output["table"] = ICEBERG_TABLE
        fence = Fence(after) if mode == "Append" else None
        return self.loads.load(
            (0, first, until), name=name, partition_by=("date",), output=output, fence=fence
        )


def placed(archive: Path, format: str, folder: Path) -> None:
    """Unpack a table of the archive to a folder."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inside = member.name.removeprefix(f"{format}/")
            if inside != member.name and member.isfile():
                path = folder / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
    if format == "Iceberg":
        _move_iceberg(folder)


def _move_iceberg(warehouse: Path) -> None:
    """Iceberg's metadata has absolute paths: replace those of the folder in which the table was written."""
    table = warehouse.joinpath(*ICEBERG_TABLE.split("."))
    metadata = table / "metadata"
    first = json.loads((metadata / "v1.metadata.json").read_bytes())
    old, new = str(first["location"]), str(table)
    for file in metadata.glob("*.metadata.json"):
        file.write_text(file.read_text().replace(old, new))
    manifests = [file for file in metadata.glob("*.avro") if not file.name.startswith("snap-")]
    for file in [*manifests, *metadata.glob("snap-*.avro")]:
        with file.open("rb") as source:
            reader = fastavro.reader(source)
            entries: list[Any] = list(reader)
        for entry in entries:
            if "manifest_path" in entry:
                entry["manifest_path"] = entry["manifest_path"].replace(old, new)
                entry["manifest_length"] = Path(entry["manifest_path"]).stat().st_size
            else:
                data = entry["data_file"]
                data["file_path"] = data["file_path"].replace(old, new)
        kept = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        buffer = io.BytesIO()
        schema = json.loads(reader.metadata["avro.schema"])
        fastavro.writer(buffer, schema, entries, codec="deflate", metadata=kept)
        file.write_bytes(buffer.getvalue())


def make() -> Path:
    """Write the archive of the pinned versions."""
    import pyspark

    from millstream_harness.broker import BrokerProcess
    from millstream_harness.spark import environment
    from millstream_jobs.load import open_session

    os.environ.update(environment())
    archive = FOLDER / f"spark-{pyspark.__version__}.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "broker") as broker:
        publish(broker.bootstrap)
        spark = open_session("tables", ["Delta", "Iceberg"])
        with tarfile.open(archive, "w:gz") as tar:
            for format in FORMATS:
                load = OlderLoads(Loads(spark, broker.bootstrap, Path(folder) / format), format)
                load.load("daily-1", 0, 3, None)
                load.load("daily-2", 3, WRITTEN, "daily-1")
                if format != "Parquet":
                    load.load("again", 0, 2, None, mode="Replace")
                lake = load.loads.path
                for path in sorted(file for file in lake.rglob("*") if file.is_file()):
                    if not (path.name.startswith(".") and path.name.endswith(".crc")):  # Hadoop's checksums
                        tar.add(path, f"{format}/{path.relative_to(lake)}")
        spark.stop()
    return archive


if __name__ == "__main__":
    print(make())
