"""Loops: the source's topics whose records come from the target must not be mirrored back.

Every mirror keeps its progress in the cluster that it writes to, under a group ``millstream-mirror.…``. The progress
has the ids of the cluster that the mirror reads from, and of the clusters from which the records came there. So the
groups in our source show all clusters that a topic's records have passed, however many. A task commits these ids before
it sends records, so workers see a loop before it closes. If all mirrors of a loop start at once on existing topics,
records may loop for a second or two; then at least one mirror skips the topic and reports it.

A mirror counts as long as it has progress, even if none of its workers runs: one may start at any moment, and then both
directions would copy. It no longer counts for a topic

    that its patterns no longer select: its workers mark that (deselected.py)
    that was its replica and was promoted: its workers no longer write there (identity/promoted.py). Its old records
        would come back only once, and not at all with mode Identity, which never appends to other records
    if its group is deleted, or expires in the source (offsets.retention.minutes after its last worker has ended)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import KEY
from millstream_kafka.protocol import describe_configs
from millstream_kafka.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..kafka.progress import target_number
from ..kafka.topics import TOPIC_RESOURCE
from .other_mirrors import OtherMirrors


@dataclass(frozen=True, slots=True)
class Feed:
    """A mirror that fills a topic of our source."""

    group: str
    clusters: frozenset[str]
    """Ids of the cluster that it reads from, and of the clusters from which the records came there."""
    is_replica: bool = False
    """The topic is its read-only replica."""
    is_promoted: bool = False
    """The topic was its replica: it has old records of these clusters, and gets no more."""

    def problem(self, topic: str) -> str:
        """The message for a topic if one of these clusters is our target."""
        subject = f"topic {topic}: left out: its records come from the target: "
        if self.is_replica:
            return (
                f"{subject}it is a read-only replica in the source, by group {self.group}: exclude it here, or promote"
                " it in the source to reverse the direction"
            )
        if self.is_promoted:
            return (
                f"{subject}it was a replica in the source, by group {self.group}, until it was promoted: mirror it with"
                " mode Identity, exclude it, or delete that group to copy all its records into the target again"
            )
        return (
            f"{subject}group {self.group} in the source has its progress: exclude it in one of the mirrors, or delete"
            " that group if its mirror is gone for good"
        )


class LoopFinder:
    def __init__(self, at_source: ClusterClient) -> None:
        self._at_source = at_source
        self._mirrors = OtherMirrors(at_source)

    async def feeds(self, topics: Mapping[str, str]) -> dict[str, list[Feed]]:
        """The mirrors that fill these topics of the source (name to id). Raises BrokerError, ApiError."""
        found: dict[str, list[Feed]] = {}
        for group, positions in (await self._mirrors.progress(topics)).items():
            clusters: dict[str, set[str]] = {}
            replicas = set()
            for (topic, _), progress in positions.items():
                if topics[topic] and progress.producer_id == target_number(topics[topic]):
                    replicas.add(topic)  # its setting tells whether it still is one
                elif progress.is_deselected:
                    continue
                clusters.setdefault(topic, set()).update({progress.cluster_id, *progress.origins} - {""})
            for topic, ids in clusters.items():
                found.setdefault(topic, []).append(Feed(group, frozenset(ids), topic in replicas))
        still = await self._replicas(
            sorted(topic for topic, feeds in found.items() if any(feed.is_replica for feed in feeds))
        )
        for topic in found.keys() - still:
            found[topic] = [
                replace(feed, is_replica=False, is_promoted=feed.is_replica) for feed in found[topic]
            ]
        return found

    async def _replicas(self, topics: Collection[str]) -> set[str]:
        """The topics that are still replicas."""
        if not topics:
            return set()
        resources = [DescribeConfigsResource(TOPIC_RESOURCE, topic, [KEY]) for topic in topics]
        response = await self._at_source.call_any(describe_configs.API, DescribeConfigsRequest(resources))
        found = set()
        for result in response.results:
            error = ErrorCode.of(result.error_code)
            if error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise ApiError(error, f"configuration of topic {result.resource_name} in the source")
            if any(entry.name == KEY and entry.value for entry in result.configs):
                found.add(result.resource_name)
        return found
