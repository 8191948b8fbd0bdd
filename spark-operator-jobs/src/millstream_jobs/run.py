"""RUN.json: the complete description of one run of a batch load; the run depends on nothing else.

The starter of a run (operator, local runtime, a person) resolves the offsets once and writes them here, so
that a retry reads exactly the same records:

    {"name": "flights-daily-0001",            letters, digits, ".", "_", "-"; names the run's files
     "bootstrap": "host:9092",
     "offsets": [{"topic": "flights", "partition": 0, "from": 0, "until": 56129}],    until is exclusive
     "topicIds": {"flights": "FFoprDM1SJK7NOYIyM9Pww"},    the topics that the offsets are of, as Kafka writes ids;
                                               left out: those that there are when the job starts
     "fromTimestamp": "2026-11-20T00:00:00Z",  skips older records of the ranges; left out: none
     "minPartitions": 16,                      least number of reading tasks; left out: one for each partition
     "value": {"format": "JSON", "schema": "carrier STRING, time_hour TIMESTAMP"},    see `value`
     "record": {"key": "Text", "headers": true},    left out: the key's bytes, no headers
     "output": {"format": "Parquet", "path": "/lake/flights", "partitionBy": ["date"]},    see Output
                                               "mode": "Replace" replaces the rows of these records in the table,
                                               "New" fails if it has any
     "fence": {"after": "flights-daily-0000"}, stops earlier runs of the load for good, see Fence; left out: does not
     "login": {"folder": "/run/millstream/user"},    the files of a user's Secret, see `brokers`; left out: no login
     "tls": {"caFile": "/run/millstream/user/ca.crt"},    the authorities of brokers' certificates; left out: no TLS
     "result": "/dev/termination-log"}        a file; left out: none is written

`read_run` raises `BadRun`, whose message names the field, its value and what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, field

from millstream_jobs import value as values
from millstream_jobs.brokers import Bootstrap, Brokers, Login, Tls
from millstream_jobs.value import Record, Value

MAX_RESULT_BYTES = 4096  # the limit of a termination message in Kubernetes


class BadRun(Exception):
    """RUN.json is not valid, or can never run; the message is one line for its author."""

    reason = "InvalidSpec"
    """Like that of a JobError."""


OutputFormat = Literal["Parquet", "Delta", "Iceberg"]
CatalogType = Literal["Hadoop", "JDBC", "REST"]
Mode = Literal["Append", "New", "Replace"]


Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,198}[a-zA-Z0-9])?$")]
Topic = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
TopicId = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{22}$")]


class OffsetRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Records of one partition from ``first`` up to, not including, ``until``."""

    topic: Topic
    partition: Annotated[int, Meta(ge=0)]
    first: Annotated[int, Meta(ge=0)] = field(name="from")
    until: Annotated[int, Meta(ge=0)]

    @property
    def records(self) -> int:
        return self.until - self.first

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.first} to {self.until}"


