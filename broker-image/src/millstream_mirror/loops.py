"""Circles: topics of the source whose records come from the target, which must not be mirrored back.

Every mirror keeps its progress in the cluster it writes to, under a group ``millstream-mirror.…``, and with it the id
of the cluster that it reads from, and of those from which the records came there. So the groups in our source show all
clusters that a topic's records have passed, however long the way. A lane commits this before it sends records, so a
circle is seen before it is closed. If all mirrors of a circle start at once on topics that are there already, records
may go round for a second or two; then one of them or more skip the topic and report it. A mirror that does not run (its
group is empty) does not count: once it has ended, the opposite direction may start.
"""

from __future__ import annotations

import asyncio

from millstream_kafka.client import ClusterClient

from .committed import groups_in, positions_of
from .config import GROUP_PREFIX
from .progress import Progress


class LoopFinder:
    def __init__(self, at_source: ClusterClient) -> None:
        self._at_source = at_source

    async def origins(self) -> dict[str, set[str]]:
        """By topic of the source, the ids of the clusters from which it gets records. Raises BrokerError, ApiError."""
        mirrors = [
            group.group_id
            for group in await groups_in(self._at_source)
            if group.group_id.startswith(GROUP_PREFIX) and group.group_state not in ("Empty", "Dead")
        ]
        origins: dict[str, set[str]] = {}
        for found in await asyncio.gather(*(positions_of(self._at_source, group) for group in mirrors)):
            for (topic, _), position in found.items():
                try:
                    progress = Progress.read(position.offset, position.metadata)
                except ValueError:
                    continue  # not a mirror's after all
                origins.setdefault(topic, set()).update({progress.cluster_id, *progress.origins} - {""})
        return origins
