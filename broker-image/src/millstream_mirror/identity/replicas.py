"""Identity mode: keeps the target's topics replicas of the source's: partitions, configuration, and ownership.

A missing topic is created with the source's number of partitions, its configuration, and ``millstream.mirror.source``,
which makes it read-only and names the source's topic by its id. A topic without this setting, or with another source,
belongs to someone else or was promoted (promoted.py): the worker leaves it alone and reports it, unless it may rejoin
(resync.py). Each round compares partitions and configuration, so the target follows within seconds, and changes of
settings in the target are undone. Settings that concern only the target's brokers are not copied.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import (
    KEY,
    PROMOTED,
    REJOINED,
    MirrorSource,
    parse,
    requests_of,
    with_request,
)
from millstream_kafka.protocol import describe_configs, incremental_alter_configs
from millstream_kafka.protocol.create_topics import CreatableTopicConfig
from millstream_kafka.protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream_kafka.protocol.metadata import MetadataResponseTopic
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_owner import KEY as TOPIC_OWNER

from ..config.config import MirrorConfig, Source
from ..config.config_values import parsed
from ..kafka.topics import SET_ON_TOPIC, TOPIC_RESOURCE, MirroredTopic, TargetTopics
from .promoted import PromotedTopics
from .recovery import replaced
from .resync import Resync

CONFIG_S = 2.0
"""How often configurations are compared; a new topic is compared at once."""
SET, DELETE = 0, 1
OF_THE_BROKERS = frozenset(
    {
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        KEY,
        REJOINED,
        PROMOTED,
        TOPIC_OWNER,
    }
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Configuration:
    own: Mapping[str, str]
    """The settings of the topic itself."""
    types: Mapping[str, int]
    """The type of every key that its cluster knows."""


class ReplicaTopics(TargetTopics):
    """Keeps the replicas of one source. Raises BrokerError, ApiError."""

    def __init__(
        self,
        config: MirrorConfig,
        source: Source,
        at_source: ClusterClient,
        at_target: ClusterClient,
        promoted: PromotedTopics,
        resync: Resync | None = None,
    ) -> None:
        """``resync`` makes ordinary topics of the target replicas; without, they are left alone."""
        super().__init__(config, source, at_source, at_target)
        self._resync = resync
        self._promoted = promoted
        self._compared_at = -CONFIG_S
        self._checked: dict[str, MirrorSource] = {}
        """The source of each topic of the target, as of the last comparison."""
        self._resyncing: dict[str, MetadataResponseTopic] = {}
        self._left: set[str] = set()
        """Ordinary topics that were replicas under the present request: they are not resynced."""

    async def ensure(self, topics: Collection[MetadataResponseTopic]) -> list[MirroredTopic]:
        self.problems, self.replaced = {}, set()
        wanted = {self._config.target_topic(self._source, topic.name or ""): topic for topic in topics}
        for name, topic in list(wanted.items()):
            if topic.topic_id == ZERO_UUID:
                self._refuse(
                    name,
                    "the source gives its topics no ids (Kafka before 2.8): mirror it with mode Aggregate",
                )
                del wanted[name]
        present = await self._present(wanted)
        if missing := {name: topic for name, topic in wanted.items() if name not in present}:
            await self._create(missing)
            present = await self._present(wanted)
        ours = await self._ours({name: topic for name, topic in wanted.items() if name in present})
        if self._resync is not None:
            self._resync.want(self._resyncing)
            self.resyncing = {
                name: f"topic {name}: rejoins the source, and is not its replica yet"
                for name in sorted(self._resyncing.keys() - self._left)
            }
            self.problems |= self._resync.problems
            await self._resync.remember({name: self._target_ids[name] for name in ours})
        small = {
            name: len(topic.partitions)
            for name, topic in ours.items()
            if present[name] < len(topic.partitions)
        }
        if small:
            await self._grow(small)
            present = await self._present(wanted)
        for name, topic in ours.items():
            if present.get(name, 0) > len(topic.partitions):
                self._refuse(
                    name,
                    f"it has {present[name]} partitions in the target and {len(topic.partitions)} in the"
                    " source: the others stay empty",
                )
        return self._mirrored(ours, present)

    def _source_of(self, topic: MetadataResponseTopic) -> MirrorSource:
        return MirrorSource(self._at_source.cluster_id or "", topic.topic_id)

    async def _ours(self, present: Mapping[str, MetadataResponseTopic]) -> dict[str, MetadataResponseTopic]:
        """Those of these topics that are replicas of this source's; their configuration is brought to the source's."""
        now = time.monotonic()
        if now - self._compared_at >= CONFIG_S or not present.keys() <= self._checked.keys():
            there = await self._described(self._at_target, present)
            here = await self._described(self._at_source, [topic.name or "" for topic in present.values()])
            self._checked, self._left = {}, set()
            changes = {}
            noted: dict[str, dict[str, str | None]] = {}
            for name, topic in present.items():
                theirs = there.get(name)
                if theirs is None:
                    continue
                with contextlib.suppress(ValueError):
                    self._checked[name] = parse(theirs.own.get(KEY, ""))
                rejoined = requests_of(theirs.own.get(REJOINED))
                if name not in self._checked and self._config.rejoin in rejoined:
                    self._left.add(name)
                source = here.get(topic.name or "")
                if source is None or self._checked.get(name) != self._source_of(topic):
                    continue
                change = differences(source, theirs, self._follows)
                # If it is promoted under this request, it stays an ordinary topic.
                if (request := self._config.rejoin) and rejoined[:1] != (request,):
                    noted[name] = {REJOINED: with_request(theirs.own.get(REJOINED), request)}
                if change:
                    changes[name] = change
            for some in (noted, changes):  # separately: the target may refuse settings of the source
                if some:
                    await self._alter(some)
            self._compared_at = now
        ours = {}
        self._resyncing = {}
        ordinary = [name for name in present if name not in self._checked]
        promoted = await self._promoted.find({name: self._target_ids[name] for name in ordinary})
        for name, topic in present.items():
            source_of_it, wanted = self._checked.get(name), self._source_of(topic)
            if source_of_it == wanted:
                ours[name] = topic
            elif self._resync is not None and source_of_it in (None, wanted._replace(rejoins=True)):
                self._resyncing[name] = topic
            elif source_of_it == wanted._replace(rejoins=True):
                self._refuse(
                    name,
                    "has not finished rejoining the source, and is read-only: set spec.rejoin again to continue, or"
                    f" delete its setting {KEY} to write to it",
                )
            elif name in promoted:
                continue
            elif source_of_it is None:
                self._refuse(
                    name,
                    "exists in the target and is not a replica of the source's: it was promoted, or another client"
                    " created it. It is left alone: exclude it, delete it in the target to mirror the source's from its"
                    " start, or set spec.rejoin to have it follow the source from the last common offset",
                )
            elif source_of_it.cluster_id == self._at_source.cluster_id:
                self.replaced.add(topic.name or "")
                self._refuse(name, replaced(topic.name or "", name))
            else:
                self._refuse(
                    name,
                    f"is in the target the replica of a topic of another cluster ({source_of_it}), not of"
                    f" {self._source.name} ({self._source_of(topic)}): add it to spec.topics.exclude, or delete it in"
                    " the target",
                )
        return ours

    def _follows(self, key: str) -> bool:
        """Whether the mirror copies this setting from the source."""
        return key not in OF_THE_BROKERS and self._config.includes_config(key)

    def _refuse(self, name: str, what: str) -> None:
        self.problems[name] = f"topic {name}: {what}"

    async def _create(self, missing: Mapping[str, MetadataResponseTopic]) -> None:
        placed = await self._place(missing)
        missing = {name: topic for name, topic in missing.items() if name in placed}
        configs = await self._described(self._at_source, [topic.name or "" for topic in missing.values()])
        creations = []
        request = {REJOINED: self._config.rejoin} if self._config.rejoin else {}
        for name, topic in missing.items():
            if (config := configs.get(topic.name or "")) is None:
                continue
            own = {key: value for key, value in config.own.items() if self._follows(key)}
            settings = {**own, KEY: str(self._source_of(topic)), **request}
            wanted = [CreatableTopicConfig(key, value) for key, value in settings.items()]
            creations.append(placed[name].topic(name, len(topic.partitions), wanted))
        # If the target does not know a key, the next comparison sets the others.
        if refused := await self._call_create(creations):
            for creation in refused:
                creation.configs = [config for config in creation.configs if config.name in (KEY, REJOINED)]
            for creation in await self._call_create(refused):
                self._problem(
                    creation.name, "cannot be created: mode Identity needs a Millstream as the target"
                )

    async def _described(self, cluster: ClusterClient, topics: Collection[str]) -> dict[str, Configuration]:
        """The configurations of topics; topics that were deleted meanwhile are left out."""
        if not topics:
            return {}
        request = DescribeConfigsRequest(
            [DescribeConfigsResource(TOPIC_RESOURCE, name, None) for name in topics]
        )
        response = await cluster.call_any(describe_configs.API, request)
        found = {}
        for result in response.results:
            error = ErrorCode.of(result.error_code)
            if error is ErrorCode.NONE:
                found[result.resource_name] = Configuration(
                    {
                        entry.name: entry.value
                        for entry in result.configs
                        if _is_own(entry) and entry.value is not None
                    },
                    {entry.name: entry.config_type for entry in result.configs},
                )
            elif error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise ApiError(error, f"configuration of topic {result.resource_name}")
        return found

    async def _alter(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        request = IncrementalAlterConfigsRequest(
            [
                AlterConfigsResource(
                    TOPIC_RESOURCE,
                    name,
                    [
                        AlterableConfig(key, DELETE if value is None else SET, value)
                        for key, value in change.items()
                    ],
                )
                for name, change in changes.items()
            ]
        )
        response = await self._at_target.call_any(incremental_alter_configs.API, request)
        for result in response.responses:
            name = result.resource_name
            if result.error_code:
                error = ErrorCode.of(result.error_code)
                self._refuse(
                    name, f"the source's configuration is refused: {result.error_message or error.message}"
                )
            else:
                shown = ", ".join(
                    f"{key} deleted" if value is None else f"{key}={value}"
                    for key, value in changes[name].items()
                )
                logger.info("topic %s: configured as in the source: %s", name, shown)


def differences(
    source: Configuration, target: Configuration, follows: Callable[[str], bool]
) -> dict[str, str | None]:
    """Changes that bring the target's settings to the source's; None deletes a setting.

    Only settings that follow the source and that the target knows."""
    wanted = {key: value for key, value in source.own.items() if key in target.types and follows(key)}
    there = {key: value for key, value in target.own.items() if follows(key)}
    changes: dict[str, str | None] = {key: None for key in there if key not in wanted}
    for key, value in wanted.items():
        kind = target.types[key]
        if key not in there or parsed(value, kind) != parsed(there[key], kind):
            changes[key] = value
    return changes


def _is_own(entry: DescribeConfigsResourceResult) -> bool:
    return entry.config_source == SET_ON_TOPIC and not entry.is_sensitive
