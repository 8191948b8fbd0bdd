"""The topic setting ``millstream.mirror.source``: the topic of which a topic is a read-only replica.

    CLUSTERID/TOPICID           the source cluster's id, and its topic's id as Kafka writes it (22 characters)
    CLUSTERID/TOPICID/rejoin    an existing topic that becomes this replica: read-only, and may be truncated
                                (`protocol.mirror_truncate`), but nothing is appended yet
    (empty)                     an ordinary topic

Mirror workers set it when they create a topic in the target. An existing topic can only begin to rejoin, and then
become the replica. To promote a topic, delete the setting: it is then an ordinary topic.

Two settings have requests, separated by commas, the latest first. They belong to the topic, so they last as long as it
does, whatever becomes of MirrorMakers and their statuses:

``millstream.mirror.rejoined``: those (spec.rejoin) under which the topic was a replica, or began to become one. A
promoted topic is not taken again under one of them.

``millstream.mirror.promoted``: those (spec.promote) under which the topic was promoted, set together with the
promotion. None of them promotes it a second time, if it has become a replica again.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from .kafka_uuid import uuid_from, uuid_text
from .protocol.schema import ZERO_UUID

KEY = "millstream.mirror.source"
REJOINED = "millstream.mirror.rejoined"
PROMOTED = "millstream.mirror.promoted"
MOST_REQUESTS = 16
"""Requests in ``REJOINED`` and in ``PROMOTED``."""
REJOIN = "/rejoin"
FORM = "CLUSTERID/TOPICID, the source's ids as Kafka writes them, or CLUSTERID/TOPICID/rejoin"
REQUEST = re.compile(r"[a-zA-Z0-9._-]{1,63}")
"""The id of a request."""
_CLUSTER = re.compile(r"[a-zA-Z0-9._-]{1,128}")
_TOPIC = re.compile(r"[a-zA-Z0-9_-]{22}")


def requests_of(text: str | None) -> tuple[str, ...]:
    """The requests in a setting, the latest first."""
    return tuple(filter(None, (text or "").split(",")))


def with_request(text: str | None, request: str) -> str:
    """The setting, with this request as the latest one."""
    others = [one for one in requests_of(text) if one != request]
    return ",".join([request, *others][:MOST_REQUESTS])


class MirrorSource(NamedTuple):
    cluster_id: str
    topic_id: uuid.UUID
    rejoins: bool = False
    """The topic is to become the replica, and is not one yet."""

    def __str__(self) -> str:
        return f"{self.cluster_id}/{uuid_text(self.topic_id)}{REJOIN if self.rejoins else ''}"


def parse(text: str) -> MirrorSource:
    """Raises ValueError."""
    ids = text.removesuffix(REJOIN)
    cluster, _, topic = ids.partition("/")
    if _CLUSTER.fullmatch(cluster) and _TOPIC.fullmatch(topic):
        topic_id = uuid_from(topic)
        if topic_id != ZERO_UUID and uuid_text(topic_id) == topic:
            return MirrorSource(cluster, topic_id, ids != text)
    raise ValueError(f"{text!r} is not {FORM}")
