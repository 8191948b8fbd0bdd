"""The number of consumers that a group needs, from its lag; pure, the caller passes the time.

One consumer for each ``targetLag`` records, within ``min`` and ``max`` and never more than there are partitions. A
difference of a tenth changes nothing. The number rises at once. It falls only if no reconcile of a whole window needed
as many consumers, by at most half, and to zero only if nothing was left to read. A restarted operator first observes
for a whole window.

A single response of a broker may lack a topic. So missing topics, and fewer partitions than consumers, stop consumers
only after all reconciles of a window found the same.

At a steady load enough consumers have no lag, and by lag alone some of them would stop and start for ever. So the
history keeps the speed of one consumer at times when the group fell behind. As many stay as the records of the last
window need at that speed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

from ...models import ConsumerGroup, Scaling
from ...models.scaling import History, Load, Sample
from .plan import Observed, lag_by_partition

TOLERANCE = 0.1
SPEED_KEPT = timedelta(hours=6)
SAMPLE_S = 5.0  # shortest time between two samples


def load_of(group: ConsumerGroup, observed: Observed) -> Load:
    """The load of a group, counted without its members.

    Partitions of its topics that have records and no position must be read, too, but their lag is unknown: each counts
    as one record.
    """
    lags = lag_by_partition(observed)
    unknown = any(
        end > 0 and partition not in observed.committed and partition.topic in group.spec.topics
        for partition, end in observed.ends.items()
    )
    return Load(
        unread=max(sum(lags.values()), int(unknown)),
        produced=sum(observed.ends[partition] for partition in lags),
        consumed=sum(observed.committed[partition] for partition in lags),
        partitions=sum(partition.topic in group.spec.topics for partition in observed.ends),
        missing=bool(observed.missing),
    )


def decide(
    scaling: Scaling, load: Load, present: int | None, history: History, now: datetime
) -> tuple[int, History]:
    """The number of consumers, and the new history. ``present`` is the present number, None before the first."""
    window = timedelta(seconds=scaling.stabilization_seconds)
    if history.since is None or now < history.since or (history.peaks and now < history.peaks[-1][0]):
        history = History(since=now)
    need = _need(scaling, load, present or 0)
    recent = [(time, count) for time, count in history.peaks if time >= now - window and count > need]
    history = replace(history, peaks=(*recent, (now, need)))
    if present is not None:
        history = _lacking(history, load, min(present, scaling.max), now)
        if history.lacking_since is not None and now - history.lacking_since < window:
            return max(min(present, scaling.max), need), history
    history = _measured(history, load, present or 0, window, now)
    most = min(scaling.max, load.partitions)
    if present is None or need >= present:
        return need, history
    if present > most:  # partitions have disappeared, or max has changed
        return most, history
    if history.since is None or now - history.since < window:
        return present, history
    fewer = max(history.peaks[0][1], present // 2, min(most, _needed_by_speed(history)))
    if fewer >= present:
        return present, history
    return fewer, replace(history, since=now, peaks=())


def _need(scaling: Scaling, load: Load, present: int) -> int:
    """The number that the lag alone needs."""
    most = min(scaling.max, load.partitions)
    need = math.ceil(load.unread / scaling.target_lag)
    at_present = scaling.target_lag * present
    if load.unread and abs(load.unread - at_present) <= TOLERANCE * at_present:
        need = present
    return max(min(scaling.min, most), min(need, most))


def _lacking(history: History, load: Load, consumers: int, now: datetime) -> History:
    """The history with the start of reconciles that lack topics, or partitions for this many consumers."""
    if not load.missing and load.partitions >= consumers:
        return replace(history, lacking_since=None)
    if history.lacking_since is None or now < history.lacking_since:
        return replace(history, lacking_since=now)
    return history


def _measured(history: History, load: Load, present: int, window: timedelta, now: datetime) -> History:
    """The history with another sample."""
    last = history.samples[-1] if history.samples else None
    if last is not None:
        seconds = (now - last.time).total_seconds()
        if seconds < SAMPLE_S:
            return history
        consumed = load.consumed - last.load.consumed
        if load.produced < last.load.produced or consumed < 0 or load.partitions != last.load.partitions:
            return replace(history, samples=(Sample(now, load),))  # a recreated topic, or a reset
        speeds = tuple(speed for speed in history.speeds if speed[0] >= now - SPEED_KEPT)
        if present and consumed and load.unread > last.load.unread > 0:
            speeds = (
                *(speed for speed in speeds if speed[1] > consumed / seconds / present),
                (now, consumed / seconds / present),
            )
        history = replace(history, speeds=speeds)
    samples = [sample for sample in history.samples if sample.time >= now - window]
    return replace(history, samples=(*samples, Sample(now, load)))


def _needed_by_speed(history: History) -> int:
    """The number of consumers that the records of the last window need."""
    first, last = history.samples[0], history.samples[-1]
    seconds = (last.time - first.time).total_seconds()
    if not history.speeds or seconds <= 0:
        return 0
    speed = max(speed for _, speed in history.speeds)
    return math.ceil((last.load.produced - first.load.produced) / seconds / speed)
