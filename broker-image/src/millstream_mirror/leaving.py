"""Topics that the mirror has left: its patterns selected them once, and do not any more.

The leader of the group notes that in their progress, so that a mirror in the other direction may take them (loops.py).
All workers have given their lanes back by then, and those that join get none. The progress itself stays: if the topic
is selected again, its lanes continue there, after they have taken the note back (lanes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from millstream_kafka.client import ClusterClient
from millstream_kafka.topic_partition import TopicPartition

from .config import MirrorConfig, Source
from .others import progress_of
from .progress import Progress

logger = logging.getLogger(__name__)


class LeftTopics:
    """Those of one source."""

    def __init__(
        self,
        config: MirrorConfig,
        source: Source,
        at_target: ClusterClient,
        commit: Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]],
    ) -> None:
        """``commit``: as a member of the group."""
        self._selects = config.selects_target(source)
        self._group_id = config.group_of(source)
        self._at_target = at_target
        self._commit = commit

    async def note(self) -> None:
        """Raises BrokerError, ApiError."""
        found = await progress_of(self._at_target, self._group_id)
        left = {
            where: replace(one, is_left=True)
            for where, one in found.items()
            if not one.is_left and not self._selects(where[0])
        }
        if left:
            await self._commit(left)
            names = ", ".join(sorted({topic for topic, _ in left}))
            logger.info("group %s: left these topics: %s", self._group_id, names)
