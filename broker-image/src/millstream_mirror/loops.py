"""Circles: topics of the source that a mirror made from the target, which must not be mirrored back.

Every mirror keeps its progress in the cluster it writes to, under a group ``millstream-mirror.…``, and with it the id
of the cluster that it reads from. So the groups in our source show which of its topics come from our target. If both
directions start at once, each finds the other at its next look, and both skip the topic and report it. A mirror that
does not run (its group is empty) does not count: once it has ended, the opposite direction may start.
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

    async def mirrored_from(self, cluster_id: str) -> set[str]:
        """The topics in the source whose records come from that cluster. Raises BrokerError, ApiError."""
        groups = await asyncio.gather(*(self._groups(node) for node in list(self._at_source.brokers)))
        topics = await asyncio.gather(
            *(self._topics(group, cluster_id) for of_node in groups for group in of_node)
        )
        return set().union(*topics)

    async def _groups(self, node: int) -> list[str]:
        response = await self._at_source.call_node(node, list_groups.API, ListGroupsRequest())
        return [
            group.group_id
            for group in response.groups
            if group.group_id.startswith(GROUP_PREFIX) and group.group_state not in ("Empty", "Dead")
        ]

    async def _topics(self, group_id: str, cluster_id: str) -> set[str]:
        """The topics that this group's mirror fills from that cluster."""
        request = OffsetFetchRequest(group_id, None, [OffsetFetchRequestGroup(group_id, None)])
        response = await self._at_source.call_coordinator(group_id, offset_fetch.API, request)
        found = set()
        for topic in response.groups[0].topics if response.groups else response.topics:
            for each in topic.partitions:
                try:
                    progress = Progress.read(each.committed_offset, each.metadata or "")
                except ValueError:
                    continue  # not a mirror's after all
                if progress.cluster_id == cluster_id:
                    found.add(topic.name)
        return found
