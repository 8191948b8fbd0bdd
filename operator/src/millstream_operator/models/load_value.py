"""How a BatchLoad parses the values of records, and which record metadata become columns."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .base import Spec


class SchemaRegistry(Spec, frozen=True):
    url: str


class Value(Spec, frozen=True):
    """``max_corrupt_records``: a count, or a percentage as "0.1%"; None is any number."""

    format: Literal["JSON", "CSV", "Avro", "Protobuf", "Text", "Binary"]
    schema: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    schema_registry: SchemaRegistry | None = None
    descriptor_set: str | None = None
    message: str | None = None
    time_column: str | None = None
    max_corrupt_records: int | str | None = None


class Record(Spec, frozen=True):
    key: Literal["Binary", "Text"] = "Binary"
    headers: bool = False