class S3(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The store behind ``s3a://``.

    Credentials come from the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """

    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\s/]+/?)?$")] = ""
    """URL of the store; "" is AWS."""
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]*$")] = ""
    path_style: bool = False
    """Whether requests name the bucket in the path (most stores but AWS) rather than in the host's name."""


class Catalog(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An Iceberg catalog.

    JDBC takes CATALOG_USER and CATALOG_PASSWORD from the environment, REST takes CATALOG_CREDENTIAL (CLIENT:SECRET) or
    CATALOG_TOKEN.
    """

    type: CatalogType = "Hadoop"
    uri: str = ""
    """URL of the database (jdbc:…) or of the REST server; Hadoop has none."""
    warehouse: str = ""
    """REST: the server's name of the warehouse; "": the output's path."""
    oauth2_server_uri: str = ""
    """REST: URL that gives a token for CATALOG_CREDENTIAL; "": the server's own."""
    scope: str = ""
    """REST: OAuth2 scope of the token; "": Iceberg's default, catalog."""


class Output(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    path: Annotated[str, Meta(pattern=r"^(/|s3a://[^/]+/[^/])")]
    """The table's folder, for Iceberg the catalog's warehouse: on a POSIX file system or ``s3a://BUCKET/…``."""
    format: OutputFormat = "Parquet"
    mode: Mode = "Append"
    """Replace: the commit that adds the new rows removes existing rows of the run's records.

    New: the run fails if there are such rows.
    """
    partition_by: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    target_file_size: Annotated[int, Meta(ge=0)] = 0
    """Approximate size of a file, in bytes; 0: a file for each task, or partition value."""
    owner: str = ""
    """The load that owns the table; tables of other owners are not written. "": ownership is not checked."""
    table: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+)?$")] = ""
    """NAMESPACE.TABLE in the Iceberg catalog."""
    catalog: Catalog = Catalog()
    s3: S3 = S3()

    @property
    def in_s3(self) -> bool:
        return in_s3(self.path)


def in_s3(path: str) -> bool:
    return path.startswith("s3a://")


class Fence(Struct, frozen=True, forbid_unknown_fields=True):
    """The run claims the table: no earlier run of the load can commit after it (`claims`)."""

    after: Name | None = None
    """The run whose rows the table got last; None: any run, or none."""
    failed: tuple[Name, ...] = ()
    """Runs since then that may have committed."""
    request: Annotated[str, Meta(max_length=512)] = ""
    """The request with which the run begins; it fails if the table has a run of the same request. "": none."""


class Run(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Name
    bootstrap: Bootstrap
    offsets: Annotated[tuple[OffsetRange, ...], Meta(min_length=1)]
    output: Output
    value: Value = Value()
    record: Record = Record()
    topic_ids: dict[str, TopicId] = {}
    """The id of each topic that the offsets are of; a topic that is not here is the one at the job's start."""
    from_timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    min_partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    fence: Fence | None = None
    result: str = ""
    login: Login | None = None
    tls: Tls | None = None

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.bootstrap, self.login, self.tls)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.topic for part in self.offsets))

    @property
    def records(self) -> int:
        """The number of offsets in all ranges."""
        return sum(part.records for part in self.offsets)


