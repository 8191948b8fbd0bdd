"""Brokers' writes to the tree: for themselves and for administrators.

Each function is one attempt. It begins by reading, so it may be repeated after a lost response. It raises `Unavailable`
if it must be repeated: the store is down, or something has changed between reading and writing.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import BrokerRecord, Conflict, CoordinationError, PartitionRecord, TopicRecord, topic_nodes, tree
from .stores import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Store,
    Unavailable,
    Watch,
)

SECRET_BYTES = 32

log = logging.getLogger(__name__)


async def agree_on_cluster_id(
    nodes: Store, wanted: str | None, check: Callable[[str | None], None] = lambda stored: None
) -> str:
    """The cluster's id; a new cluster takes the first broker's id, if it had one.

    `check` gets the stored id, None in an empty tree, and may raise CoordinationError: then nothing is written.
    """
    node = await nodes.get(tree.CLUSTER_ID)
    check(None if node is None else tree.cluster_id_from(node.data))
    await nodes.ensure("/", "/cluster", *tree.ALWAYS)
    made = tree.cluster_id_json(wanted or uuid_text(uuid.uuid4()))
    return tree.cluster_id_from(await _first(nodes, tree.CLUSTER_ID, made))


async def agree_on_secret(nodes: Store) -> bytes:
    """The secret by which the cluster's brokers recognise each other; the first broker creates it."""
    made = tree.cluster_secret_json(os.urandom(SECRET_BYTES))
    return tree.cluster_secret_from(await _first(nodes, tree.CLUSTER_SECRET, made))


async def _first(nodes: Store, path: str, made: bytes) -> bytes:
    """The node's data; ``made`` if this broker is the first. Raises Unavailable if another broker is just ahead."""
    if (node := await nodes.get(path)) is not None:
        return node.data
    try:
        await nodes.create(path, made)
    except NodeExistsError:
        raise Unavailable("another broker is creating the cluster") from None
    return made


async def within_limit(nodes: Store, topic: TopicRecord) -> bytes:
    """The topic's node; raises ApiError if it is too large for the store."""
    data = await topic_nodes.encoded(topic)
    if len(data) > nodes.max_node_bytes:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The {len(topic.partitions)} partitions of {topic.name} take {len(data)} bytes in coordination:"
            f" {nodes.max_node_bytes} are allowed.",
        )
    return data


async def create_topic(nodes: Store, topic: TopicRecord) -> None:
    """Raises Conflict. Waits for a topic of that name that is being deleted."""
    path, data = tree.topic_path(topic.name), await within_limit(nodes, topic)
    if (node := await nodes.get(path)) is not None:
        if tree.topic_id_from(topic.name, node.data) == topic.topic_id:
            return  # written, and the response was lost
        is_deleting = await nodes.get(tree.delete_topic_path(topic.name)) is not None
        if is_deleting or await nodes.get(path) is None:  # both nodes may have gone since the first was read
            raise Unavailable(f"the topic {topic.name} with the same name is still being deleted")
        raise Conflict(f"there is a topic {topic.name}")
    config_path, config = tree.config_path(tree.topic_entity(topic.name)), tree.config_json(topic.config)
    old = await nodes.get(config_path)
    configure = Create(config_path, config) if old is None else Set(config_path, config, old.version)
    try:
        await nodes.multi([configure, Create(path, data)])
    except MultiError:
        raise Unavailable(f"the topic {topic.name} is being changed") from None


async def add_partitions(nodes: Store, known: TopicRecord, partitions: tuple[PartitionRecord, ...]) -> None:
    """Add partitions to a topic; raises Conflict if it is not as expected."""
    name, count = known.name, len(known.partitions)
    node = await nodes.get(tree.topic_path(name))
    if node is None:
        raise Conflict(f"there is no topic {name}")
    stored = await topic_nodes.decoded(name, node.data)
    if stored.topic_id != known.topic_id:
        raise Conflict(f"the topic {name} is another one now")
    added = [partition.replicas for partition in stored.partitions[count:]]
    if added == [partition.replicas for partition in partitions]:
        return  # written, and the response was lost
    if added:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"{name} is given partitions by somebody else")
    grown = replace(stored, partitions=stored.partitions + partitions)
    try:
        await nodes.set(tree.topic_path(name), await within_limit(nodes, grown), node.version)
    except (BadVersionError, NoNodeError):
        raise Unavailable(f"the topic {name} is being changed") from None


async def id_of_topic(nodes: Store, name: str) -> uuid.UUID:
    """Raises Conflict if there is none."""
    node = await nodes.get(tree.topic_path(name))
    if node is None:
        raise Conflict(f"there is no topic {name}")
    return tree.topic_id_from(name, node.data)


async def request_deletion(nodes: Store, name: str, topic_id: uuid.UUID) -> None:
    """Raises Conflict if the topic of that name is another one. The request names this id: no other is deleted."""
    if await id_of_topic(nodes, name) != topic_id:
        raise Conflict(f"the topic {name} is another one now")
    path, data = tree.delete_topic_path(name), tree.deletion_json(topic_id)
    node = await nodes.get(path)
    try:
        if node is None:
            await nodes.create(path, data)
        elif node.data != data:  # for an earlier topic of that name, or from a program that names no id
            await nodes.set(path, data, node.version)
        else:
            log.info("%s is already being deleted", name)
    except (BadVersionError, NodeExistsError, NoNodeError):
        raise Unavailable(f"the topic {name} is being changed") from None


