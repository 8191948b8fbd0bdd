"""Topics of the target that this mirror made as replicas, and that somebody has promoted since.

A replica becomes an ordinary topic by its promotion, and never the other way round. So an ordinary topic was promoted
if this mirror has progress in it, under the topic's present id. That survives the worker and the MirrorMaker: the
target keeps the progress of a mirror that is gone for as long as positions of other groups (offsets.retention.minutes).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .progress import ProgressStore, target_number

logger = logging.getLogger(__name__)


class PromotedTopics:
    """Those of one source."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self.names: list[str] = []
        """Found by the last look."""
        self._known: set[tuple[str, str]] = set()

    async def find(self, ordinary: Mapping[str, str]) -> list[str]:
        """The promoted ones among ordinary topics of the target, given by name and id. Raises BrokerError, ApiError."""
        new = {name: one for name, one in ordinary.items() if (name, one) not in self._known and one}
        for name in await self._ours(new) if new else ():
            self._known.add((name, new[name]))
            logger.warning("topic %s: promoted: it is not mirrored any more", name)
        self.names = sorted(name for name, one in ordinary.items() if (name, one) in self._known)
        return self.names

    async def _ours(self, topics: Mapping[str, str]) -> list[str]:
        """Those in which this mirror has progress. The first partition tells: lanes begin with all."""
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
