"""The configuration of topics, brokers, users, clients and addresses in the tree, and the notes that announce changes.

To change an entity, a broker writes its node and leaves a note under /config/changes, in one multi (`change_notes`).
The node of a user, client or address that has no configuration left is removed, so that deleted users leave nothing.

Unusable configuration (broken JSON, an unknown key, a value of the wrong type) is reported, and the previous values
stay in use: another program's writes stop no broker or controller. `effective_configs` decides whether values agree
with each other. The values of users, clients and addresses are not interpreted here.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol.errors import ErrorCode

from ..config.config import dynamic_key, known_broker_key, topic_key
from ..config.config_types import ConfigError
from ..runtime.slices import cooperatively
from ..topic_rules.mirrored_topics import check_change
from . import Conflict, CoordinationError, tree
from .change_notes import ChangeNotes, Missed
from .entities import Entity
from .stores import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Store,
)

Config = Mapping[str, str]
KINDS = ("topics", "brokers", "clients", "ips", "users")

log = logging.getLogger(__name__)


class Configs:
    """`changed` is called with the entities (`topics/T`, `brokers/1`, `users/<default>`) that may have changed."""

    def __init__(self, nodes: Store, changed: Callable[[set[str]], None]) -> None:
        self._nodes = nodes
        self._changed = changed
        self._notes = ChangeNotes(nodes, tree.CONFIG_CHANGES)
        self._noted: Callable[[str], None] = lambda path: None
        self.topics: dict[str, Config] = {}
        self.brokers: dict[int | None, Config] = {}
        self.entities: dict[Entity, Config] = {}
        """Only those that have any configuration."""

    async def load(self, noted: Callable[[str], None]) -> None:
        """Read everything; `noted` is the watch for notes. Raises Unavailable."""
        self._noted = noted
        notes = await self._notes.names(noted)
        entities = [
            f"{kind}/{name}"
            for kind in KINDS
            for name in await self._nodes.children(f"{tree.CONFIG}/{kind}") or []
        ]
        clients_of = [f"{entity}/clients" for entity in entities if entity.startswith("users/")]
        clients = await self._nodes.children_of_all(map(tree.config_path, clients_of))
        for above, names in zip(clients_of, clients, strict=True):
            entities += [f"{above}/{name}" for name in names or ()]
        before = {
            *map(tree.topic_entity, self.topics),
            *map(tree.broker_entity, self.brokers),
            *(entity.path for entity in self.entities),
        }
        await self._read({*entities, *before})
        self._notes.are_read(notes, all_of_them=True)

    async def read_notes(self) -> None:
        """Read the entities that new notes name, and watch for more notes. Raises Unavailable."""
        names = await self._notes.names(self._noted)
        try:
            unread = await self._notes.unread(names)
        except Missed:
            log.info(
                "%s: some notes were removed before they were read: reading everything", tree.CONFIG_CHANGES
            )
            await self.load(self._noted)
            return
        entities = set()
        async for path, data in cooperatively(unread):
            try:
                entities.add(tree.config_change_from(path, data))
            except tree.TreeError as error:
                log.error("%s", error)
        await self._read(entities)
        self._notes.are_read(names)
        await self._notes.remove_old(names)

    async def ensure(self, topics: Iterable[str]) -> None:
        """Read the configuration of topics for which it is unknown. Raises Unavailable."""
        await self._read(
            {tree.topic_entity(name) for name in topics if name not in self.topics}, notify=False
        )

    def forget(self, topic: str) -> None:
        self.topics.pop(topic, None)

    async def write_broker(self, broker_id: int | None, config: Config) -> None:
        """Replace a broker's configuration, or the default of all; see `change`."""

        async def replaced(stored: Config) -> Config:
            return config

        await self.change(tree.broker_entity(broker_id), replaced)

    async def write_topic(
        self, name: str, topic_id: uuid.UUID, config: Config, named: Collection[str]
    ) -> None:
        """Replace a topic's configuration; ``named`` are the keys in the request. See `change`.

        Raises Conflict if the topic with this id is gone, even if another has its name; ApiError, see `check_change`.
        """

        async def checked(stored: Config) -> Config:
            node = await self._nodes.get(tree.topic_path(name))  # this broker's view may be outdated
            if node is None or tree.topic_id_from(name, node.data) != topic_id:
                raise Conflict(f"there is no topic {name} with the id {uuid_text(topic_id)}")
            check_change(stored, config, named)
            return config

        await self.change(tree.topic_entity(name), checked)

    async def change(self, entity: str, changed: Callable[[Config], Awaitable[Config]]) -> None:
        """Replace an entity's configuration by the result of `changed`, which gets the stored one, and may raise.

        Called again for each attempt. Notifies all brokers; nothing is written if nothing changes. After Unavailable it
        may or may not be written.
        """
        path = tree.config_path(entity)
        note = Create(tree.CONFIG_CHANGE, tree.config_change_json(entity), sequence=True)
        has_clients = False
        while True:
            node = await self._nodes.get(path)
            config = await changed(_stored(entity, node))
            data = tree.config_json(config)
            if len(data) > self._nodes.max_node_bytes:
                message = f"{path} would have {len(data)} bytes: {self._nodes.max_node_bytes} are allowed"
                raise CoordinationError(message, ErrorCode.INVALID_CONFIG)
            is_removed = not config and not has_clients and Entity.from_path(entity) is not None
            if node is None and not config:
                break
            if node is not None and node.data == data and not is_removed:
                break
            change: Operation
            if node is None:
                await self._nodes.ensure(path.rpartition("/")[0])
                change = Create(path, data)
            else:
                change = Delete(path, node.version) if is_removed else Set(path, data, node.version)
            try:
                await self._nodes.multi([change, note])
                if is_removed:
                    await self._remove_above(entity)
                break
            except MultiError as error:
                has_clients = has_clients or isinstance(error.error, NotEmptyError)
                if not isinstance(
                    error.error, NodeExistsError | NoNodeError | BadVersionError | NotEmptyError
                ):
                    raise error.error from None
        self._take(entity, dict(config))
        self._changed({entity})

    async def _remove_above(self, entity: str) -> None:
        """Remove the nodes above a user's client, which is gone, unless they have other clients, or configuration."""
        user, below, _ = entity.partition("/clients/")
        if not below:
            return
        path = tree.config_path(user)
        with contextlib.suppress(NoNodeError, NotEmptyError, BadVersionError):
            await self._nodes.delete(f"{path}/clients")
            node = await self._nodes.get(path)
            if node is not None and node.data in (b"", tree.config_json({})):
                await self._nodes.delete(path, node.version)

    async def _read(self, entities: set[str], *, notify: bool = True) -> None:
        known = [entity async for entity in cooperatively(sorted(entities)) if _is_known(entity)]
        nodes = await self._nodes.get_all(map(tree.config_path, known))
        async for entity, node in cooperatively(zip(known, nodes, strict=True)):
            try:
                config = {} if node is None else tree.config_from(entity, node.data)
            except tree.TreeError as error:
                log.error("%s", error)
                continue
            self._take(entity, _usable(entity, config, self._of(entity)))
        if known and notify:
            self._changed(set(known))

    def _take(self, entity: str, config: Config) -> None:
        kind, _, name = entity.partition("/")
        if kind == "topics":
            self.topics[name] = config
        elif kind == "brokers":
            if name == tree.DEFAULT_ENTITY:
                self.brokers[None] = config
            elif name.isdecimal():
                self.brokers[int(name)] = config
        elif (named := Entity.from_path(entity)) is not None:
            if config:
                self.entities[named] = config
            else:
                self.entities.pop(named, None)

    def _of(self, entity: str) -> Config:
        """The known configuration of an entity."""
        kind, _, name = entity.partition("/")
        if kind == "topics":
            return self.topics.get(name, {})
        if kind != "brokers":
            named = Entity.from_path(entity)
            return {} if named is None else self.entities.get(named, {})
        return self.brokers.get(int(name) if name.isdecimal() else None, {})


