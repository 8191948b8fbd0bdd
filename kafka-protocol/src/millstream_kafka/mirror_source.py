"""The topic setting ``millstream.mirror.source``: the topic of which a topic is a read-only replica.

    CLUSTERID/TOPICID           the source cluster's id, and its topic's id as Kafka writes it (22 characters)
    CLUSTERID/TOPICID/rejoin    an existing topic that becomes this replica: read-only, and may be truncated
                                (`protocol.mirror_truncate`), but nothing is appended yet
    (empty)                     an ordinary topic

Mirror workers set it when they create a topic in the target. An existing topic can only begin to rejoin, and then
become the replica. To promote a topic, delete the setting: it is then an ordinary topic.

``millstream.mirror.rejoined`` is the last request (spec.rejoin) under which the topic was a replica, or began to become
one: a promoted topic is not taken again under it. It belongs to the topic, so it lasts as long as the topic.

``millstream.mirror.promoted`` has the last requests (spec.promote) under which the topic was promoted, separated by
commas, the latest first. They are set together with the promotion. The topic may be a replica again since: none of
these requests promotes it a second time, even if the MirrorMaker's status was lost.
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
MOST_PROMOTED = 16
"""Requests in ``PROMOTED``."""
REJOIN = "/rejoin"
FORM = "CLUSTERID/TOPICID, the source's ids as Kafka writes them, or CLUSTERID/TOPICID/rejoin"
REQUEST = re.compile(r"[a-zA-Z0-9._-]{1,63}")
"""The id of a request."""
_CLUSTER = re.compile(r"[a-zA-Z0-9._-]{1,128}")
_TOPIC = re.compile(r"[a-zA-Z0-9_-]{22}")


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
