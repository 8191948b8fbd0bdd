"""Topics that another mirror copies from the same source into the same topic: each record would be there twice.

Every mirror keeps its progress in the target, under its own group. A mirror does not start a topic if another one has
progress in it from the same topic of the same cluster, even if that one is not running: it may be restarting, or be
an earlier name of this mirror. Two that start at the same moment both continue, and both report it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient

from ..kafka.group_offsets import positions_of
from .other_mirrors import OtherMirrors


@dataclass(frozen=True, slots=True)
class OtherMirror:
    """``group`` is the other mirror's group; ``begun`` tells whether this mirror has progress in the topic, too."""

    group: str
    begun: bool

    def problem(self, topic: str) -> str:
        subject = f"topic {topic}: group {self.group} in the target has its progress from the same source"
        if self.begun:
            return f"{subject}: each record is copied twice: exclude it in one of the two mirrors"
        return (
            f"{subject}: left out, because each record would be copied twice: exclude it here, or delete that group if"
            " its mirror is gone for good"
        )


class OtherMirrorFinder:
    def __init__(self, at_target: ClusterClient, group_id: str) -> None:
        """``group_id`` is this mirror's own group."""
        self._at_target = at_target
        self._mirrors = OtherMirrors(at_target)
        self._group_id = group_id

    async def find(self, source_cluster: str, topics: Mapping[str, str]) -> dict[str, OtherMirror]:
        """``topics``: the source's id of each, by its name in the target. Raises BrokerError, ApiError."""
        found = await self._mirrors.progress(topics, besides=self._group_id)
        groups: dict[str, str] = {}
        for group, positions in found.items():
            for (topic, _), progress in positions.items():
                if progress.cluster_id == source_cluster and progress.topic_id == topics[topic]:
                    groups.setdefault(topic, group)
        if not groups:
            return {}
        begun = {topic for topic, _ in await positions_of(self._at_target, self._group_id)}
        return {topic: OtherMirror(group, topic in begun) for topic, group in groups.items()}
