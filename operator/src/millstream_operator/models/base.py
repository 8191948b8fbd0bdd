"""Shared by all resources: types of fields, metadata, references, and the base record of every kind."""

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
Gauge = Annotated[int, Meta(extra={"gauge": "number"})]
"""A status number that changes all the time: state/status_throttle.py limits how often it is written."""
Age = Annotated[int, Meta(extra={"gauge": "age"})]
"""A gauge that also grows while nothing happens."""
Quantity = int | str
DeletionPolicy = Literal["Retain", "Delete"]


class ManifestError(ValueError):
    """A manifest is not valid; the message is one line for the user."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Desired state, written by the user. Decoding ignores unknown fields: ``admission`` refuses them in manifests on a
    laptop, and a stored resource may have those of a newer release."""


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Observed state, written by the operator; unknown values are left out."""


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


class Rotate(Spec, frozen=True):
    """Another password; each new ``request_id`` requests one."""

    request_id: str


class OverlappingRotate(Rotate, frozen=True, kw_only=True):
    """``previous_valid_seconds``: how long the former password stays valid."""

    previous_valid_seconds: int = 600


class Lag(Status, frozen=True):
    records: Gauge | None = None
    seconds: Age | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all kinds; each kind types its ``spec`` and ``status``.

    ``CLAIMS`` is the field of the spec that claims a name in the Cluster (default: the resource's own name); of several
    claims to one name the oldest wins. ``HELD`` tells whether a finalizer keeps the resource until its data is deleted,
    if ``spec.deletionPolicy`` says so.
    """

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
