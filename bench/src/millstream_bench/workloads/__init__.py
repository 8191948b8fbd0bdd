"""The brokers' workloads, in the order in which they run."""

from __future__ import annotations

from millstream_bench.workload import Workload
from millstream_bench.workloads import (
    cluster,
    consume,
    floor,
    idle,
    importing,
    latency,
    library,
    members,
    memory,
    mirror,
    produce,
    recovery,
    secured,
    single,
    spark,
    start,
)

WORKLOADS: tuple[Workload, ...] = (
    start.START,
    *produce.PRODUCE,
    single.SINGLE,
    *consume.CONSUME,
    *latency.LATENCY,
    memory.AFTER_ALL,
    memory.FLIGHTS,
    *produce.ON_DISK,
    idle.IDLE,
    *secured.SECURED,
    recovery.RECOVERY,
    *floor.FLOOR,
    *spark.SPARK,
    *cluster.CLUSTER,
    *mirror.MIRROR,
    *library.LIBRARY,
    importing.IMPORT,
    *members.SHARED,
)
