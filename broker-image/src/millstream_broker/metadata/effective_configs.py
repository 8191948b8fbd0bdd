"""Computes the effective configuration, for this broker and for each topic.

A change is checked before it is stored, together with everything it would apply to (`check_topic`, `check_broker`):
topics against the settings of each broker that has its own, brokers against the existing topics. A refused change is
not stored.

Stored configuration may still be invalid: the file changed between two starts, an older version or a person wrote it,
or two brokers changed different things at once. This never stops a broker. It reports the invalid values, one line for
each, and keeps using the last valid ones; at a start, without such values, it ignores the invalid ones.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from millstream_kafka.mirror_source import KEY as MIRROR_SOURCE
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..config.config import BrokerConfig, ConfigSource, TopicConfig, dynamic_key, known_broker_key
from ..config.config_types import ConfigError, Contradiction
from ..config.topic_keys import TOPIC_PAIRS
from ..coordination import TopicRecord
from ..log.config import LogConfig
from ..topic_rules.internal_topics import INTERNAL_CONFIG, is_internal
from .topic_logs import log_config

log = logging.getLogger(__name__)

T = TypeVar("T")
Overrides = Mapping[str, str]
Place = tuple[ConfigSource, str]
"""Where a value is stored: the layer and the key."""
BrokerConfigs = Mapping[int | None, Overrides]
"""The dynamic settings of brokers by their ids, and of the whole cluster (None)."""

_POLICY = "cleanup.policy"
LAYERS = (ConfigSource.DYNAMIC_CLUSTER, ConfigSource.DYNAMIC_BROKER)
_DEPENDENT = frozenset(name for pair in TOPIC_PAIRS for name in pair)
"""Topic keys that a broker's setting may contradict."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A topic's configuration, and its inputs."""

    overrides: Overrides
    version: int
    config: TopicConfig
    log: LogConfig
    problems: tuple[str, ...]


class EffectiveConfigs:
    """`Broker.configs`. All calls are made on the loop, except `of_stored`."""

    def __init__(self, broker: BrokerConfig, broker_id: int) -> None:
        self.changing = asyncio.Lock()
        """Held from the check of a change until it is applied, so that two changes cannot contradict each other."""
        self._broker = broker
        self._effective = broker.with_dynamic({}, {})
        """The broker's current configuration, as an object that never changes."""
        self._broker_id = broker_id
        self._stored: BrokerConfigs = {}
        self._in_use: dict[Place, str] = {}
        self._version = 0
        """Version of the broker's settings."""
        self._topics: dict[tuple[str, uuid.UUID], _Known] = {}

    # Effective values

    def follow(self, stored: BrokerConfigs) -> None:
        """Apply the stored dynamic settings."""
        if stored is self._stored:
            return
        self._stored = stored
        layers = _layers(stored, self._broker_id)
        config, in_use, problems = self._built(layers, self._in_use.get)
        for problem in problems:
            concerned = [place for place in layers if place[1] in problem.keys]
            names = sorted({name for _, name in concerned})
            log.error(
                "broker %d: the stored settings %s cannot be used: %s; in use: %s",
                self._broker_id,
                ", ".join(
                    f"{name}={known_broker_key(name).shown(layers[place, name])}" for place, name in concerned
                ),
                problem,
                _shown(config, names),
            )
        self._broker.become(config)
        self._effective = config
        self._in_use = in_use
        self._version += 1

    def of(self, topic: TopicRecord) -> TopicConfig:
        """The effective configuration of a topic."""
        return self._known(topic).config

    def of_logs(self, topic: TopicRecord) -> LogConfig:
        """The effective configuration for the topic's logs."""
        return self._known(topic).log

    def _known(self, topic: TopicRecord) -> _Known:
        key = topic.name, topic.topic_id
        known = self._topics.get(key)
        if known is None or known.overrides is not topic.config or known.version != self._version:
            known = self._topics[key] = self._computed(topic, known)
        return known

    def _computed(self, topic: TopicRecord, before: _Known | None) -> _Known:
        def last_valid(place: Place) -> str | None:
            return before.config.shown(place[1]) if before is not None else None

        overrides = topic.config
        if is_internal(topic.name):  # an older version let clients create the topic with another one
            overrides = {**overrides, _POLICY: INTERNAL_CONFIG[_POLICY]}
        config, problems = self._usable(overrides, last_valid)
        said = tuple(str(problem) for problem in problems)
        for problem in problems if before is None or said != before.problems else ():
            log.error(
                "topic %s: the stored settings %s cannot be used: %s; in use: %s",
                topic.name,
                ", ".join(f"{name}={topic.config[name]}" for name in problem.keys if name in topic.config),
                problem,
                _shown(config, problem.keys),
            )
        return _Known(topic.config, self._version, config, log_config(config, self._effective), said)

    def _usable(
        self, overrides: Overrides, last_valid: Callable[[Place], str | None]
    ) -> tuple[TopicConfig, list[ConfigError]]:
        def build(texts: Mapping[Place, str]) -> TopicConfig:
            return TopicConfig(self._effective, {name: text for (_, name), text in texts.items()})

        places = {(ConfigSource.TOPIC, name): text for name, text in overrides.items()}
        config, _, problems = resolved(build, places, (ConfigSource.TOPIC,), last_valid)
        return config, problems

    def of_stored(self, overrides: Overrides) -> TopicConfig:
        """A topic's effective configuration before the broker joins its cluster, from stored settings. Thread-safe."""
        return self._usable(overrides, lambda place: None)[0]

    def keep(self, topics: Mapping[str, TopicRecord]) -> None:
        """Forget topics other than these."""
        if len(self._topics) > len(topics):
            existing = {(topic.name, topic.topic_id) for topic in topics.values()}
            self._topics = {key: known for key, known in self._topics.items() if key in existing}

    # Checking changes

    def check_topic(self, name: str, overrides: Overrides) -> None:
        """Raises ApiError INVALID_CONFIG for overrides that cannot be used on every broker."""
        for who, config in self._of_brokers(self._stored):
            try:
                TopicConfig(config, overrides)
            except ConfigError as error:
                where = (
                    ""
                    if who == self._broker_id or not isinstance(error, Contradiction)
                    else f" (broker {who})"
                )
                raise ApiError(ErrorCode.INVALID_CONFIG, f"{error}{where}") from None
        if is_internal(name) and overrides.get(MIRROR_SOURCE):
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is written by this cluster's coordinators: it cannot be a mirror",
            )
        if is_internal(name) and overrides.get(_POLICY) != INTERNAL_CONFIG[_POLICY]:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{_POLICY} of {name} must be {INTERNAL_CONFIG[_POLICY]}: any other would delete what is committed",
            )

    def with_own(self, overrides: Overrides) -> BrokerConfig:
        """This broker's configuration with other dynamic settings of its own."""
        return self._built(_layers({**self._stored, self._broker_id: overrides}, self._broker_id))[0]

    def check_broker(
        self, broker_id: int | None, overrides: Overrides, topics: Iterable[TopicRecord]
    ) -> None:
        """Raises ApiError for dynamic settings (None: the cluster's) that cannot be used.

        INVALID_REQUEST names a key that cannot be set or its value; INVALID_CONFIG what the settings contradict.
        """
        try:
            for name, text in overrides.items():
                dynamic_key(name).parse(text)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
        dependent = [topic for topic in topics if not _DEPENDENT.isdisjoint(topic.config)]
        before = set(self._contradictions(self._stored, dependent))
        for problem in self._contradictions({**self._stored, broker_id: overrides}, dependent):
            if problem not in before:
                raise ApiError(ErrorCode.INVALID_CONFIG, problem)

    def _contradictions(self, stored: BrokerConfigs, topics: Collection[TopicRecord]) -> Iterator[str]:
        for who, layers in ((who, _layers(stored, who)) for who in self._brokers(stored)):
            config, _, problems = self._built(layers)
            for problem in problems:
                yield f"{problem} (broker {who})"
            for topic in topics:
                try:
                    TopicConfig(config, topic.config)
                except ConfigError as error:
                    yield f"topic {topic.name}: {error} (broker {who})"

    def _of_brokers(self, stored: BrokerConfigs) -> Iterator[tuple[int, BrokerConfig]]:
        """This broker's configuration, and those of other brokers without their files, which are unknown here."""
        for who in self._brokers(stored):
            if who == self._broker_id:
                yield who, self._effective
            else:
                yield who, self._built(_layers(stored, who))[0]

    def _built(
        self, layers: Mapping[Place, str], last_valid: Callable[[Place], str | None] = lambda place: None
    ) -> tuple[BrokerConfig, dict[Place, str], list[ConfigError]]:
        def build(texts: Mapping[Place, str]) -> BrokerConfig:
            cluster, own = (
                {name: text for (place, name), text in texts.items() if place is layer} for layer in LAYERS
            )
            return self._broker.with_dynamic(cluster, own)

        return resolved(build, layers, LAYERS, last_valid)

    def _brokers(self, stored: BrokerConfigs) -> list[int]:
        """This broker and those that have settings of their own."""
        return [
            self._broker_id,
            *(broker_id for broker_id in stored if broker_id is not None and broker_id != self._broker_id),
        ]


