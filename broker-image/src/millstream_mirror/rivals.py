"""Topics that another mirror copies from the same source into the same topic: each record would be there twice.

Every mirror keeps its progress in the target, under its own group. A mirror does not start a topic if another one has
progress in it from the same topic of the same cluster, even if that one is not running: it may be restarting, or be
an earlier name of this mirror. Two that start at the same moment both continue, and both report it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient

from .committed import groups_in, positions_of
from .config import GROUP_PREFIX
from .progress import Progress


@dataclass(frozen=True, slots=True)
class Rival:
    """``group`` is the other mirror's group; ``begun`` tells whether this mirror has progress in the topic, too."""

    group: str
    begun: bool

    def problem(self, topic: str) -> str:
        subject = f"topic {topic}: group {self.group} in the target has its progress from the same source"
        consequence = (
            "each record is copied twice"
            if self.begun
            else "left out, because each record would be copied twice"
        )
        remedy = "exclude it in one of the two mirrors, or delete that group if its mirror is gone"
        return f"{subject}: {consequence}: {remedy}"


class RivalFinder:
    def __init__(self, at_target: ClusterClient, group_id: str) -> None:
        """``group_id`` is this mirror's own group."""
        self._at_target = at_target
        self._group_id = group_id

    async def find(self, source_cluster: str, topics: Mapping[str, str]) -> dict[str, Rival]:
        """``topics`` maps a name in the target to the id of the source's topic. Raises BrokerError, ApiError."""
        groups = [
            group.group_id
            for group in await groups_in(self._at_target)
            if group.group_id.startswith(GROUP_PREFIX)
        ]
        others = sorted({*groups} - {self._group_id})
        if not others:
            return {}
        own, *found = await asyncio.gather(
            *(positions_of(self._at_target, group) for group in (self._group_id, *others))
        )
        begun = {topic for topic, _ in own}
        rivals: dict[str, Rival] = {}
        for group, positions in zip(others, found, strict=True):
            for (topic, _), position in positions.items():
                if topic not in topics or topic in rivals:
                    continue
                try:
                    progress = Progress.read(position.offset, position.metadata)
                except ValueError:
                    continue  # not a mirror's progress after all
                if progress.cluster_id == source_cluster and progress.topic_id == topics[topic]:
                    rivals[topic] = Rival(group, topic in begun)
        return rivals
