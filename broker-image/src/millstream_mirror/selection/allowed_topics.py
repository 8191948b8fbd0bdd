"""Which of the topics that the patterns select may be mirrored: no loops, and none that another mirror copies, too."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from millstream_kafka.client import BrokerError
from millstream_kafka.protocol.metadata import MetadataResponseTopic

from ..config.config import MirrorConfig, Source
from ..kafka.clients import Clients
from ..kafka.topics import id_of, is_same
from .conflicts import OtherMirrorFinder
from .loops import LoopFinder
from .other_mirrors import progress_of

OTHER_MIRRORS_CHECK_S = 30.0

logger = logging.getLogger(__name__)


class AllowedTopics:
    """The topics of one source that may be mirrored."""

    def __init__(
        self, config: MirrorConfig, source: Source, clients: Clients, *, follows_promoted: bool
    ) -> None:
        """``follows_promoted``: topics that were promoted from replicas of the target's may be mirrored back."""
        self._config = config
        self._source = source
        self._clients = clients
        self._follows_promoted = follows_promoted
        self._loops = LoopFinder(clients.source)
        self._other_mirrors = OtherMirrorFinder(clients.target, config.group_of(source))
        self._others_checked_at = -OTHER_MIRRORS_CHECK_S
        self._origins: Mapping[str, tuple[str, ...]] = {}
        self.loops: dict[str, str] = {}
        """Why a topic is not mirrored whose records come from the target, by topic."""
        self.doubled: dict[str, str] = {}
        """Why a topic is copied twice, or left to the other mirror that copies it, by topic of the target."""

    def origins(self, topic: str) -> tuple[str, ...]:
        """Ids of the clusters from which a topic's records come to the source."""
        return self._origins.get(topic, ())

    async def of(
        self, topics: Collection[MetadataResponseTopic], known: Collection[str], *, owns: bool
    ) -> tuple[list[MetadataResponseTopic], BrokerError | None]:
        """The topics that may be mirrored; and an error if that is not known of all. Raises BrokerError, ApiError.

        ``known`` has the target's topics that are mirrored; ``owns``: the workers' group is this MirrorMaker's.

        Each broker lists the groups that it coordinates, so a broker that does not respond may have those of a mirror
        that brings a topic back, or that copies it, too. A worker that starts then continues with the topics that its
        mirror has begun, as a running worker does; new topics wait.
        """
        try:
            await self._find_loops(topics)
            doubled = await self._find_doubled(topics, known) if owns else set()
        except BrokerError as error:
            if known or not owns:
                raise
            return await self._begun(topics), error
        return [topic for topic in topics if topic.name not in self.loops and topic.name not in doubled], None

    async def _begun(self, topics: Collection[MetadataResponseTopic]) -> list[MetadataResponseTopic]:
        """The topics of which this mirror has progress."""
        found = await progress_of(self._clients.target, self._config.group_of(self._source))
        begun = {
            (topic, progress.topic_id)
            for (topic, _), progress in found.items()
            if not progress.is_deselected
            and is_same(progress.cluster_id, self._clients.source.cluster_id or "")
            and self._clients.target.cluster_id not in progress.origins
        }
        names = {
            (self._config.target_topic(self._source, topic.name or ""), id_of(topic)): topic
            for topic in topics
        }
        return [topic for key, topic in names.items() if key in begun]

    async def _find_loops(self, topics: Collection[MetadataResponseTopic]) -> None:
        """Find topics whose records come from the target, and the origins of all."""
        found = await self._loops.feeds({topic.name or "": id_of(topic) for topic in topics})
        self._origins = {
            topic: tuple(
                sorted({cluster for feed in feeds if not feed.is_promoted for cluster in feed.clusters})
            )
            for topic, feeds in found.items()
        }
        loops = {}
        for topic, feeds in sorted(found.items()):
            for feed in feeds:
                may_follow = feed.is_promoted and self._follows_promoted
                if self._clients.target.cluster_id in feed.clusters and not may_follow:
                    loops[topic] = feed.problem(topic)
        for topic in loops.keys() - self.loops.keys():
            logger.warning("source %s: %s", self._source.name, loops[topic])
        self.loops = loops

    async def _find_doubled(
        self, topics: Collection[MetadataResponseTopic], known: Collection[str]
    ) -> set[str]:
        """Find topics that another mirror has started and this one has not; at intervals, and when a topic is new."""
        names = {self._config.target_topic(self._source, topic.name or ""): topic for topic in topics}
        is_recent = time.monotonic() - self._others_checked_at < OTHER_MIRRORS_CHECK_S
        if names.keys() <= set(known) and is_recent:
            return set()
        ids = {name: id_of(topic) for name, topic in names.items()}
        found = await self._other_mirrors.find(self._clients.source.cluster_id or "", ids)
        self._others_checked_at = time.monotonic()
        for name in sorted(found.keys() - self.doubled.keys()):
            logger.warning("source %s: %s", self._source.name, found[name].problem(name))
        self.doubled = {name: other.problem(name) for name, other in sorted(found.items())}
        return {names[name].name or "" for name, other in found.items() if not other.begun}