def resolved(
    build: Callable[[Mapping[Place, str]], T],
    given: Mapping[Place, str],
    layers: Collection[ConfigSource],
    last_valid: Callable[[Place], str | None],
) -> tuple[T, dict[Place, str], list[ConfigError]]:
    """Use stored values as far as possible: the result, the values used, and the problems of the others.

    `build` raises ConfigError. The values that it refuses are replaced by the last valid ones, or left out without
    such.
    """
    texts, problems = dict(given), list[ConfigError]()
    replaced: set[Place] = set()
    while True:
        try:
            return build(texts), texts, problems
        except ConfigError as error:
            problems.append(error)
            for place in [(layer, name) for layer in layers for name in error.keys]:
                text = None if place in replaced else last_valid(place)
                replaced.add(place)
                if text is not None:
                    texts[place] = text
                else:
                    texts.pop(place, None)
            if len(problems) > 2 * len(given) + 4:  # no stored value is at fault
                raise


def _layers(stored: BrokerConfigs, broker_id: int) -> dict[Place, str]:
    """The dynamic settings of one broker."""
    by_layer = zip(LAYERS, (stored.get(None, {}), stored.get(broker_id, {})), strict=True)
    return {(layer, name): text for layer, overrides in by_layer for name, text in overrides.items()}


def _shown(config: BrokerConfig | TopicConfig, names: Iterable[str]) -> str:
    """Values, for a log line."""
    values = ((name, config.shown(name)) for name in names)
    return ", ".join(f"{name}={value}" for name, value in values if value is not None) or "nothing"
