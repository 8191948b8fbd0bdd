"""The configuration of topics and brokers in the tree, and the notes that announce changes.

To change an entity, a broker writes its node and leaves a note under /config/changes, in one multi; all brokers watch
the notes and read the entities they name. Notes have consecutive numbers. Any broker removes notes that are a quarter
of an hour older than the newest one, by the store's own clock. A broker that finds a gap in the numbers has missed
some, and reads everything.

Unusable configuration (broken JSON, an unknown key, a value of the wrong type) is reported, and the previous values
stay in use: another program's writes stop no broker or controller. `effective_configs` decides whether values agree
with each other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ..config.config import dynamic_key, topic_key
from ..config.config_types import ConfigError
from . import tree
from .stores import (
    BadVersionError,
    Create,
    MultiError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Store,
)

NOTES_EXPIRE_MS = 15 * 60 * 1000
REMOVED_AT_ONCE = 64
Config = Mapping[str, str]

log = logging.getLogger(__name__)


class Configs:
    """`changed` is called with the entities (`topics/T`, `brokers/1`, `brokers/<default>`) that may have changed."""

    def __init__(self, nodes: Store, changed: Callable[[set[str]], None]) -> None:
        self._nodes = nodes
        self._changed = changed
        self._seen = -1
        self._noted: Callable[[str], None] = lambda path: None
        self.topics: dict[str, Config] = {}
        self.brokers: dict[int | None, Config] = {}

    async def load(self, noted: Callable[[str], None]) -> None:
        """Read everything; `noted` is the watch for notes. Raises Unavailable."""
        self._noted = noted
        notes = await self._nodes.children(tree.CONFIG_CHANGES, noted) or []
        entities = [
            f"{kind}/{name}"
            for kind in ("topics", "brokers")
            for name in await self._nodes.children(f"{tree.CONFIG}/{kind}") or []
        ]
        before = {*map(tree.topic_entity, self.topics), *map(tree.broker_entity, self.brokers)}
        await self._read({*entities, *before})
        self._seen = max(map(_number, notes), default=-1)

    async def read_notes(self) -> None:
        """Read the entities that new notes name, and watch for more notes. Raises Unavailable."""
        notes = await self._nodes.children(tree.CONFIG_CHANGES, self._noted) or []
        if self._has_missed(notes):
            await self._read_everything()
            return
        new = sorted((note for note in notes if _number(note) > self._seen), key=_number)
        entities = set()
        paths = [f"{tree.CONFIG_CHANGES}/{note}" for note in new]
        for path, node in zip(paths, await self._nodes.get_all(paths), strict=True):
            if node is None:
                await self._read_everything()
                return
            try:
                entities.add(tree.config_change_from(path, node.data))
            except tree.TreeError as error:
                log.error("%s", error)
        await self._read(entities)
        self._seen = max(map(_number, new), default=self._seen)
        await self._remove_old(notes)

    async def _read_everything(self) -> None:
        log.info("%s: some notes were removed before they were read: reading everything", tree.CONFIG_CHANGES)
        await self.load(self._noted)

    def _has_missed(self, notes: Iterable[str]) -> bool:
        """Whether there have been notes that this broker has not read, and that are gone."""
        numbers = {number for number in map(_number, notes) if number >= 0}
        newest = max(numbers, default=-1)
        return newest < self._seen or not numbers.issuperset(range(self._seen + 1, newest + 1))

    async def ensure(self, topics: Iterable[str]) -> None:
        """Read the configuration of topics for which it is unknown. Raises Unavailable."""
        await self._read({tree.topic_entity(name) for name in topics if name not in self.topics}, tell=False)

    def forget(self, topic: str) -> None:
        self.topics.pop(topic, None)

    async def write(
        self,
        entity: str,
        config: Config,
        check: Callable[[Config, Config], Awaitable[None]] | None = None,
    ) -> None:
        """Replace an entity's configuration, and notify all brokers. After Unavailable it may or may not be written.

        `check` gets the stored configuration and the new one before each attempt, and may raise: this broker's view may
        be outdated.
        """
        path, data = tree.config_path(entity), tree.config_json(config)
        note = Create(tree.CONFIG_CHANGE, tree.config_change_json(entity), sequence=True)
        while True:
            there = await self._nodes.get(path)
            if check is not None:
                await check(_stored(entity, there), config)
            change: Operation = Create(path, data) if there is None else Set(path, data, there.version)
            try:
                await self._nodes.multi([change, note])
                break
            except MultiError as error:
                if not isinstance(error.error, NodeExistsError | NoNodeError | BadVersionError):
                    raise error.error from None
        self._take(entity, dict(config))
        self._changed({entity})

    async def _read(self, entities: set[str], *, tell: bool = True) -> None:
        known = sorted(entity for entity in entities if entity.startswith(("topics/", "brokers/")))
        nodes = await self._nodes.get_all(map(tree.config_path, known))
        for entity, node in zip(known, nodes, strict=True):
            try:
                config = {} if node is None else tree.config_from(entity, node.data)
            except tree.TreeError as error:
                log.error("%s", error)
                continue
            self._take(entity, _usable(entity, config, self._of(entity)))
        if known and tell:
            self._changed(set(known))

    def _take(self, entity: str, config: Config) -> None:
        kind, _, name = entity.partition("/")
        if kind == "topics":
            self.topics[name] = config
        elif name == tree.DEFAULT_ENTITY:
            self.brokers[None] = config
        elif name.isdecimal():
            self.brokers[int(name)] = config

    def _of(self, entity: str) -> Config:
        """The known configuration of an entity."""
        kind, _, name = entity.partition("/")
        if kind == "topics":
            return self.topics.get(name, {})
        return self.brokers.get(int(name) if name.isdecimal() else None, {})

    async def _remove_old(self, notes: list[str]) -> None:
        """Remove old ones, never the newest: its number shows others what they have missed."""
        if not notes:
            return
        *old, newest = sorted(notes, key=_number)
        old = [note for note in old[:REMOVED_AT_ONCE] if _number(note) <= self._seen]
        paths = [f"{tree.CONFIG_CHANGES}/{note}" for note in (*old, newest)]
        *nodes, last = await self._nodes.get_all(paths)
        for path, node in zip(paths, nodes, strict=False):
            if node is not None and last is not None and last.created_ms - node.created_ms > NOTES_EXPIRE_MS:
                with contextlib.suppress(NoNodeError):
                    await self._nodes.delete(path)


def _stored(entity: str, node: Node | None) -> Config:
    """The stored configuration, for a check of a change; empty if it is unreadable, so that a write repairs it."""
    try:
        return {} if node is None else tree.config_from(entity, node.data)
    except tree.TreeError:
        return {}


def _usable(entity: str, config: Config, known: Config) -> Config:
    """The usable values; the known value instead of an unusable one."""
    usable = {}
    key = topic_key if entity.startswith("topics/") else dynamic_key
    for name, value in config.items():
        try:
            key(name).parse(value)
            usable[name] = value
        except ConfigError as error:
            path = tree.config_path(entity)
            if name in known:
                usable[name] = known[name]
                log.error("%s: %s=%s stays in use: %s", path, name, known[name], error)
            else:
                log.error("%s: ignoring %s=%s: %s", path, name, value, error)
    return usable


def _number(note: str) -> int:
    digits = note.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