async def register(
    nodes: Store, broker: BrokerRecord, watch: Watch, *, takes_over: bool, anew: bool
) -> BrokerRecord:
    """The broker under a new epoch, or under that of this session unless `anew`. CoordinationError: the id is taken.

    `takes_over`: a registration with our directory is that of an earlier process of ours, which is dead. `watch` is
    called when the registration changes.
    """
    path = tree.broker_path(broker.broker_id)
    node = await nodes.get(path, watch)
    take: list[Operation] = []
    if node is not None:
        other = tree.broker_from(broker.broker_id, node.data, node.created)
        if node.owner == nodes.session_id and not anew:
            # The controller may have noted there that it has handled our being unclean, or ahead.
            return replace(broker, epoch=node.created, unclean=other.unclean, ahead=other.ahead)
        if not takes_over or other.directory is None or other.directory != broker.directory:
            where = ",".join(map(str, other.listeners))
            raise CoordinationError(
                f"broker.id={broker.broker_id} is taken: the broker at {where} has registered it at"
                f" {nodes}{path}: stop that one, or give this one another broker.id"
            )
        take = [Delete(path, node.version)]
        if node.owner != nodes.session_id:  # a dead session: /controller goes with it
            controller = await nodes.get(tree.CONTROLLER)
            if controller is not None and controller.owner == node.owner:
                take.append(Delete(tree.CONTROLLER, controller.version))
    try:
        create = Create(path, tree.broker_json(broker), ephemeral=True)
        await nodes.multi([*take, create, Set(tree.BROKERS, b"")])
    except MultiError as error:
        if not isinstance(error.error, NodeExistsError | BadVersionError | NoNodeError):
            raise error.error from None
        raise Unavailable(f"the registration of broker.id={broker.broker_id} changes") from None
    registered = await nodes.get(path, watch)
    if registered is None or registered.owner != nodes.session_id:
        raise Unavailable(f"the registration of broker.id={broker.broker_id} was lost")
    log.info("registered broker.id=%d with epoch %d", broker.broker_id, registered.created)
    return replace(broker, epoch=registered.created)


async def stand_for_election(nodes: Store, broker_id: int) -> tuple[int, int] | None:
    """The epoch of the controller that this broker now is, and the version of /controller_epoch; None if it lost."""
    if (node := await nodes.get(tree.CONTROLLER_EPOCH)) is None:
        try:
            node = await nodes.create(tree.CONTROLLER_EPOCH, b"0")
        except NodeExistsError:
            return None
    epoch = tree.controller_epoch_from(node.data) + 1
    office = Create(tree.CONTROLLER, tree.controller_json(broker_id), ephemeral=True)
    try:
        await nodes.multi([office, Set(tree.CONTROLLER_EPOCH, str(epoch).encode(), node.version)])
    except MultiError as error:
        if not isinstance(error.error, NodeExistsError | BadVersionError):
            raise error.error from None
        return None
    return epoch, node.version + 1


async def end_registration(nodes: Store, broker: BrokerRecord) -> None:
    """Do what the end of a broker's session would do to this incarnation: remove its registration and /controller.

    Nothing happens to the same broker's next incarnation: each registration raises the version of /brokers/ids, and
    each controller that of /controller_epoch.
    """
    registrations = await nodes.get(tree.BROKERS)
    elections = await nodes.get(tree.CONTROLLER_EPOCH)
    controller = await nodes.get(tree.CONTROLLER)
    path = tree.broker_path(broker.broker_id)
    node = await nodes.get(path)
    if node is None or registrations is None or node.created != broker.epoch:
        return
    operations: list[Operation] = [Check(tree.BROKERS, registrations.version), Delete(path, node.version)]
    if controller is not None and elections is not None and controller.owner == node.owner:
        operations += [
            Check(tree.CONTROLLER_EPOCH, elections.version),
            Delete(tree.CONTROLLER, controller.version),
        ]
    try:
        await nodes.multi(operations)
    except MultiError as error:
        raise Unavailable(f"the registration of broker.id={broker.broker_id} changes: {error}") from None
    log.info("removed the registration of broker.id=%d with epoch %d", broker.broker_id, broker.epoch)


async def read_versions(
    nodes: Store, partitions: Collection[tuple[str, uuid.UUID, int]]
) -> dict[tuple[uuid.UUID, int], tuple[int, int]]:
    """Leader epoch and version of the states of these partitions; none of those whose topic has another id now."""
    names = list({name for name, _, _ in partitions})
    topics = zip(names, await nodes.get_all(map(tree.topic_path, names)), strict=True)
    ids = {name: tree.topic_id_from(name, node.data) for name, node in topics if node is not None}
    requested = [partition for partition in partitions if ids.get(partition[0]) == partition[1]]
    states = await nodes.get_all(tree.state_path(name, index) for name, _, index in requested)
    return {
        (topic_id, index): (tree.leader_epoch_from(tree.state_path(name, index), node.data), node.version)
        for (name, topic_id, index), node in zip(requested, states, strict=True)
        if node is not None
    }


async def read_generations(nodes: Store, broker_id: int) -> dict[str, int]:
    path = tree.generations_path(broker_id)
    node = await nodes.get(path)
    return {} if node is None else tree.generations_from(path, node.data)


async def show_generations(nodes: Store, broker_id: int, generations: Mapping[str, int]) -> None:
    """Raises Conflict."""
    path = tree.generations_path(broker_id)
    node = await nodes.get(path)
    stored = {} if node is None else tree.generations_from(path, node.data)
    for directory, generation in generations.items():
        if stored.get(directory, 0) > generation:
            raise Conflict(
                f"a log directory of broker.id={broker_id} ({directory}) is used by another process, too, which has a"
                f" copy of it: generation {generation}, coordination has {stored[directory]}. Stop one of the two."
            )
    data = tree.generations_json({**stored, **generations})
    try:
        if node is None:
            await nodes.create(path, data)
        else:
            await nodes.set(path, data, node.version)
    except (BadVersionError, NodeExistsError, NoNodeError):
        raise Unavailable(f"{path} is being changed") from None
