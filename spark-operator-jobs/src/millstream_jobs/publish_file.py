"""PUBLISH.json: one publication, in full.

{"name": "delays-july",                   names the publication, here and in each record's headers
 "bootstrap": "host:9092", "topic": "delays",
 "source": {"format": "Delta", "path": "/lake/flights",    "table", "catalog" for Iceberg, as in RUN.json's output
            "query": "SELECT * FROM source WHERE dep_delay > 60"},    left out: the whole table
 "record": {"key": "carrier", "value": "to_json(struct(*))",    expressions of Spark's SQL; see Content
            "headers": {"origin": "origin"}, "timestamp": "time_hour", "partition": "hash(origin) % 3"},
 "partitioner": "Murmur2",                Java clients' default; CRC32 is librdkafka's; RoundRobin ignores keys
 "maxRecordsPerSecond": 10000, "compression": "zstd",
 "staging": "/lake/_publications",        a folder, or s3a://BUCKET/FOLDER, that every attempt sees
 "s3": …, "result": …, "login": …, "tls": …}    as in RUN.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from millstream_jobs.brokers import Bootstrap, Brokers, Login, Tls
from millstream_jobs.run import (
    ALLOWED,
    S3,
    Catalog,
    Name,
    Output,
    OutputFormat,
    Topic,
    check_output,
    read_config,
)

Partitioner = Literal["Murmur2", "CRC32", "RoundRobin"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    format: OutputFormat = "Parquet"
    table: str = ""
    catalog: Catalog = Catalog()
    query: str = ""
    """SQL over the view `source`; "" is the whole table."""


class Content(Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a record, as Spark SQL expressions over a row. Values that are not binary are sent as text."""

    value: str = "to_json(struct(*))"
    key: str = ""
    headers: dict[str, str] = {}
    timestamp: str = ""
    """The record's time; "": the time of sending."""
    partition: str = ""
    """Number of the target partition; "": the partitioner decides."""


class Publish(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Name
    bootstrap: Bootstrap
    topic: Topic
    source: Source
    staging: Annotated[str, Meta(pattern=r"^(/|s3a://[^/]+/[^/])")]
    record: Content = Content()
    partitioner: Partitioner = "Murmur2"
    max_records_per_second: Annotated[int, Meta(ge=1)] | None = None
    compression: Compression = "none"
    s3: S3 = S3()
    result: str = ""
    login: Login | None = None
    tls: Tls | None = None

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.bootstrap, self.login, self.tls)

    @property
    def table(self) -> Output:
        source = self.source
        return Output(
            source.path, format=source.format, table=source.table, catalog=source.catalog, s3=self.s3
        )

    @property
    def content(self) -> str:
        """The settings on which all attempts must agree."""
        settings = (self.topic, self.source, self.record, self.partitioner)
        return msgspec.json.encode(settings).decode()


ALLOWED.update(
    {
        "partitioner": ", ".join(get_args(Partitioner)),
        "compression": ", ".join(get_args(Compression)),
        "source.format": ", ".join(get_args(OutputFormat)),
        "staging": "an absolute path, or s3a://BUCKET/FOLDER",
    }
)


def read_publish(path: Path) -> Publish:
    wanted = read_config(path, Publish)
    check_output(wanted.table, path, "source")
    return wanted
