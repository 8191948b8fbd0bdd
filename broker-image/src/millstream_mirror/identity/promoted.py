"""Topics of the target that were replicas of this mirror and have been promoted.

A mirror stores progress only for its replicas, and for topics that are resynced. So if it has progress for an ordinary
topic, under the topic's present id, the topic was promoted, or somebody ended its resync. The target keeps this
progress without the worker and the MirrorMaker, as long as positions of other groups (offsets.retention.minutes).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..kafka.progress import ProgressStore, target_number

logger = logging.getLogger(__name__)


class PromotedTopics:
    """The promoted topics of one source."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self.names: list[str] = []
        """Result of the last `find`."""
        self._known: set[tuple[str, str]] = set()

    async def find(self, ordinary: Mapping[str, str]) -> list[str]:
        """The promoted topics among these ordinary topics (name to id) of the target. Raises BrokerError, ApiError."""
        new = {
            name: topic_id
            for name, topic_id in ordinary.items()
            if (name, topic_id) not in self._known and topic_id
        }
        for name in await self._ours(new) if new else ():
            self._known.add((name, new[name]))
            logger.warning("topic %s: promoted: it is not mirrored any more", name)
        self.names = sorted(name for name, topic_id in ordinary.items() if (name, topic_id) in self._known)
        return self.names

    async def _ours(self, topics: Mapping[str, str]) -> list[str]:
        """The topics with progress of this mirror: a topic with any progress has it for partition 0."""
        try:
            found = await self._store.read([(name, 0) for name in topics])
        except ValueError as error:  # every client may commit there
            logger.warning("%s", error)
            return []
        return [
            name
            for (name, _), progress in found.items()
            if progress.producer_id == target_number(topics[name])
        ]
