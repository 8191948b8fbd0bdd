"""BatchLoad: ranges of topics that Spark writes into a table, and the runs that do."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from . import cron
from .base import ClusterRef, Gauge, Lag, Natural, Resource, Spec, Status, Timestamp, TopicName
from .conditions import Condition
from .load_value import Record, Value
from .pods import PodTemplate, Resources


class PartitionOffset(Spec, frozen=True):
    topic: TopicName
    partition: int
    offset: Natural


class From(Spec, frozen=True):
    position: Literal["Committed", "Earliest", "Timestamp", "Offsets"] = "Committed"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None
    request_id: str | None = None


class Until(Spec, frozen=True):
    position: Literal["Latest", "Timestamp", "Offsets"] = "Latest"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None


class S3(Spec, frozen=True):
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    credentials_secret: str | None = None


class Catalog(Spec, frozen=True):
    type: Literal["Hadoop", "JDBC", "REST"] = "Hadoop"
    uri: str | None = None
    warehouse: str | None = None
    oauth2_server_uri: str | None = None
    scope: str | None = None
    credentials_secret: str | None = None


class Output(Spec, frozen=True):
    path: str
    format: Literal["Parquet", "Delta", "Iceberg"] = "Parquet"
    volume_claim_name: str | None = None
    partition_by: tuple[str, ...] = ()
    target_file_size: str | None = None
    table: str | None = None
    catalog: Catalog | None = None
    s3: S3 | None = None


class SparkDriver(Spec, frozen=True):
    cores: int = 1
    memory: str = "1g"
    resources: Resources = field(default_factory=Resources)
    template: PodTemplate[Literal["driver"]] = field(default_factory=PodTemplate)


class SparkExecutor(Spec, frozen=True):
    instances: int = 1
    cores: int = 1
    memory: str = "1g"
    resources: Resources = field(default_factory=Resources)
    template: PodTemplate[Literal["executor"]] = field(default_factory=PodTemplate)


class Spark(Spec, frozen=True):
    image: str | None = None
    driver: SparkDriver = field(default_factory=SparkDriver)
    executor: SparkExecutor = field(default_factory=SparkExecutor)
    conf: dict[str, str] = field(default_factory=dict)


class Schedule(Spec, frozen=True):
    cron: str
    time_zone: str = "Etc/UTC"
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    starting_deadline_seconds: int | None = None
    suspend: bool = False

    def __post_init__(self) -> None:
        cron.check(self.cron, self.time_zone)  # which no CRD can express


class RerunFrom(Spec, frozen=True):
    position: Literal["Earliest", "Timestamp", "Offsets"]
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None


class Rerun(Spec, frozen=True):
    request_id: str
    from_: RerunFrom = field(name="from")
    until: Until = field(default_factory=Until)


class BatchLoadSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    topics: tuple[TopicName, ...]
    value: Value
    output: Output
    record: Record = field(default_factory=Record)
    from_: From = field(name="from", default_factory=From)
    until: Until = field(default_factory=Until)
    min_records: Natural = 1
    schedule: Schedule | None = None
    rerun: Rerun | None = None
    retries: int = 2
    timeout_seconds: int = 24 * 3600
    successful_runs_history_limit: int = 3
    failed_runs_history_limit: int = 3
    ttl_seconds_after_finished: int | None = None
    min_partitions: int | None = None
    runner: Literal["Job", "SparkApplication"] = "Job"
    spark: Spark = field(default_factory=Spark)


class OffsetRange(Status, frozen=True):
    topic: str
    partition: int
    from_: int = field(name="from")
    until: int
    topic_id: str | None = None


class Run(Status, frozen=True):
    name: str | None = None
    id: str | None = None
    """Names the run's rows: a run that repeats a failed one has the same id."""
    trigger: str | None = None  # Spec, Schedule, Rerun
    request_id: str | None = None
    scheduled_time: str | None = None
    spec: str | None = None
    """Digest of the parts of the spec that decide what it loads."""
    path: str | None = None
    state: str | None = None  # Pending, Running, Succeeded, Failed
    records: int | None = None
    offsets: tuple[OffsetRange, ...] | None = None
    rows: int | None = None
    bytes: int | None = None
    corrupt_records: int | None = None
    warning: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    duration_seconds: int | None = None
    error: str | None = None
    reason: str | None = None
    log: tuple[str, ...] | None = None


class Asked(Status, frozen=True):
    """The spec of the last run that was no rerun, as digests, and whether the run succeeded."""

    generation: int
    spec: str
    from_: str = field(name="from")
    positions: str
    path: str
    succeeded: bool = False


class LoadedPartition(Status, frozen=True):
    topic: str
    partition: int
    offset: int
    topic_id: str | None = None
    lag: Gauge | None = None


class Committed(Status, frozen=True):
    """The end of the last successful run, its table, and the ``from`` it started with."""

    path: str
    from_: str = field(name="from")
    offsets: tuple[LoadedPartition, ...]


class Unsettled(Status, frozen=True):
    """A failed run, which may still have published its rows. The next run repeats it."""

    id: str
    path: str
    positions: str
    offsets: tuple[OffsetRange, ...]


class Written(Status, frozen=True):
    """The runs whose rows may be the last in the table, by their ids. Each run must find one of them there."""

    path: str
    run: str | None = None
    """The last run that succeeded with records; None before the first, and after an upgrade from an older release."""
    since: tuple[str, ...] = ()
    """Runs that have begun since, and may have published."""


class ScheduleStatus(Status, frozen=True):
    """``since``: scheduled times up to this one are done."""

    of: str
    since: str
    next: str | None = None
    skipped: str | None = None
    """The last scheduled time without a run, until the next run begins."""


class BatchLoadStatus(Status, frozen=True):
    observed_generation: int | None = None
    last_run: Run | None = None
    offsets: tuple[OffsetRange, ...] | None = None
    runs: tuple[Run, ...] | None = None
    committed: Committed | None = None
    unsettled: Unsettled | None = None
    written: Written | None = None
    asked: Asked | None = None
    rerun_id: str | None = None
    schedule: ScheduleStatus | None = None
    lag: Lag | None = None
    conditions: tuple[Condition, ...] | None = None


class BatchLoad(Resource, frozen=True):
    KIND, PLURAL = "BatchLoad", "batchloads"
    spec: BatchLoadSpec
    status: BatchLoadStatus = field(default_factory=BatchLoadStatus)
