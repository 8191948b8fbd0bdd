"""Creates the source's topics in the target: partitions, replication, configuration; and adds partitions later.

A topic is created with the source's number of partitions, its replication factor as far as the target has brokers
(`replication`), and its own configuration (defaults are the target's), without keys that would change records, that
concern only the target, or that the mirror's configuration excludes. Later, only partitions are added: changes of
settings in the target stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.mirror_source import KEY, PROMOTED, REJOINED
from millstream_kafka.protocol import create_partitions, create_topics, describe_configs
from millstream_kafka.protocol.create_partitions import CreatePartitionsRequest
from millstream_kafka.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream_kafka.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.metadata import MetadataResponse, MetadataResponseTopic
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_owner import KEY as TOPIC_OWNER
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import MirrorConfig, Source
from ..config.document import Naming
from .placement import Placement, Placements

TOPIC_RESOURCE = 2
SET_ON_TOPIC = 1
CLEANUP_POLICY = "cleanup.policy"
CREATE_TIMEOUT_MS = 15_000
ANSWER_TIMEOUT_S = CREATE_TIMEOUT_MS / 1000 + 5
"""The target may need all the time that a request allows."""
PARTITIONS_AT_ONCE = 500
"""Partitions per request, so that the target responds in time, and serves others in between.

A topic with more partitions gets a request of its own."""
NOT_COPIED = frozenset(
    {
        "message.timestamp.type",  # records keep their timestamps
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "compression.type",  # batches stay unchanged
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        KEY,  # the source's topic may be a replica, or have been one
        REJOINED,
        PROMOTED,
        TOPIC_OWNER,  # a Topic of the target may name the copy
    }
)

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic to mirror; ``partitions``: the number that both sides have."""

    topic: str
    target_topic: str
    topic_id: str
    partitions: int
    target_id: str = ""
    """Id of the target's topic: tasks start again when it changes."""


def select(config: MirrorConfig, source: Source, cluster: MetadataResponse) -> list[MetadataResponseTopic]:
    """The source's topics to mirror."""
    prefixes = tuple(f"{other.name}." for other in config.sources) if config.naming is Naming.PREFIXED else ()
    return [
        topic
        for topic in cluster.topics
        if topic.name is not None
        and not topic.error_code
        and not topic.is_internal
        and config.includes(topic.name)
        # A topic with such a prefix is already a mirrored one, if source and target are one cluster or lead to one.
        and not topic.name.startswith(prefixes or ("\0",))
    ]


async def configs_of(cluster: ClusterClient, topic: str, node: int | None = None) -> dict[str, str]:
    """The effective settings of a topic, from this broker or any. Raises BrokerError, ApiError."""
    request = DescribeConfigsRequest([DescribeConfigsResource(TOPIC_RESOURCE, topic, None)])
    if node is None:
        response = await cluster.call_any(describe_configs.API, request)
    else:
        response = await cluster.call_node(node, describe_configs.API, request)
    (result,) = response.results
    if result.error_code:
        raise ApiError(ErrorCode.of(result.error_code), f"configuration of topic {topic}")
    return {entry.name: entry.value or "" for entry in result.configs}


async def compacted(cluster: ClusterClient, topics: Collection[str]) -> set[str]:
    """Those that are compacted, as far as the cluster reports. Raises BrokerError."""
    if not topics:
        return set()
    resources = [DescribeConfigsResource(TOPIC_RESOURCE, topic, [CLEANUP_POLICY]) for topic in topics]
    response = await cluster.call_any(describe_configs.API, DescribeConfigsRequest(resources))
    deleted = {
        result.resource_name
        for result in response.results
        for entry in result.configs
        if entry.name == CLEANUP_POLICY and "compact" not in (entry.value or "")
    }
    return {*topics} - deleted


