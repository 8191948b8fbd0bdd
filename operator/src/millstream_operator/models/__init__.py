"""The custom resources as frozen records, decoded from manifests, with the same defaults and bounds as ``crds/``.

The API server validates against the CRDs; these records validate again for what reads manifests without one (the local
runtime) and for objects stored under an older CRD. A spec refuses unknown fields, a status ignores them.

Errors are ``ManifestError`` with one line that names kind, resource, field, value and what is allowed::

    Topic flights: spec.partitions: 0 is not allowed: expected `int` >= 1
    Topic flights: spec.partitons: unknown field; allowed: clusterRef, config, deletionPolicy, partitions, …
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from ..explain import explain, shown
from .base import API_VERSION, GROUP, VERSION, ClusterRef, Lag, ManifestError, Quantity, Resource, Status
from .cluster import BrokerCount, Cluster, ClusterStatus, Listener, ListenerStatus
from .group import ConsumerGroup, ConsumerGroupSpec, ConsumerGroupStatus, MaxLag, Member, TopicLag
from .load import BatchLoad, BatchLoadStatus, From, OffsetRange, Run, Until
from .mirror import MirrorMaker, MirrorMakerStatus, MirrorSourceStatus, MirrorTopics
from .topic import Topic, TopicSpec, TopicStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "BatchLoad",
    "BatchLoadStatus",
    "BrokerCount",
    "Cluster",
    "ClusterRef",
    "ClusterStatus",
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "ConsumerGroupStatus",
    "From",
    "Lag",
    "Listener",
    "ListenerStatus",
    "ManifestError",
    "MaxLag",
    "Member",
    "MirrorMaker",
    "MirrorMakerStatus",
    "MirrorSourceStatus",
    "MirrorTopics",
    "OffsetRange",
    "Quantity",
    "Resource",
    "Run",
    "Status",
    "Topic",
    "TopicLag",
    "TopicSpec",
    "TopicStatus",
    "Until",
    "decode",
    "decode_as",
    "encode_status",
]

KINDS: dict[str, type[Resource]] = {
    kind.KIND: kind for kind in (Cluster, Topic, ConsumerGroup, MirrorMaker, BatchLoad)
}


def decode(manifest: object) -> Resource:
    """A manifest (a YAML or JSON document) as its record; raises ManifestError."""
    if not isinstance(manifest, Mapping):
        raise ManifestError(f"a manifest must be a mapping with apiVersion and kind, not {shown(manifest)}")
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if version != API_VERSION:
        raise ManifestError(f"apiVersion: {shown(version)} is not allowed: expected {API_VERSION}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(f"kind: {shown(kind)} is not allowed: expected one of {', '.join(KINDS)}")
    return decode_as(KINDS[kind], manifest)


ResourceT = typing.TypeVar("ResourceT", bound=Resource)


def decode_as(cls: type[ResourceT], manifest: Mapping[str, Any]) -> ResourceT:
    """A manifest of a known kind."""
    try:
        return msgspec.convert(manifest, cls)
    except msgspec.ValidationError as error:
        raise ManifestError(explain(cls, cls.KIND, manifest, str(error))) from None


def encode_status(status: Status) -> dict[str, Any]:
    """A status as the API server takes it."""
    encoded: dict[str, Any] = msgspec.to_builtins(status)
    return encoded
