"""Administration of topics: create, delete, add partitions, with Kafka's rules and errors.

Everything is validated before anything changes. A change is written to coordination first and is done when this
broker has followed it (`Replicas.caught_up`), so a client can produce at once after the response.

A request may name thousands of topics. They are planned in a thread, passed to coordination together, which writes
them together if possible, and applied once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..config.config import BrokerConfig
from ..controller.placement import place
from ..controller.reassignment import check_assignment
from ..coordination import Conflict, PartitionRecord, TopicRecord
from ..coordination.coordination import Coordination
from ..metadata.cache import Metadata, check_topic_name, plain_name
from ..metadata.effective_configs import EffectiveConfigs
from ..replication.replicas import Replicas
from ..runtime.slices import yield_to_others
from ..topic_rules.internal_topics import (
    INTERNAL_CONFIG,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    is_internal,
    offsets_topic_config,
    transactions_topic_config,
)

MAX_PARTITIONS = 100_000
"""Our own limit on the partitions of one request, so that a mistake cannot fill the disk with folders."""
AT_ONCE = 100
"""Partitions planned in one turn of the loop: more are planned in a thread."""
BEGUN_AT_ONCE = 20
"""Changes of topics started in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's defaults."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


class TopicAdministrator:
    """Administers topics for the clients of one broker."""

    def __init__(
        self, config: BrokerConfig, configs: EffectiveConfigs, replicas: Replicas, coordination: Coordination
    ) -> None:
        self._config = config
        self._configs = configs
        self._replicas = replicas
        self._coordination = coordination

    async def create_topics(
        self,
        new: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        count: Callable[[int], None] | None = None,
    ) -> list[TopicRecord | ApiError]:
        """The created topics, or the errors of those not created.

        `count` gets the number of partitions of each possible topic, and may raise ApiError to refuse it.
        """
        is_configured = any(requested.config for requested in new)
        async with self._configs.changing if is_configured and not validate_only else nullcontext():
            if sum(max(requested.partitions, len(requested.assignment), 1) for requested in new) > AT_ONCE:
                planned = await asyncio.to_thread(self._plan_topics, new)
            else:
                planned = self._plan_topics(new)
            if count is not None:
                planned = [_counted(topic, count) for topic in planned]
            if validate_only:
                return planned
            topics = [topic for topic in planned if isinstance(topic, TopicRecord)]
            failed = await _each((topic.name, self._coordination.topics.create(topic)) for topic in topics)
            failed = await self._followed([topic.name for topic in topics], failed)
        for name, error in failed.items():
            if isinstance(error, Conflict):
                failed[name] = ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        return [topic if isinstance(topic, ApiError) else failed.get(topic.name, topic) for topic in planned]

    async def _followed(self, names: Iterable[str], failed: dict[str, ApiError]) -> dict[str, ApiError]:
        """Wait until this broker has applied the writes; returns the errors, including those of late topics."""
        try:
            await self._replicas.caught_up()
        except ApiError as late:
            return dict.fromkeys(names, late) | failed
        return failed

    async def create_topic(self, new: NewTopic) -> TopicRecord:
        """Raises ApiError."""
        (created,) = await self.create_topics([new])
        if isinstance(created, ApiError):
            raise created
        return created

    async def ensure_topic(self, new: NewTopic) -> TopicRecord:
        """The topic, created unless it exists; raises ApiError."""
        while (topic := self._replicas.metadata.topics.get(new.name)) is None:
            try:
                return await self.create_topic(new)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                await self._replicas.caught_up()
        return topic

    async def delete_topics(self, names: Mapping[str, uuid.UUID | None]) -> dict[str, ApiError]:
        """Delete topics, only those of the given ids; returns the errors of those that could not be deleted."""
        if not self._config.flag("delete.topic.enable"):
            return dict.fromkeys(names, ApiError(ErrorCode.TOPIC_DELETION_DISABLED))
        failed = await _each(
            (name, self._coordination.topics.delete(name, topic_id)) for name, topic_id in names.items()
        )
        failed = await self._followed(names, failed)
        return _unknown_where_in_conflict(failed)

    def plan_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> tuple[PartitionRecord, ...]:
        """The partitions to add for a total of `count`; raises ApiError."""
        topic = self._replicas.metadata.topic(name)
        present = len(topic.partitions)
        if count == present:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
        if count < present:
            message = (
                f"The topic {name} currently has {present} partition(s); {count} would not be an increase."
            )
            raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
        check_partition_count(count - present)
        if is_internal(name):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The partitions of {name} cannot be changed: keys are bound to them.",
            )
        if assignments is None:
            factor = len(topic.partitions[0].replicas)
            replicas: Sequence[Sequence[int]] = place(
                self._replicas.metadata.brokers, count - present, factor
            )
        elif len(assignments) != count - present:
            message = (
                f"Attempted to add {count - present} additional partition(s), but only {len(assignments)} "
                "assignment(s) were specified."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        else:
            replicas = assignments
        return self._partitions(replicas)

    async def add_partitions(self, added: Mapping[str, tuple[PartitionRecord, ...]]) -> dict[str, ApiError]:
        """Add partitions; returns the errors of topics that got none."""
        coordination = self._coordination
        failed = await _each(
            (name, coordination.topics.add_partitions(name, new)) for name, new in added.items()
        )
        failed = await self._followed(added, failed)
        return _unknown_where_in_conflict(failed)

    def _plan_topics(self, new: Sequence[NewTopic]) -> list[TopicRecord | ApiError]:
        metadata, names = self._replicas.metadata, dict[str, str]()
        planned: list[TopicRecord | ApiError] = []
        for requested in new:
            try:
                topic = self._plan_topic(requested, metadata)
                if (other := names.setdefault(plain_name(requested.name), requested.name)) != requested.name:
                    raise _collides(requested.name, other)
                planned.append(topic)
            except ApiError as error:
                planned.append(error)
        return planned

    def _plan_topic(self, new: NewTopic, metadata: Metadata) -> TopicRecord:
        """The topic to create; raises ApiError. In any thread."""
        if new.name in metadata.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        check_topic_name(new.name)
        if (other := metadata.collision(new.name)) is not None:
            raise _collides(new.name, other)
        if is_internal(new.name):
            new = self._internal(new, metadata)
        self._configs.check_topic(new.name, new.config)
        if new.assignment:
            if new.partitions != -1 or new.replication_factor != -1:
                what = "numPartitions" if new.partitions != -1 else "replication factor"
                message = f"A manual partition assignment was specified, but {what} was not set to -1."
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
            if sorted(new.assignment) != list(range(len(new.assignment))):
                message = "partitions should be a consecutive 0-based integer sequence"
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            replicas = [list(new.assignment[index]) for index in range(len(new.assignment))]
        else:
            count = new.partitions if new.partitions != -1 else self._config.integer("num.partitions")
            check_partition_count(count)
            factor = new.replication_factor
            if factor == -1:
                factor = self._config.integer("default.replication.factor")
            if factor <= 0:
                raise ApiError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    "Replication factor must be larger than 0, or -1 to use the default value.",
                )
            replicas = place(metadata.brokers, count, factor)
        return TopicRecord(new.name, uuid.uuid4(), self._partitions(replicas), dict(new.config))

    def _internal(self, new: NewTopic, metadata: Metadata) -> NewTopic:
        """For any client, an internal topic gets its coordinator's settings, except those in the request."""
        config, brokers = self._config, len(metadata.brokers)
        if new.name == OFFSETS_TOPIC:
            keys = "offsets.topic"
            defaults = offsets_topic_config(config.integer("offsets.topic.segment.bytes"))
        elif new.name == TRANSACTIONS_TOPIC:
            keys = "transaction.state.log"
            factor = min(config.integer(f"{keys}.replication.factor"), brokers)
            defaults = transactions_topic_config(
                config.integer(f"{keys}.segment.bytes"),
                min_isr=min(config.integer(f"{keys}.min.isr"), factor),
            )
        else:
            return replace(new, config={**INTERNAL_CONFIG, **new.config})
        new = replace(new, config={**defaults, **new.config})
        if new.assignment:
            return new
        partitions, factor = new.partitions, new.replication_factor
        if partitions == -1:
            partitions = config.integer(f"{keys}.num.partitions")
        if factor == -1:
            factor = min(config.integer(f"{keys}.replication.factor"), brokers)
        return replace(new, partitions=partitions, replication_factor=factor)

    def _partitions(self, replicas: Sequence[Sequence[int]]) -> tuple[PartitionRecord, ...]:
        """The records of new partitions, led by their first replicas that run.

        A replica may be on a broker that is down if that has replicas of other partitions: it follows when it is back.
        Raises ApiError for an impossible assignment.
        """
        metadata = self._replicas.metadata
        known: Collection[int] = metadata.brokers
        if any(broker not in known for of_partition in replicas for broker in of_partition):
            known = metadata.known_brokers()
        planned = []
        for index, of_partition in enumerate(replicas):
            check_assignment(of_partition, known)
            if len(of_partition) != len(replicas[0]):
                problem = (
                    "The manual partition assignment includes partitions with different replication factors."
                )
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
            if not (live := tuple(broker for broker in of_partition if broker in metadata.brokers)):
                problem = f"All brokers specified in the manual partition assignment for partition {index} are down."
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
            planned.append(PartitionRecord(tuple(of_partition), live[0], 0, live))
        return tuple(planned)


