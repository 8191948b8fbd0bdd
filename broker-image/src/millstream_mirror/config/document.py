"""The fields of mirror.json, and which values each may have by itself. config.py checks what fields say together.

Security and rejoin are missing or objects, never null, which may be the result of a mistake in a template.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from millstream_kafka.mirror_source import REQUEST
from millstream_process.logs import FORMATS

from .fields import SECRET

MIN_LIMIT = 1024
LETTERS = "1 to 63 letters, digits, '.', '_' or '-'"
FILE = "an object with file: a secret is never in this document"

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,63}\Z", description=LETTERS)]
Expressions = Annotated[list[str], Meta(description="a list of regular expressions")]


class Naming(StrEnum):
    SAME = "Same"
    PREFIXED = "Prefixed"


class Mode(StrEnum):
    AGGREGATE = "Aggregate"
    IDENTITY = "Identity"
    """Topics of the target are read-only replicas of the source's: equal batches at equal offsets."""


class OnGap(StrEnum):
    """How to continue if the source has deleted records before they were mirrored."""

    STOP = "Stop"
    SKIP_TO_EARLIEST = "SkipToEarliest"


class Fields(Struct, forbid_unknown_fields=True, rename="camel"):
    """An object that refuses unknown fields."""


class FileField(Fields):
    """The value is in a file, never in mirror.json."""

    file: str
    source: str | None = field(name="from", default=None)
    """Where the file comes from, for messages; its path otherwise."""


class NameField(Fields):
    """A value here, or in a file."""

    value: str | None = None
    file: str | None = None
    source: str | None = field(name="from", default=None)


SecretField = Annotated[FileField, Meta(description=FILE, extra=SECRET)]
UserField = Annotated[NameField, Meta(description=FILE, extra=SECRET)]


class TlsField(Fields):
    ca_certificates: list[SecretField] = []
    certificate: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET
    verify_hostname: bool = True


class SaslField(Fields):
    mechanism: str
    username: UserField
    password: SecretField


class SourceField(Fields):
    name: Name
    bootstrap: str
    tls: TlsField | UnsetType = UNSET
    sasl: SaslField | UnsetType = UNSET
    max_bytes_per_second: Annotated[int, Meta(ge=MIN_LIMIT, description=f"{MIN_LIMIT} or more")] | None = None
    rack: str = ""


class TargetField(Fields):
    bootstrap: str
    name: str = ""
    tls: TlsField | UnsetType = UNSET
    sasl: SaslField | UnsetType = UNSET


class AllFields(Fields):
    include: Expressions = field(default_factory=lambda: [".*"])
    exclude: Expressions = []


class NoneFields(Fields):
    include: Expressions = []
    exclude: Expressions = []


class RejoinField(Fields):
    request_id: Annotated[str, Meta(pattern=rf"^(?:{REQUEST.pattern})\Z", description=LETTERS)]


class Document(Fields):
    name: Name
    sources: Annotated[list[SourceField], Meta(min_length=1, description="a list of at least one source")]
    target: TargetField
    namespace: str = ""
    topics: AllFields = field(default_factory=AllFields)
    groups: NoneFields = field(default_factory=NoneFields)
    configs: AllFields = field(default_factory=AllFields)
    mode: Mode = Mode.AGGREGATE
    naming: Naming = Naming.SAME
    on_gap: OnGap = OnGap.SKIP_TO_EARLIEST
    http: str = "127.0.0.1:9404"
    log_format: str = FORMATS[0]
    rejoin: RejoinField | UnsetType = UNSET
