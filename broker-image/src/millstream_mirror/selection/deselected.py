"""Topics that the mirror has deselected: its patterns once selected them, and no longer do.

The leader of the group marks them in their progress, so that a mirror in the other direction may copy them (loops.py;
a replica only once it is promoted), and that nobody waits for them.
All workers have given up these tasks by then, and later workers get none. The progress itself stays: if the topic is
selected again, its tasks remove the mark (aggregate/recovery.py) and continue there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from millstream_kafka.client import ClusterClient
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import MirrorConfig, Source
from ..kafka.progress import Progress
from .other_mirrors import progress_of

logger = logging.getLogger(__name__)


class DeselectedTopics:
    """The topics that the mirror of one source has deselected."""

    def __init__(
        self,
        config: MirrorConfig,
        source: Source,
        at_target: ClusterClient,
        commit: Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]],
    ) -> None:
        """``commit`` commits progress as a member of the group."""
        self._selects = config.selects_target(source)
        self._group_id = config.group_of(source)
        self._at_target = at_target
        self._commit = commit

    async def note(self) -> None:
        """Mark them in their progress. Raises BrokerError, ApiError."""
        found = await progress_of(self._at_target, self._group_id)
        left = {
            where: replace(progress, is_deselected=True)
            for where, progress in found.items()
            if not progress.is_deselected and not self._selects(where[0])
        }
        if left:
            await self._commit(left)
            names = ", ".join(sorted({topic for topic, _ in left}))
            logger.info("group %s: no longer mirrors these topics: %s", self._group_id, names)