def _counted(topic: TopicRecord | ApiError, count: Callable[[int], None]) -> TopicRecord | ApiError:
    if isinstance(topic, ApiError):
        return topic
    try:
        count(len(topic.partitions))
    except ApiError as error:
        return error
    return topic


def _collides(name: str, other: str) -> ApiError:
    message = f"Topic '{name}' collides with existing topic: {other}"
    return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def check_partition_count(count: int) -> None:
    if count <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if count > MAX_PARTITIONS:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions was set to {count}: one request may create at most {MAX_PARTITIONS}.",
        )


async def _each(changes: Iterable[tuple[str, Coroutine[Any, Any, None]]]) -> dict[str, ApiError]:
    """Make changes concurrently, and return the errors; they begin in slices, because others need the loop, too."""
    begun: dict[str, asyncio.Task[None]] = {}
    for number, (name, change) in enumerate(changes, 1):
        begun[name] = asyncio.create_task(change)
        if number % BEGUN_AT_ONCE == 0:
            await yield_to_others()
    if begun:
        await asyncio.wait(begun.values())
    failed = {}
    for name, task in begun.items():
        try:
            task.result()
        except ApiError as error:
            failed[name] = error
    return failed


def _unknown_where_in_conflict(failed: dict[str, ApiError]) -> dict[str, ApiError]:
    unknown = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return {name: unknown if isinstance(error, Conflict) else error for name, error in failed.items()}
