"""What the resources share: types of fields, metadata, references, and the record every kind is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, field

GROUP = "millstream.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

TopicName = str
Natural = int
Timestamp = Annotated[datetime, Meta(tz=True)]
Gauge = Annotated[int, Meta(extra={"gauge": True})]
"""A number of a status that changes all the time: shown as exactly and written as often as pace.py says."""
Quantity = int | str
DeletionPolicy = Literal["Retain", "Delete"]


class ManifestError(ValueError):
    """A manifest that cannot be: one line for the user."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a user writes. Unknown fields are left out: ``admission`` refuses them in manifests on a laptop; a stored
    resource may have those of a newer release."""


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
    name: str
    namespace: str | None = None


class Lag(Status, frozen=True):
    records: Gauge | None = None
    seconds: Gauge | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all kinds have; ``spec`` and ``status`` are typed by each kind.

    ``CLAIMS``: the field of the spec by which it claims a name in its Cluster, which is its own name when that is left
    out; of several that claim one the oldest has it. ``HELD``: is it kept by a finalizer until its data is deleted,
    where ``spec.deletionPolicy`` says so?"""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    CLAIMS: ClassVar[str | None] = None
    HELD: ClassVar[bool] = False

    api_version: Literal["millstream.dev/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace
