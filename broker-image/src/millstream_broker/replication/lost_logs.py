"""Partitions that should have a log here and have none, and what their logs and others still fit.

A lost log is in a log directory that is offline, or is missing from the directory that had it. It is never replaced by
an empty one: a new log is copied from other replicas, and only when coordination relies on these.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping

from millstream_kafka.topic_partition import TopicPartition

from ..coordination import NO_LEADER, TopicRecord
from ..log.manager import LogManager
from .replicas import Replicas

log = logging.getLogger(__name__)


class LostLogs:
    """All calls are made on the loop, except `includes` and `reason`."""

    def __init__(self, replicas: Replicas, logs: LogManager) -> None:
        self._replicas = replicas
        self._logs = logs
        self._lost: set[tuple[uuid.UUID, int]] = set(logs.inventory.missing)

    def add(self, topic_id: uuid.UUID, index: int) -> None:
        self._lost.add((topic_id, index))

    def discard(self, topic_id: uuid.UUID, index: int) -> None:
        self._lost.discard((topic_id, index))

    def forget(self, deleted: Collection[uuid.UUID]) -> None:
        """Forget the logs of deleted topics."""
        self._lost = {key for key in self._lost if key[0] not in deleted}

    def includes(self, topic: TopicRecord, index: int) -> bool:
        return (topic.topic_id, index) in self._lost

    def reason(self, topic: TopicRecord, index: int) -> str:
        """Why the log is lost."""
        place = self._logs.inventory.missing.get((topic.topic_id, index))
        if place is None or place.directory in map(str, self._logs.offline):
            return f"its log directory is offline: {', '.join(map(str, self._logs.offline))}"
        return (
            f"its log is missing: it was in {place.directory}. Put its folder, or that directory in log.dirs, back and"
            " restart the broker; or delete the topic"
        )

    def find(self) -> None:
        """Find partitions that belong to missing directories because ours lack them; these are never recreated.

        A partition whose replicas are not announced yet (`controller.machine`, `may_announce`) may be ours, and counts.
        """
        for topic in self._replicas.latest_image.topics.values():
            for index, record in enumerate(topic.partitions):
                found = self._logs.get(topic.name, index)
                is_here = found is not None and found.topic_id in (None, topic.topic_id)
                is_ours = not record.replicas or self._replicas.broker_id in record.replicas
                if is_ours and not is_here:
                    self._lost.add((topic.topic_id, index))

    def has_log(self, topic: TopicRecord, index: int) -> bool:
        """Whether there is a log to open, or one that is lost: without a leader no empty one is created."""
        key, logs = (topic.name, index), self._logs
        found = logs.get(*key)
        return (
            (found is not None and found.topic_id is None)
            or logs.log_of(topic.topic_id, *key) is not None
            or bool(logs.strays.of(topic.topic_id, index, {home.path for home in logs.dirs}))
            or self.includes(topic, index)
        )

    def allow_copy(self, topic: TopicRecord, index: int) -> None:
        """A missing log may be copied anew once coordination relies on other replicas only."""
        key, record, us = (topic.topic_id, index), topic.partitions[index], self._replicas.broker_id
        place = self._logs.inventory.missing.get(key)
        if place is None or key not in self._lost or place.directory in map(str, self._logs.offline):
            return
        if record.leader not in (NO_LEADER, us) and us not in record.isr:
            log.warning(
                "%s-%d: its log in %s is missing: it is copied anew from broker %d",
                topic.name,
                index,
                place.directory,
                record.leader,
            )
            self._lost.discard(key)

    def misfit(
        self, key: TopicPartition, topic_id: uuid.UUID | None, topics: Mapping[str, TopicRecord | None]
    ) -> str:
        """Why a log of this name and topic id fits nothing; empty if it does, or if that is unknown."""
        if key[0] not in topics:
            return ""
        topic = topics[key[0]]
        if topic is None or topic.topic_id != topic_id or key[1] >= len(topic.partitions):
            return "belongs to no topic that coordination knows"
        record = topic.partitions[key[1]]
        if self._replicas.broker_id not in (*record.replicas, *record.removing):
            return "is of a partition that has no replica on this broker"
        return ""
