"""Queries the brokers for the first and last offsets of a load's partitions. Blocking.

All are queried at once, when a run begins. Spark gets them as explicit offsets, since it would resolve "earliest" and
"latest" late, and again at every retry. A log ends where its first open transaction begins: what follows is not
committed, and Spark would wait for it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from ...kafka.admin import KafkaAdmin
from ...kafka.records import EARLIEST, LATEST, AdminError, Partition
from ...models import BatchLoad, Rerun
from ...models.conditions import Reason
from ...models.problem import Problem
from .ranges import Ends, Partitions


def find_ends(admin: KafkaAdmin, load: BatchLoad, rerun: Rerun | None = None) -> Partitions | Problem:
    """The first and last offsets of the partitions, and those of the times in the load's or rerun's range."""
    spec = load.spec
    begins, ends = (spec.from_, spec.until) if rerun is None else (rerun.from_, rerun.until)
    try:
        found = admin.identities(spec.topics)
        if problem := _missing(load, found):
            return problem
        keys = [Partition(topic, index) for topic in spec.topics for index in range(found[topic].partitions)]
        earliest = admin.offsets(dict.fromkeys(keys, EARLIEST))
        latest = admin.offsets(dict.fromkeys(keys, LATEST), read_committed=True)
        from_time = _at(admin, keys, begins.timestamp)
        until_time = _at(admin, keys, ends.timestamp)
    except AdminError as error:
        return Problem(Reason.CLUSTER_NOT_READY, str(error))
    return {
        (key.topic, key.partition): Ends(
            earliest[key], latest[key], from_time.get(key), until_time.get(key), found[key.topic].topic_id
        )
        for key in keys
    }


def check_topics(admin: KafkaAdmin, load: BatchLoad) -> Problem | None:
    """The load's topics that do not exist; None if all do, or if the cluster does not answer."""
    try:
        return _missing(load, admin.identities(load.spec.topics))
    except AdminError:
        return None


def _missing(load: BatchLoad, found: Collection[str]) -> Problem | None:
    if missing := [topic for topic in load.spec.topics if topic not in found]:
        return Problem(
            Reason.TOPIC_NOT_FOUND,
            f"spec.topics: there is no topic {', '.join(missing)} in the cluster: create it, or correct spec.topics",
        )
    return None


def _at(admin: KafkaAdmin, keys: list[Partition], moment: datetime | None) -> dict[Partition, int]:
    """The first offsets at or after a time; partitions without such a record are left out."""
    if moment is None:
        return {}
    found = admin.offsets(dict.fromkeys(keys, int(moment.timestamp() * 1000)), read_committed=True)
    return {key: offset for key, offset in found.items() if offset >= 0}
