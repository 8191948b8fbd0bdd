"""BatchLoad: a range of topics that Spark writes into tables, and its runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from ..conditions import Condition
from .base import ClusterRef, Natural, Resource, Spec, Status, Timestamp, TopicName
from .spark_conf import refused


class PartitionOffset(Spec, frozen=True):
    topic: TopicName
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: Natural


def _check_position(
    position: str, timestamp: datetime | None, offsets: tuple[PartitionOffset, ...] | None
) -> None:
    if (position == "Timestamp") != (timestamp is not None):
        raise ValueError("timestamp is required with position Timestamp, and allowed with it only")
    if (position == "Offsets") != (offsets is not None):
        raise ValueError("offsets are required with position Offsets, and allowed with it only")


class From(Spec, frozen=True):
    position: Literal["Committed", "Earliest", "Timestamp", "Offsets"] = "Earliest"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None

    def __post_init__(self) -> None:
        _check_position(self.position, self.timestamp, self.offsets)


class Until(Spec, frozen=True):
    position: Literal["Latest", "Timestamp", "Offsets"] = "Latest"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None

    def __post_init__(self) -> None:
        _check_position(self.position, self.timestamp, self.offsets)


class Value(Spec, frozen=True):
    format: Literal["JSON", "Binary"]
    schema: Annotated[str, Meta(min_length=1, max_length=65536)] | None = None

    def __post_init__(self) -> None:
        if (self.format == "JSON") != (self.schema is not None):
            raise ValueError("schema is required with format JSON, and allowed with it only")


class Output(Spec, frozen=True):
    path: Annotated[str, Meta(pattern=r"^(/|[a-z][a-z0-9+.-]*://).+$", max_length=1024)]
    format: Literal["Parquet"] = "Parquet"
    volume_claim_name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")] | None = None
    partition_by: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=16)
    ] = ()

    def __post_init__(self) -> None:
        if self.volume_claim_name is not None and not self.path.startswith("/"):
            raise ValueError("path: with volumeClaimName, a folder (/…) is required")


Memory = Annotated[str, Meta(pattern=r"^[0-9]+[kmgt]$", max_length=12)]
Cores = Annotated[int, Meta(ge=1, le=64)]


class SparkDriver(Spec, frozen=True):
    cores: Cores = 1
    memory: Memory = "1g"


class SparkExecutor(Spec, frozen=True):
    instances: Annotated[int, Meta(ge=1, le=1000)] = 1
    cores: Cores = 1
    memory: Memory = "1g"


class Spark(Spec, frozen=True):
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    driver: SparkDriver = field(default_factory=SparkDriver)
    executor: SparkExecutor = field(default_factory=SparkExecutor)
    conf: Annotated[dict[str, str], Meta(max_length=128)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if keys := refused(self.conf):
            raise ValueError(
                f"conf: {keys[0]} is not allowed: it could change Spark's pods or load code into the driver"
            )


class BatchLoadSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    topics: Annotated[tuple[TopicName, ...], Meta(min_length=1, max_length=64)]
    value: Value
    output: Output
    from_: From = field(name="from", default_factory=From)
    until: Until = field(default_factory=Until)
    min_records: Natural = 1
    runner: Literal["Job", "SparkApplication"] = "Job"
    spark: Spark = field(default_factory=Spark)


class Run(Status, frozen=True):
    name: str | None = None
    state: str | None = None  # Pending, Running, Succeeded, Failed
    rows: int | None = None
    start_time: str | None = None
    end_time: str | None = None
    error: str | None = None


class OffsetRange(Status, frozen=True):
    topic: str
    partition: int
    from_: int = field(name="from")
    until: int


class BatchLoadStatus(Status, frozen=True):
    observed_generation: int | None = None
    last_run: Run | None = None
    offsets: tuple[OffsetRange, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class BatchLoad(Resource, frozen=True):
    KIND, PLURAL = "BatchLoad", "batchloads"
    spec: BatchLoadSpec
    status: BatchLoadStatus = field(default_factory=BatchLoadStatus)