async def leaders_of(
    cluster: ClusterClient, topics: Collection[str]
) -> tuple[dict[str, str], dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The ids of topics, and each partition's leader, if any, and leader epoch. Raises BrokerError."""
    if not topics:
        return {}, {}, {}
    found = [topic for topic in (await cluster.metadata(topics)).topics if not topic.error_code]
    ids = {topic.name or "": id_of(topic) for topic in found}
    leaders = {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in found
        for partition in topic.partitions
        if partition.leader_id >= 0
    }
    epochs = {
        (topic.name or "", partition.partition_index): partition.leader_epoch
        for topic in found
        for partition in topic.partitions
    }
    return ids, leaders, epochs


class Leading(NamedTuple):
    leaders: dict[TopicPartition, int]
    absent: set[TopicPartition]
    """Partitions that do not exist."""
    problem: str
    """Why others have no leader."""


async def leading(cluster: ClusterClient, partitions: Set[TopicPartition]) -> Leading:
    """The leaders of partitions, as far as there are any now: unlike ``cluster.leader``, waits for no election."""
    known = cluster.known_leaders(partitions)
    if not (unknown := partitions - known.keys()):
        return Leading(known, set(), "")
    try:
        found = {
            topic.name: topic for topic in (await cluster.metadata({name for name, _ in unknown})).topics
        }
    except (BrokerError, ApiError, OSError) as error:
        return Leading(known, set(), str(error))
    absent = {(name, number) for name, number in unknown if name in found and _lacks(found[name], number)}
    return Leading(cluster.known_leaders(partitions), absent, "no leader in the target")


def _lacks(topic: MetadataResponseTopic, number: int) -> bool:
    if topic.error_code:
        return topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return all(found.partition_index != number for found in topic.partitions)


def id_of(topic: MetadataResponseTopic) -> str:
    """Empty if the cluster gives its topics no ids, as Kafka did before 2.8."""
    return "" if topic.topic_id == ZERO_UUID else str(topic.topic_id)


def is_same(topic_id: str, other: str) -> bool:
    """Whether two ids of topics or clusters are equal. Older clusters have none; an empty id equals any."""
    return topic_id == other or not topic_id or not other


class TargetTopics:
    """Keeps the target's topics in line with the source's. Raises BrokerError."""

    def __init__(
        self, config: MirrorConfig, source: Source, at_source: ClusterClient, at_target: ClusterClient
    ):
        self._config = config
        self._source = source
        self._at_source = at_source
        self._at_target = at_target
        self.problems: dict[str, str] = {}
        """The reason why a topic could not be created, by name."""
        self.replaced: set[str] = set()
        """Topics that wait because they were deleted and created again in the source."""
        self.resyncing: dict[str, str] = {}
        """Messages about topics that are to become replicas, and are not yet."""
        self._placements = Placements(at_target)
        self._waiting: set[str] = set()
        """Topics that wait for brokers of the target."""
        self._target_ids: dict[str, str] = {}
        """Ids of the target's topics, as last looked up."""
        self._there: dict[str, MetadataResponseTopic] = {}
        """The target's topics, as last looked up."""
        self._later: dict[str, str] = {}
        """Which replicas follow later, by topic."""

    async def ensure(self, topics: Collection[MetadataResponseTopic]) -> list[MirroredTopic]:
        """Create and grow topics as needed; returns those that can be mirrored now."""
        self.problems = {}
        wanted = {self._config.target_topic(self._source, topic.name or ""): topic for topic in topics}
        present = await self._present(wanted)
        missing = {name: topic for name, topic in wanted.items() if name not in present}
        small = {
            name: len(topic.partitions)
            for name, topic in wanted.items()
            if name in present and present[name] < len(topic.partitions)
        }
        if missing:
            await self._create(missing)
        if small:
            await self._grow(small)
        if missing or small:
            present = await self._present(wanted)
        return self._mirrored(wanted, present)

    def _mirrored(
        self, topics: Mapping[str, MetadataResponseTopic], present: Mapping[str, int]
    ) -> list[MirroredTopic]:
        """Those topics of the source, by their names in the target, that are present there."""
        return [
            MirroredTopic(
                topic.name or "",
                name,
                id_of(topic),
                min(present[name], len(topic.partitions)),
                self._target_ids[name],
            )
            for name, topic in sorted(topics.items())
            if name in present
        ]

    async def _present(self, names: Collection[str]) -> dict[str, int]:
        """The topics of the target, of those with these names, and their numbers of partitions."""
        if not names:
            return {}
        cluster = await self._at_target.metadata(names)
        topics = [topic for topic in cluster.topics if not topic.error_code]
        self._target_ids = {topic.name or "": id_of(topic) for topic in topics}
        self._there = {topic.name or "": topic for topic in topics}
        return {topic.name or "": len(topic.partitions) for topic in topics}

    async def _place(self, missing: Mapping[str, MetadataResponseTopic]) -> dict[str, Placement]:
        """Where missing topics get their replicas, without those that wait for brokers of the target."""
        granted, waiting = await self._placements.of(
            {name: factor_of(topic) for name, topic in missing.items()}
        )
        for name, why in waiting.items():
            self.problems[name] = f"topic {name}: is not created yet: {why}"
            if name not in self._waiting:
                logger.warning("%s", self.problems[name])
        self._waiting = {*waiting}
        self._later = {name: placement.later for name, placement in granted.items()}
        return granted

    async def _create(self, missing: Mapping[str, MetadataResponseTopic]) -> None:
        placed = await self._place(missing)
        missing = {name: topic for name, topic in missing.items() if name in placed}
        if not missing:
            return
        configs = await self._configs([topic.name or "" for topic in missing.values()])
        creations = [
            placed[name].topic(
                name,
                len(topic.partitions),
                [
                    CreatableTopicConfig(key, value)
                    for key, value in configs.get(topic.name or "", {}).items()
                ],
            )
            for name, topic in missing.items()
        ]
        if refused := await self._call_create(creations):
            for creation in refused:  # the target does not know a key or value: the topic matters more
                creation.configs = []
            await self._call_create(refused)

    async def _call_create(self, topics: list[CreatableTopic]) -> list[CreatableTopic]:
        """Create topics; return those whose configuration was refused."""
        refused: list[CreatableTopic] = []
        for some in in_parts(topics, _partitions, PARTITIONS_AT_ONCE):
            refused += await self._call_create_some(some)
        return refused

    async def _call_create_some(self, topics: list[CreatableTopic]) -> list[CreatableTopic]:
        request = CreateTopicsRequest(topics, CREATE_TIMEOUT_MS)
        response = await self._at_target.call_controller(create_topics.API, request, timeout=ANSWER_TIMEOUT_S)
        by_name = {topic.name: topic for topic in topics}
        refused = []
        for result in response.topics:
            error = ErrorCode.of(result.error_code)
            if error is ErrorCode.NONE:
                count, later = _partitions(by_name[result.name]), self._later.get(result.name, "")
                logger.info("topic %s: created with %d partitions%s", result.name, count, later)
            elif error is ErrorCode.INVALID_CONFIG and by_name[result.name].configs:
                logger.warning(
                    "topic %s: created with the target's defaults: %s", result.name, result.error_message
                )
                refused.append(by_name[result.name])
            elif error not in (
                ErrorCode.TOPIC_ALREADY_EXISTS,
                ErrorCode.REQUEST_TIMED_OUT,
            ):  # or soon will
                self._problem(result.name, f"cannot be created: {result.error_message or error.message}")
        return refused

    async def _grow(self, counts: Mapping[str, int]) -> None:
        placed, _ = await self._placements.of({name: factor_of(self._there[name]) for name in counts})
        self._later = {name: placement.later for name, placement in placed.items()}
        for some in in_parts(counts.items(), lambda count: count[1], PARTITIONS_AT_ONCE):
            await self._grow_some({name: count for name, count in some if name in placed}, placed)

    async def _grow_some(self, counts: Mapping[str, int], placed: Mapping[str, Placement]) -> None:
        request = CreatePartitionsRequest(
            [
                placed[name].more_partitions(name, len(self._there[name].partitions), count)
                for name, count in counts.items()
            ],
            CREATE_TIMEOUT_MS,
        )
        response = await self._at_target.call_controller(
            create_partitions.API, request, timeout=ANSWER_TIMEOUT_S
        )
        for result in response.results:
            error = ErrorCode.of(result.error_code)
            if error is ErrorCode.NONE:
                count, later = counts[result.name], self._later.get(result.name, "")
                logger.info("topic %s: now has %d partitions%s", result.name, count, later)
            elif error not in (ErrorCode.INVALID_PARTITIONS, ErrorCode.REQUEST_TIMED_OUT):  # or soon will
                self._problem(
                    result.name, f"cannot get more partitions: {result.error_message or error.message}"
                )

    async def _configs(self, topics: Collection[str]) -> dict[str, dict[str, str | None]]:
        """The configuration set on each of the source's topics."""
        request = DescribeConfigsRequest(
            [DescribeConfigsResource(TOPIC_RESOURCE, name, None) for name in topics]
        )
        response = await self._at_source.call_any(describe_configs.API, request)
        found = {}
        for result in response.results:
            if result.error_code:
                raise ApiError(
                    ErrorCode.of(result.error_code), f"configuration of topic {result.resource_name}"
                )
            found[result.resource_name] = {
                entry.name: entry.value
                for entry in result.configs
                if entry.config_source == SET_ON_TOPIC
                and entry.name not in NOT_COPIED
                and self._config.includes_config(entry.name)
                and not entry.is_sensitive
            }
        return found

    def _problem(self, name: str, what: str) -> None:
        self.problems[name] = f"topic {name}: {what}"
        logger.error("topic %s: %s", name, what)


def factor_of(topic: MetadataResponseTopic) -> int:
    """Its replication factor."""
    return max((len(partition.replica_nodes) for partition in topic.partitions), default=1)


def _partitions(topic: CreatableTopic) -> int:
    return max(topic.num_partitions, len(topic.assignments))


def in_parts(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in order, in parts of at most ``most`` together; a larger item is a part of its own."""
    part: list[T] = []
    total = 0
    for item in items:
        if part and total + size(item) > most:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
