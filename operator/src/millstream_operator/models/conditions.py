"""Condition types, reasons, and the one way to set a condition.

Conditions follow Kubernetes' conventions: a list keyed by type, ``Ready`` first; ``lastTransitionTime`` changes only
when ``status`` does. Every reason that any reconcile may give is listed here, so that users can look them up.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum

import msgspec


class ConditionType(StrEnum):
    READY = "Ready"
    ROLLING_UPDATE = "RollingUpdate"  # Cluster
    UPGRADING = "Upgrading"  # Cluster
    REBALANCING = "Rebalancing"  # Cluster, Topic
    PAUSED = "Paused"  # every kind
    WARNING = "Warning"  # Cluster, Topic, User, BatchLoad, MirrorMaker
    STRAYS = "Strays"  # Cluster
    CERTIFICATES_READY = "CertificatesReady"  # Cluster
    OPEN_LISTENERS = "OpenListeners"  # Cluster
    LAGGING = "Lagging"  # ConsumerGroup
    STUCK = "Stuck"  # ConsumerGroup
    RESET = "Reset"  # ConsumerGroup
    WORKLOAD_READY = "WorkloadReady"  # ConsumerGroup
    CAUGHT_UP = "CaughtUp"  # MirrorMaker
    SOURCE_REACHABLE = "SourceReachable"  # MirrorMaker
    DEGRADED = "Degraded"  # MirrorMaker
    PROMOTED = "Promoted"  # MirrorMaker
    SUCCEEDED = "Succeeded"  # BatchLoad
    LATE = "Late"  # BatchLoad
    DATA_QUALITY = "DataQuality"  # BatchLoad


class Reason(StrEnum):
    # every kind
    INVALID_SPEC = "InvalidSpec"
    RECONCILE_FAILED = "ReconcileFailed"
    RECONCILE_PAUSED = "ReconcilePaused"
    # everything that creates Kubernetes objects: an object of that name belongs to another owner
    OBJECT_NOT_OURS = "ObjectNotOurs"
    # everything with a clusterRef
    CLUSTER_NOT_FOUND = "ClusterNotFound"
    CLUSTER_NOT_READY = "ClusterNotReady"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    OTHER_RELEASE = "OtherRelease"
    # Cluster
    ALL_BROKERS_READY = "AllBrokersReady"
    BROKERS_STARTING = "BrokersStarting"
    BROKER_FAILED = "BrokerFailed"
    PODS_REFUSED = "PodsRefused"
    LISTENERS_PENDING = "ListenersPending"
    PLAINTEXT_LISTENER = "PlaintextListener"
    LISTENER_OPEN = "ListenerOpen"
    NOT_STATED = "NotStated"
    ZOOKEEPER_NOT_READY = "ZooKeeperNotReady"
    UPGRADING = "Upgrading"
    OUTSIDE_MAINTENANCE_WINDOW = "OutsideMaintenanceWindow"
    WAITING_FOR_CLUSTER = "WaitingForCluster"
    RESTARTING = "Restarting"
    RESTART_BLOCKED = "RestartBlocked"
    DRAINING = "Draining"
    SPREADING = "Spreading"
    SCALE_DOWN_REFUSED = "ScaleDownRefused"
    CERTIFICATES_CURRENT = "CertificatesCurrent"
    AUTHORITY_BOTH_TRUSTED = "AuthorityBothTrusted"
    AUTHORITY_REISSUED = "AuthorityReissued"
    AUTHORITY_RETIRING = "AuthorityRetiring"
    AUTHORITY_INVALID = "AuthorityInvalid"
    CERTIFICATE_NOT_SERVED = "CertificateNotServed"
    RACKS_UNKNOWN = "RacksUnknown"
    VOLUME_NOT_RESIZED = "VolumeNotResized"
    # Topic
    TOPIC_READY = "TopicReady"
    READ_ONLY_REPLICA = "ReadOnlyReplica"
    PARTITION_DECREASE_REFUSED = "PartitionDecreaseRefused"
    REASSIGNING = "Reassigning"
    INVALID_REPLICATION_FACTOR = "InvalidReplicationFactor"
    INVALID_TOPIC = "InvalidTopic"
    CONFLICTING_TOPIC = "ConflictingTopic"
    REFUSED = "Refused"
    DELETING = "Deleting"
    # Cluster, Topic: logs that fit no topic
    STRAY_LOGS = "StrayLogs"
    # Cluster, Topic: a key or value of spec.config that the broker refuses; an unreachable min.insync.replicas
    INVALID_CONFIG = "InvalidConfig"
    MINIMUM_ISR = "MinimumIsr"
    # User
    USER_READY = "UserReady"
    CONFLICTING_USER = "ConflictingUser"
    RESERVED_USER = "ReservedUser"
    INVALID_ACCESS_RULE = "InvalidAccessRule"
    NO_AUTHORIZER = "NoAuthorizer"
    OPERATOR_NOT_AUTHORIZED = "OperatorNotAuthorized"
    ACCESS_CHANGED = "AccessChanged"
    SECRET_MISSING = "SecretMissing"
    SECRET_INVALID = "SecretInvalid"
    SECRET_NOT_READABLE = "SecretNotReadable"
    # ConsumerGroup
    GROUP_OBSERVED = "GroupObserved"
    GROUP_UNUSED = "GroupUnused"
    CONFLICTING_GROUP = "ConflictingGroup"
    TOPIC_NOT_FOUND = "TopicNotFound"
    WITHIN_MAX_LAG = "WithinMaxLag"
    ABOVE_MAX_LAG = "AboveMaxLag"
    NOTHING_COMMITTED = "NothingCommitted"
    CONSUMING = "Consuming"
    RESET_DONE = "ResetDone"
    RESET_REFUSED = "ResetRefused"
    RESET_CANCELLED = "ResetCancelled"
    WAITING_FOR_MEMBERS = "WaitingForMembers"
    WORKLOAD_READY = "WorkloadReady"
    WORKLOAD_STARTING = "WorkloadStarting"
    WORKLOAD_FAILED = "WorkloadFailed"
    WORKLOAD_REFUSED = "WorkloadRefused"
    # MirrorMaker
    MIRRORING = "Mirroring"
    WORKERS_STARTING = "WorkersStarting"
    WORKER_FAILED = "WorkerFailed"
    NO_WORKERS = "NoWorkers"
    SAME_CLUSTER = "SameCluster"
    MIRROR_LOOP = "MirrorLoop"
    SOURCES_REACHABLE = "SourcesReachable"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    TARGET_UNREACHABLE = "TargetUnreachable"
    CREDENTIALS_MISSING = "CredentialsMissing"
    TLS_FAILED = "TlsFailed"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    CAUGHT_UP = "CaughtUp"
    BEHIND = "Behind"
    REJOINING = "Rejoining"
    RECORDS_MISSING = "RecordsMissing"
    STOPPED_AT_GAP = "StoppedAtGap"
    DIVERGED = "Diverged"
    BATCH_NOT_MIRRORED = "BatchNotMirrored"
    RECORD_TOO_LARGE = "RecordTooLarge"
    TOPIC_REFUSED = "TopicRefused"
    PARTITION_WAITING = "PartitionWaiting"
    MIRRORED_TWICE = "MirroredTwice"
    NAME_TAKEN = "NameTaken"
    NO_TOPICS = "NoTopics"
    PATTERN_UNMATCHED = "PatternUnmatched"
    NOTHING_MISSING = "NothingMissing"
    PROMOTED = "Promoted"
    PROMOTING = "Promoting"
    PROMOTED_BEFORE = "PromotedBefore"
    PROMOTION_REFUSED = "PromotionRefused"
    MIRRORED_AGAIN = "MirroredAgain"
    TOPIC_PROMOTED = "TopicPromoted"
    # BatchLoad
    SCHEDULED = "Scheduled"
    SUSPENDED = "Suspended"
    WAITING_FOR_RECORDS = "WaitingForRecords"
    TOPIC_REPLACED = "TopicReplaced"
    OFFSETS_GONE = "OffsetsGone"
    CONFLICTING_TABLE = "ConflictingTable"
    ALREADY_LOADED = "AlreadyLoaded"
    TABLE_REPLACED = "TableReplaced"
    FENCED = "Fenced"
    RUN_PENDING = "RunPending"
    PODS_PENDING = "PodsPending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    RUN_FAILED = "RunFailed"
    OOM_KILLED = "OOMKilled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    ON_SCHEDULE = "OnSchedule"
    RUN_LATE = "RunLate"
    RUN_SKIPPED = "RunSkipped"
    ALL_RECORDS_PARSED = "AllRecordsParsed"
    CORRUPT_RECORDS = "CorruptRecords"
    TABLE_NOT_PORTABLE = "TableNotPortable"
    RUNNER_NOT_AVAILABLE = "RunnerNotAvailable"
    OUTPUT_NOT_WRITABLE = "OutputNotWritable"


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    type: str
    status: str  # "True", "False" or "Unknown"
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int | None = None


def rfc3339(moment: datetime) -> str:
    """A time as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Iterable[Condition],
    kind: ConditionType,
    status: bool | None,
    reason: Reason,
    message: str,
    *,
    generation: int | None,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with one set: ``Ready`` first, the rest by type. ``None`` is Unknown."""
    text = {True: "True", False: "False", None: "Unknown"}[status]
    before = {condition.type: condition for condition in conditions}
    old = before.get(kind.value)
    before[kind.value] = Condition(
        type=kind.value,
        status=text,
        reason=reason.value,
        message=message,
        last_transition_time=old.last_transition_time if old and old.status == text else rfc3339(now),
        observed_generation=generation,
    )
    return tuple(sorted(before.values(), key=lambda c: (c.type != ConditionType.READY.value, c.type)))
