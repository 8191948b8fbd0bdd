"""RUN.json: one run of a batch load, in full; what a run does depends on nothing else.

Whoever starts a run (operator, local runtime, a person) resolves the offsets once and writes them here, so
that a retry reads exactly the same records:

    {"name": "flights-daily-0001",            letters, digits, ".", "_", "-"; names the run's files
     "bootstrap": "host:9092",
     "offsets": [{"topic": "flights", "partition": 0, "from": 0, "until": 56129}],    until is exclusive
     "value": {"format": "JSON", "schema": "carrier STRING, time_hour TIMESTAMP"},    or Binary, without schema
     "output": {"format": "Parquet", "path": "/lake/flights", "partitionBy": ["date"]},
     "result": "/dev/termination-log"}        a file; left out: none is written

`read_run` raises `BadRun`, whose text names the field, its value and what is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

MAX_RESULT_BYTES = 4096  # what Kubernetes keeps of a termination message


class BadRun(Exception):
    """RUN.json cannot be run as it is; the text is one line for its author."""


ValueFormat = Literal["JSON", "Binary"]
OutputFormat = Literal["Parquet"]


class OffsetRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Records of one partition from ``first`` up to, not including, ``until``."""

    topic: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    partition: Annotated[int, Meta(ge=0)]
    first: Annotated[int, Meta(ge=0)] = field(name="from")
    until: Annotated[int, Meta(ge=0)]

    @property
    def records(self) -> int:
        return self.until - self.first

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.first} to {self.until}"


class Value(Struct, frozen=True, forbid_unknown_fields=True):
    format: ValueFormat = "JSON"
    schema: str = ""


class Output(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    path: Annotated[str, Meta(pattern=r"^(/|[a-z][a-z0-9+.-]*:/)")]
    format: OutputFormat = "Parquet"
    partition_by: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,198}[a-zA-Z0-9])?$")]
    bootstrap: Annotated[str, Meta(pattern=r"^[^\s:]+:\d+(,[^\s:]+:\d+)*$")]
    offsets: Annotated[tuple[OffsetRange, ...], Meta(min_length=1)]
    output: Output
    value: Value = Value()
    result: str = ""

    @property
    def records(self) -> int:
        """How many offsets the ranges hold in all."""
        return sum(part.records for part in self.offsets)


class Result(Struct, frozen=True, rename="camel", omit_defaults=False):
    """What a run reports: ``state`` is Succeeded or Failed, ``corrupt_records`` are among ``rows``."""

    state: str
    rows: int = 0
    corrupt_records: int = 0
    error: str = ""

    def encode(self) -> bytes:
        """As JSON that fits a termination message; a longer error is cut."""
        encoded, kept = msgspec.json.encode(self), self.error
        while len(encoded) > MAX_RESULT_BYTES:  # how long a character is in JSON differs
            kept = kept[: len(kept) * 9 // 10]
            encoded = msgspec.json.encode(msgspec.structs.replace(self, error=kept + "..."))
        return encoded


def read_run(path: Path) -> Run:
    """The run that a file describes."""
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRun(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadRun(f"{path}: is not JSON: {error}") from None
    try:
        run = msgspec.convert(raw, Run)
    except msgspec.ValidationError as error:
        raise BadRun(f"{path}: {_explain(str(error), raw)}") from None
    _check(run, path)
    return run


def result_path(path: Path) -> str:
    """Where a run that may be bad otherwise wants its result; "" when it does not say."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    result = raw.get("result") if isinstance(raw, dict) else None
    return result if isinstance(result, str) else ""


def _check(run: Run, path: Path) -> None:
    """What types alone cannot say."""
    seen: set[tuple[str, int]] = set()
    for index, part in enumerate(run.offsets):
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
    if run.value.format == "JSON" and not run.value.schema.strip():
        raise BadRun(
            f'{path}: value.schema: "" is not allowed: JSON needs columns, such as "carrier STRING, delay DOUBLE"'
        )
    if run.value.format != "JSON" and run.value.schema:
        raise BadRun(
            f"{path}: value.schema: {json.dumps(run.value.schema)} is not allowed with value.format"
            f" {run.value.format}: only JSON has one"
        )


ALLOWED = {
    "name": "1 to 200 letters, digits, dots, underscores and hyphens, a letter or digit first and last",
    "bootstrap": "HOST:PORT, or several with commas between",
    "offsets": "at least one range",
    "topic": "a topic name: 1 to 249 letters, digits, dots, underscores and hyphens",
    "output.path": "an absolute path or a URI such as s3a://bucket/table",
    "value.format": ", ".join(get_args(ValueFormat)),
    "output.format": ", ".join(get_args(OutputFormat)),
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