class Result(Struct, frozen=True, rename="camel", omit_defaults=False):
    """A run's report.

    ``state`` is Succeeded or Failed; ``corrupt_records`` are among ``rows``; ``bytes_`` is the size of the files with
    these rows, None if unknown; ``reason`` is that of a JobError. ``run`` is the run's name, so that readers can tell
    results of different runs apart. ``warning`` is about the table: the run succeeded, but some cannot read it.
    """

    state: str
    rows: int = 0
    corrupt_records: int = 0
    bytes_: int | None = field(default=None, name="bytes")
    error: str = ""
    run: str = ""
    reason: str = ""
    warning: str = ""

    def encode(self) -> bytes:
        """As JSON that fits a termination message; a longer error or warning is cut."""
        field, kept = ("warning", self.warning) if self.warning else ("error", self.error)
        encoded = msgspec.json.encode(self)
        while len(encoded) > MAX_RESULT_BYTES:  # characters have different lengths in JSON
            kept = kept[: len(kept) * 9 // 10]
            encoded = msgspec.json.encode(msgspec.structs.replace(self, **{field: kept + "..."}))
        return encoded


def read_run(path: Path) -> Run:
    """Read the run in a file."""
    run = read_config(path, Run)
    _check_ranges(run.offsets, path)
    if unknown := sorted(run.topic_ids.keys() - set(run.topics)):
        raise BadRun(f"{path}: topicIds.{unknown[0]} is not allowed: no range in offsets is of this topic")
    check_table(run.output, run.value, path)
    return run


Config = TypeVar("Config", bound=Struct)


def read_config(path: Path, kind: type[Config]) -> Config:
    """Read a configuration file, and check its types; BadRun if it is not valid."""
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRun(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadRun(f"{path}: is not JSON: {error}") from None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise BadRun(f"{path}: {_explain(str(error), raw)}") from None


def name_and_result(path: Path) -> tuple[str, str]:
    """The name of a run and the path of its result, even from an otherwise invalid file; "" if missing."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return "", ""
    given = (raw.get("name"), raw.get("result")) if isinstance(raw, dict) else ("", "")
    name, result = (text if isinstance(text, str) else "" for text in given)
    return name, result


def _check_ranges(offsets: Sequence[OffsetRange], path: Path) -> None:
    seen: set[tuple[str, int]] = set()
    for index, part in enumerate(offsets):
        if part.until < part.first:
            raise BadRun(
                f"{path}: offsets[{index}].until: {part.until} is not allowed: it is below from, {part.first}"
            )
        if (part.topic, part.partition) in seen:
            raise BadRun(
                f"{path}: offsets[{index}]: {part.topic}-{part.partition} is not allowed:"
                " it is listed before; each partition has one range"
            )
        seen.add((part.topic, part.partition))


def check_table(output: Output, value: Value, path: Path) -> None:
    """Check the rules for a table and its columns that types cannot express."""
    check_output(output, path)
    if said := values.problem(value):
        raise BadRun(f"{path}: {said}")


def check_output(output: Output, path: Path, field: str = "output") -> None:
    """The same for the table alone, which is in the file's ``field``."""
    iceberg = output.format == "Iceberg"
    given = {"table": output.table, "catalog": output.catalog != Catalog()}
    for name in (name for name, value in given.items() if value and not iceberg):
        raise BadRun(
            f"{path}: {field}.{name} is not allowed with {field}.format {output.format}: only Iceberg has one"
        )
    if output.mode == "Replace" and output.format == "Parquet":
        raise BadRun(
            f"{path}: {field}.mode: Replace is not allowed with {field}.format Parquet: plain files cannot be"
            " replaced in one step; choose Delta or Iceberg, or load into another path"
        )
    if not iceberg:
        return
    if not output.table:
        raise BadRun(f"{path}: {field}.table: is missing: Iceberg needs NAMESPACE.TABLE")
    catalog = output.catalog
    if catalog.type == "Hadoop" and output.in_s3:
        raise BadRun(
            f"{path}: {field}.catalog.type: Hadoop is not allowed with {output.path}: a Hadoop catalog"
            " commits by renaming, which S3 cannot do safely; choose JDBC or REST"
        )
    rest = {
        "warehouse": catalog.warehouse,
        "oauth2ServerUri": catalog.oauth2_server_uri,
        "scope": catalog.scope,
    }
    for name in (name for name, value in rest.items() if value and catalog.type != "REST"):
        raise BadRun(
            f"{path}: {field}.catalog.{name} is not allowed with type {catalog.type}: only REST has one"
        )
    wanted = {"Hadoop": ("",), "JDBC": ("jdbc:",), "REST": ("http://", "https://")}[catalog.type]
    if not catalog.uri.startswith(wanted) or (catalog.type == "Hadoop" and catalog.uri):
        raise BadRun(
            f"{path}: {field}.catalog.uri: {json.dumps(catalog.uri)} is not allowed with type {catalog.type}:"
            f" {' or '.join(f'{begin}…' for begin in wanted) if wanted[0] else 'leave it out'}"
        )


ALLOWED = {
    "name": "1 to 200 letters, digits, dots, underscores and hyphens, a letter or digit first and last",
    "bootstrap": "HOST:PORT, or several with commas between",
    "login.folder": "an absolute path, without white space, $, : and braces",
    "tls.caFile": "the absolute path of a file, without white space, $, : and braces",
    "offsets": "at least one range",
    "topic": "a topic name: 1 to 249 letters, digits, dots, underscores and hyphens",
    "topicIds[...]": "an id as Kafka writes it: 22 letters, digits, hyphens and underscores",
    "output.path": "an absolute path, or s3a://BUCKET/FOLDER",
    "output.table": "NAMESPACE.TABLE",
    "output.s3.endpoint": "a URL such as https://HOST:PORT",
    "output.s3.region": "a region such as eu-central-1",
    "fromTimestamp": "a time with its zone, such as 2026-11-20T00:00:00Z",
    **values.ALLOWED,
    "output.format": ", ".join(get_args(OutputFormat)),
    "output.catalog.type": ", ".join(get_args(CatalogType)),
    "output.mode": ", ".join(get_args(Mode)),
}


def _explain(message: str, raw: Any) -> str:
    """msgspec's message with the field's name as its author wrote it, the value, and what is allowed."""
    found = re.fullmatch(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?", message)
    assert found is not None
    what, where = found[1], found[2] or ""
    if named := re.search(r"(missing required|contains unknown) field `(.+)`", what):
        inside = f"{where}." if where else ""
        if named[1] == "missing required":
            return f"{inside}{named[2]}: is missing"
        return f"{inside}{named[2]}: is not a known field"
    allowed = (
        ALLOWED.get(where) or ALLOWED.get(where.rpartition(".")[2])
        if "Expected `str`, " not in what
        else None
    )
    given = json.dumps(_at(raw, where))
    if len(given) > 100:
        given = given[:97] + "..."
    return f"{where or 'the whole'}: {given} is not allowed: {allowed or what[0].lower() + what[1:]}"


def _at(raw: Any, where: str) -> Any:
    """The value at msgspec's path, such as ``offsets[0].from``."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", where):
        if isinstance(raw, Mapping) and name:
            raw = raw.get(name)
        elif isinstance(raw, list) and index.isdigit():
            raw = raw[int(index)]
    return raw
