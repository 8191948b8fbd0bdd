"""The custom resources as frozen records, decoded from manifests, with the same fields and defaults as ``crds/``.

The CRDs alone define which values a field may have and which rules hold between fields; ``admission`` validates
manifests against them. A record declares types only, so that code may rely on them. Unknown fields are ignored.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from .base import API_VERSION, GROUP, VERSION, ClusterRef, Lag, ManifestError, Quantity, Resource, Status
from .cluster import BrokerCount, Cluster, ClusterStatus, ListenerStatus
from .explain import explain
from .group import (
    ConsumerGroup,
    ConsumerGroupSpec,
    ConsumerGroupStatus,
    LastReset,
    MaxLag,
    Member,
    Reset,
    ResetOffset,
    ResetTopic,
    Standstill,
    TopicLag,
)
from .listeners import Listener
from .load import (
    Asked,
    BatchLoad,
    BatchLoadStatus,
    Committed,
    From,
    LoadedPartition,
    OffsetRange,
    Rerun,
    RerunFrom,
    Run,
    ScheduleStatus,
    Unsettled,
    Until,
    Written,
)
from .mirror import (
    LastPromotion,
    MirrorMaker,
    MirrorMakerStatus,
    MirrorPatterns,
    MirrorSourceStatus,
    Promote,
    PromotedTopic,
)
from .topic import Topic, TopicSpec, TopicStatus
from .user import User, UserSpec, UserStatus
from .workload import Scaling, Workload

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "Asked",
    "BatchLoad",
    "BatchLoadStatus",
    "BrokerCount",
    "Cluster",
    "ClusterRef",
    "ClusterStatus",
    "Committed",
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "ConsumerGroupStatus",
    "From",
    "Lag",
    "LastPromotion",
    "LastReset",
    "Listener",
    "ListenerStatus",
    "LoadedPartition",
    "ManifestError",
    "MaxLag",
    "Member",
    "MirrorMaker",
    "MirrorMakerStatus",
    "MirrorPatterns",
    "MirrorSourceStatus",
    "OffsetRange",
    "Promote",
    "PromotedTopic",
    "Quantity",
    "Rerun",
    "RerunFrom",
    "Reset",
    "ResetOffset",
    "ResetTopic",
    "Resource",
    "Run",
    "Scaling",
    "ScheduleStatus",
    "Standstill",
    "Status",
    "Topic",
    "TopicLag",
    "TopicSpec",
    "TopicStatus",
    "Unsettled",
    "Until",
    "User",
    "UserSpec",
    "UserStatus",
    "Workload",
    "Written",
    "decode_as",
    "encode_status",
]

KINDS: dict[str, type[Resource]] = {
    kind.KIND: kind for kind in (Cluster, Topic, User, ConsumerGroup, MirrorMaker, BatchLoad)
}
"""The one table of kinds: paths in the API, watches, the first listing, claims, finalizers and local manifests follow
from it. Kinds that others refer to come first; the local runtime creates them in this order."""


ResourceT = typing.TypeVar("ResourceT", bound=Resource)


def decode_as(cls: type[ResourceT], manifest: Mapping[str, Any]) -> ResourceT:
    """Decode a valid manifest of a known kind; raises ManifestError if a field has another type."""
    try:
        return msgspec.convert(manifest, cls)
    except msgspec.ValidationError as error:
        raise ManifestError(explain(cls.KIND, manifest, str(error))) from None


def encode_status(status: Status) -> dict[str, Any]:
    """Encode a status for the API server."""
    encoded: dict[str, Any] = msgspec.to_builtins(status)
    return encoded
