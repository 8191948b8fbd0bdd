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
from millstream_kafka.protocol import list_groups, offset_fetch
from millstream_kafka.protocol.list_groups import ListGroupsRequest
from millstream_kafka.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

from .config import GROUP_PREFIX
from .progress import Progress


class LoopFinder:
    def __init__(self, at_source: ClusterClient) -> None:
        self._at_source = at_source

    async def origins(self) -> dict[str, set[str]]:
        """By topic of the source, the ids of the clusters from which it gets records. Raises BrokerError, ApiError."""
        groups = await asyncio.gather(*(self._groups(node) for node in list(self._at_source.brokers)))
        origins: dict[str, set[str]] = {}
        for found in await asyncio.gather(*(self._origins(group) for of_node in groups for group in of_node)):
            for topic, clusters in found.items():
                origins.setdefault(topic, set()).update(clusters)
        return origins

    async def _groups(self, node: int) -> list[str]:
        response = await self._at_source.call_node(node, list_groups.API, ListGroupsRequest())
        return [
            group.group_id
            for group in response.groups
            if group.group_id.startswith(GROUP_PREFIX) and group.group_state not in ("Empty", "Dead")
        ]

    async def _origins(self, group_id: str) -> dict[str, set[str]]:
        """The topics that this group's mirror fills, and from where."""
        request = OffsetFetchRequest(group_id, None, [OffsetFetchRequestGroup(group_id, None)])
        response = await self._at_source.call_coordinator(group_id, offset_fetch.API, request)
        found: dict[str, set[str]] = {}
        for topic in response.groups[0].topics if response.groups else response.topics:
            for each in topic.partitions:
                try:
                    progress = Progress.read(each.committed_offset, each.metadata or "")
                except ValueError:
                    continue  # not a mirror's after all
                found.setdefault(topic.name, set()).update((progress.cluster_id, *progress.origins))
        return found
