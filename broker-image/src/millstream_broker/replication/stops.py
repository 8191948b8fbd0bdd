"""A controller's request to stop a replica, and whether its log may be deleted."""

from __future__ import annotations

import logging
import uuid
from typing import NamedTuple

from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE

from ..log.manager import LogManager
from ..metadata.cache import Metadata

log = logging.getLogger(__name__)


class Stop(NamedTuple):
    """A controller's request to stop a replica."""

    topic: str
    partition: int
    leader_epoch: int
    """Negative: any."""
    delete: bool
    topic_id: uuid.UUID
    """Another topic of that name is left alone."""


def may_delete(stop: Stop, logs: LogManager) -> bool:
    """Whether the log of that name is the one to delete."""
    found = logs.get(stop.topic, stop.partition)
    if found is None or found.topic_id in (None, stop.topic_id):
        return found is not None
    log.warning(
        "%s: not deleted: its topic id is %s, the deleted topic's %s",
        found.directory,
        found.topic_id,
        stop.topic_id,
    )
    return False


def must_keep(stop: Stop, logs: LogManager, metadata: Metadata) -> bool:
    """Whether the assignment that lacks this replica may be older than its log, which no leader has confirmed.

    The controller sends the state of all partitions before a request to a broker that is back.
    """
    found = logs.get(stop.topic, stop.partition)
    if found is None or stop.leader_epoch == EPOCH_DURING_DELETE:
        return False
    topic, index = metadata.topics.get(stop.topic), stop.partition
    known = topic is not None and topic.topic_id == stop.topic_id and index < len(topic.partitions)
    return found.is_suspect(topic.partitions[index].compared if known and topic is not None else -1)
