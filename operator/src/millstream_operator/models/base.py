"""What the resources share: names and bounds of fields, metadata, references, and the record every kind is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, field

GROUP = "millstream.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# https://kafka.apache.org/documentation/#basic_ops_add_topic and Topic.java: 249 characters, neither "." nor ".."
TopicName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
ClusterName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
Bootstrap = Annotated[str, Meta(pattern=r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$", max_length=1024)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Port = Annotated[int, Meta(ge=1024, le=65535)]
Timestamp = Annotated[datetime, Meta(tz=True)]
Quantity = int | str
DeletionPolicy = Literal["Retain", "Delete"]


class ManifestError(ValueError):
    """A manifest that cannot be: one line for the user."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a user writes: unknown fields are errors."""


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the operator writes: what it does not know is left out."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class ClusterRef(Spec, frozen=True):
    name: ClusterName
    namespace: Name | None = None


class Lag(Status, frozen=True):
    records: int | None = None
    seconds: int | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all kinds have; ``spec`` and ``status`` are typed by each kind."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]

    api_version: Literal["millstream.dev/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace
