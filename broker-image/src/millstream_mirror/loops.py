"""Loops: the source's topics whose records come from the target must not be mirrored back.

Every mirror keeps its progress in the cluster that it writes to, under a group ``millstream-mirror.…``. The progress
has the ids of the cluster that the mirror reads from, and of the clusters from which the records came there. So the
groups in our source show all clusters that a topic's records have passed, however many. A lane commits these ids before
it sends records, so workers see a loop before it closes. If all mirrors of a loop start at once on existing topics,
records may loop for a second or two; then at least one mirror skips the topic and reports it. A mirror that does not
run (its group is empty) does not count: once it has ended, the opposite direction may start.
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
        """Ids of the clusters from which each topic of the source gets records. Raises BrokerError, ApiError."""
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
                    continue  # not a mirror's progress after all
                origins.setdefault(topic, set()).update({progress.cluster_id, *progress.origins} - {""})
        return origins
