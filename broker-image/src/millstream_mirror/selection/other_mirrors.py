"""The progress of all mirrors that write to a cluster, from the groups in which they keep it.

A group counts in any state: a group without members may belong to a mirror whose workers will start again. Known groups
are read again even if no broker lists them: after a failover, the next coordinator may not have begun to load a group,
and only a request for its positions shows that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Mapping

from millstream_kafka.client import ClusterClient
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import GROUP_PREFIX
from ..kafka.group_offsets import Position, groups_in, positions_of
from ..kafka.progress import Progress

AT_ONCE = 16
"""Number of groups to read at the same time."""


class OtherMirrors:
    """All mirrors that write to one cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: set[str] = set()

    async def progress(
        self, topics: Container[str], besides: str = ""
    ) -> dict[str, dict[TopicPartition, Progress]]:
        """Their progress in these topics, by group, without the group ``besides``. Raises BrokerError, ApiError."""
        listed = {group.group_id for group in await groups_in(self._cluster)}
        self._known |= {group for group in listed if group.startswith(GROUP_PREFIX)}
        limit = asyncio.Semaphore(AT_ONCE)

        async def of(group: str) -> dict[TopicPartition, Position]:
            async with limit:
                return await positions_of(self._cluster, group)

        groups = sorted(self._known - {besides})
        positions = dict(zip(groups, await asyncio.gather(*map(of, groups)), strict=True))
        self._known = {group for group in groups if positions[group] or group in listed}
        return {
            group: _progress_in(
                {where: position for where, position in positions[group].items() if where[0] in topics}
            )
            for group in groups
        }


async def progress_of(cluster: ClusterClient, group: str) -> dict[TopicPartition, Progress]:
    """All progress of one mirror. Raises BrokerError, ApiError."""
    return _progress_in(await positions_of(cluster, group))


def _progress_in(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Progress]:
    found = {}
    for where, position in positions.items():
        with contextlib.suppress(ValueError):  # every client may commit there
            found[where] = Progress.read(position.offset, position.metadata)
    return found
