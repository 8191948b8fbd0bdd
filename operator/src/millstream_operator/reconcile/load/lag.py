"""A BatchLoad's lag: the number of records that a run can load now, and the age of the oldest one. Blocking."""

from __future__ import annotations

from msgspec.structs import replace

from ...kafka.lag_age import OffsetTimes, Wanted
from ...kafka.records import EARLIEST, LATEST, AdminError, Partition
from ...models import BatchLoad, BatchLoadStatus, Lag, LoadedPartition
from ...models.problem import Problem
from ...state.cache import key_for
from ...state.context import LoadParts
from ...state.lags import Measured
from ..common.reference import find_cluster


def with_lag(services: LoadParts, load: BatchLoad) -> BatchLoadStatus:
    """The status with the current lag; with the previous one while brokers do not respond."""
    committed = load.status.committed
    if committed is None:
        return load.status
    cluster = find_cluster(services, load.namespace, load.spec.cluster_ref)
    if isinstance(cluster, Problem):
        return load.status
    admin = services.brokers_of(cluster)
    now_ms = int(services.now().timestamp() * 1000)
    measured = services.metrics.lags.clock()
    try:
        there = admin.identities(load.spec.topics)
        if any(
            one.topic_id and one.topic in there and there[one.topic].topic_id != one.topic_id
            for one in committed.offsets
        ):
            return load.status  # offsets of another topic: the next run reports it
        keys = [
            Partition(topic, index) for topic, found in there.items() for index in range(found.partitions)
        ]
        ends = admin.offsets(dict.fromkeys(keys, LATEST), read_committed=True)
        loaded = {Partition(one.topic, one.partition): one for one in committed.offsets}
        if news := [key for key in keys if key not in loaded]:
            for key, offset in admin.offsets(dict.fromkeys(news, EARLIEST)).items():
                loaded[key] = LoadedPartition(topic=key.topic, partition=key.partition, offset=offset)
        lags = {key: max(0, ends[key] - loaded[key].offset) for key in keys}
        times = services.load_times.setdefault(load.metadata.uid, OffsetTimes())
        times.saw_ends(ends, now_ms)
        wanted = [Wanted(key, loaded[key].offset) for key, lag in lags.items() if lag]
        ages = times.ages(wanted, now_ms, admin.offsets)
    except AdminError:
        return load.status
    offsets = tuple(
        replace(one, lag=lags.get(Partition(one.topic, one.partition))) for one in committed.offsets
    )
    lag = Lag(records=sum(lags.values()), seconds=max(ages.values(), default=0))
    services.metrics.lags.put(key_for(load), Measured(lag.records or 0, lag.seconds or 0, measured))
    return replace(load.status, committed=replace(committed, offsets=offsets), lag=lag)