def _is_known(entity: str) -> bool:
    if entity.startswith(("topics/", "brokers/")):
        return True
    if Entity.from_path(entity) is not None:
        return True
    if entity.startswith(("clients/", "ips/", "users/")):
        log.error("%s: ignored, because Kafka does not encode names like this", tree.config_path(entity))
    return False


def _stored(entity: str, node: Node | None) -> Config:
    """The stored configuration, for a check of a change; empty if it is unreadable, so that a write repairs it."""
    try:
        return {} if node is None else tree.config_from(entity, node.data)
    except tree.TreeError:
        return {}


def _usable(entity: str, config: Config, known: Config) -> Config:
    """The usable values; the known value instead of an unusable one."""
    kind = entity.partition("/")[0]
    if kind not in ("topics", "brokers"):
        return config
    usable = {}
    key = topic_key if kind == "topics" else dynamic_key
    for name, value in config.items():
        try:
            key(name).parse(value)
            usable[name] = value
        except ConfigError as error:
            path = tree.config_path(entity)
            if name in known:
                usable[name] = known[name]
                log.error("%s: %s=%s stays in use: %s", path, name, _shown(name, known[name]), error)
            else:
                log.error("%s: ignoring %s=%s: %s", path, name, _shown(name, value), error)
    return usable


def _shown(name: str, value: str) -> str | None:
    """A stored value for a log line; a secret is hidden."""
    with contextlib.suppress(ConfigError):
        return known_broker_key(name).shown(value)
    return value
