"""The broker's configuration: Kafka's keys, typed, from a properties file and `--override`.

Keys are defined in `config_keys` and `topic_keys`, with the types and rules of `config_types`. Every value is checked
before anything starts.

A topic key has *synonyms*: the broker keys that give its default, each with the factor of its unit (`retention.ms` ←
`log.retention.ms`, `log.retention.minutes` × 60000, `log.retention.hours` × 3600000); the first that is set wins.
Values come, strongest first, from the topic, this broker's dynamic settings, the cluster's dynamic settings, the
properties file, and the default (KIP-226); `describe` tells which.

Both classes refuse invalid values. `effective_configs` decides what applies if such values are already stored.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import dropwhile
from typing import Self

from .config_keys import (
    ALLOWS_WITHOUT_ACL,
    AUTHORIZER,
    AUTHORIZERS,
    BROKER_KEYS,
    BROKER_PAIRS,
    SUPER_USERS,
)
from .config_types import ConfigError, Contradiction, Key, Synonym, Value, as_text, principals_of
from .jaas import parse_jaas
from .listener_keys import BEGINNING, broker_key, listener_of, prefix, why_not_here
from .sasl_keys import JAAS, PLAIN, USER
from .topic_keys import STAND_INS, TOPIC_KEYS, TOPIC_PAIRS
from .zookeeper_keys import ZOOKEEPER_KEYS
from .zookeeper_keys import check_together as check_zookeeper


class ConfigSource(IntEnum):
    """The source of a value, by the numbers of DescribeConfigs (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


Found = tuple[str, str | None, ConfigSource]

BROKER_ID, NODE_ID = "broker.id", "node.id"
"""Two names of one number: ZooKeeper's and KRaft's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value as DescribeConfigs shows it; `synonyms` lists (key, value, source), strongest first."""

    key: Key
    value: str | None
    source: ConfigSource
    synonyms: tuple[Found, ...]


class _Config(ABC):
    """Typed values by key name."""

    _keys: Mapping[str, Key]

    @abstractmethod
    def __getitem__(self, name: str) -> Value: ...

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), name
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), name
        return value

    def flag(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), name
        return value

    def strings(self, name: str) -> list[str]:
        value = self[name]
        assert isinstance(value, list), name
        return value

    def shown(self, name: str) -> str | None:
        """A key's value as text, without secrets; None if it has none or does not exist."""
        key = self._key(name)
        return None if key is None else key.shown(self[name])

    def _key(self, name: str) -> Key | None:
        return self._keys.get(name)


class BrokerConfig(_Config):
    """The broker's values: given in the file or by --override, changed dynamically, or default."""

    _keys = BROKER_KEYS

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError."""
        known, self._without_effect = _sort_out(given or {})
        self._layers: dict[ConfigSource, dict[str, Value]] = {
            ConfigSource.DYNAMIC_BROKER: {},
            ConfigSource.DYNAMIC_CLUSTER: {},
            ConfigSource.STATIC_BROKER: self._parse(known),
        }
        self._check_together()

    def _parse(self, given: Mapping[str, str]) -> dict[str, Value]:
        return {name: known_broker_key(name).parse(text) for name, text in given.items()}

    def _key(self, name: str) -> Key | None:
        return broker_key(name)

    def __getitem__(self, name: str) -> Value:
        for layer in self._layers.values():
            if name in layer:
                return layer[name]
        return self._default(name)

    def _default(self, name: str) -> Value:
        if (known := self._keys.get(name)) is not None:
            return known.default
        if (key := self._key(name)) is None:
            raise KeyError(name)
        return key.default

    def of_listener(self, listener: str, mechanism: str | None = None) -> ListenerConfig:
        """The values that apply to a listener, or to one of its SASL mechanisms, now and later."""
        return ListenerConfig(self, listener, mechanism)

    def is_set(self, name: str) -> bool:
        return any(name in layer for layer in self._layers.values())

    def without_effect(self) -> list[tuple[str, str]]:
        """The given keys that have no effect here, and why."""
        given = self._layers[ConfigSource.STATIC_BROKER]
        inert = [name for name in given if known_broker_key(name).inert]
        listeners = {text.partition("://")[0].lower() for text in self.strings("listeners")}
        strays = [
            (name, listener)
            for name in given
            if (listener := listener_of(name)) and listener not in listeners
        ]
        of_rules = (
            []
            if self.text(AUTHORIZER)
            else [name for name in (SUPER_USERS, ALLOWS_WITHOUT_ACL) if given.get(name)]
        )
        of_no_client = [
            each for each in principals_of(self.text(SUPER_USERS)) if not each.startswith("User:")
        ]
        of_nobody = [
            name
            for name, value in given.items()
            if name.endswith(f".{PLAIN.lower()}.{JAAS}")
            and not any(user.startswith(USER) for user in parse_jaas(str(value)).options)
        ]
        return sorted(
            [
                *self._without_effect,
                *((name, "this broker has nothing for it to tune") for name in inert),
                *((name, f"`listeners` has no listener {listener.upper()}") for name, listener in strays),
                *(
                    (name, f"there are no access rules: set {AUTHORIZER} to {AUTHORIZERS[0]}")
                    for name in of_rules
                ),
                *(
                    (SUPER_USERS, f"{each} is no principal of a client: these begin with User:")
                    for each in of_no_client
                ),
                *(
                    (name, f'it names no user, so nobody can log in by it: add {USER}NAME="PASSWORD"')
                    for name in of_nobody
                ),
            ]
        )

    def with_dynamic(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> Self:
        """The same file with these dynamic settings; raises ConfigError."""
        for name in (*cluster, *own):
            dynamic_key(name)
        changed = type(self)()
        changed._layers = {
            ConfigSource.DYNAMIC_BROKER: self._parse(own),
            ConfigSource.DYNAMIC_CLUSTER: self._parse(cluster),
            ConfigSource.STATIC_BROKER: self._layers[ConfigSource.STATIC_BROKER],
        }
        changed._check_together()
        return changed

    def become(self, other: BrokerConfig) -> None:
        """Take over another configuration's values, for everything that holds this one."""
        self._layers = other._layers

    def _check_together(self) -> None:
        for least, most in BROKER_PAIRS:
            low, high = self.integer(least), self.integer(most)
            if low > high:
                raise Contradiction(f"{least}={low}: expected no more than {most}={high}", least, most)
        check_zookeeper({key.name: self[key.name] for key in ZOOKEEPER_KEYS})

    def describe(self) -> list[Entry]:
        names = sorted(
            {name for layer in self._layers.values() for name in layer if name.startswith(BEGINNING)}
        )
        return [self._entry(key) for key in (*self._keys.values(), *map(known_broker_key, names))]

    def _entry(self, key: Key) -> Entry:
        synonyms = self.synonyms(key.name)
        return Entry(
            key,
            None if key.is_sensitive else as_text(self[key.name]),
            synonyms[0][2] if synonyms else ConfigSource.DEFAULT,
            tuple(synonyms),
        )

    def synonyms(self, name: str) -> list[Found]:
        """The values of a broker key and its synonyms, strongest first."""
        return from_first(name, self.found(STAND_INS.get(name, (Synonym(name),))))

    def found(self, synonyms: Iterable[Synonym]) -> list[Found]:
        """(key, value, source) wherever one of these broker keys has a value, strongest first."""
        names = [synonym.name for synonym in synonyms]
        layers = [
            *self._layers.items(),
            (ConfigSource.DEFAULT, {name: self._default(name) for name in names}),
        ]
        return [
            (name, None if known_broker_key(name).is_sensitive else as_text(layer[name]), source)
            for source, layer in layers
            for name in names
            if name in layer and (source is not ConfigSource.DEFAULT or layer[name] is not None)
        ]


def _sort_out(given: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Separate keys that have an effect or are unknown from Kafka's others, with the reason. Raises ConfigError."""
    known, others = dict(given), []
    if (number := known.pop(NODE_ID, None)) is not None and known.setdefault(BROKER_ID, number) != number:
        raise ConfigError(
            f"{NODE_ID}={number} and {BROKER_ID}={known[BROKER_ID]}: expected one of them, or both alike",
            NODE_ID,
        )
    for name in given:
        if broker_key(name) is None and (reason := why_not_here(name)) is not None:
            others.append((name, reason))
            del known[name]
    return known, others


def from_first(name: str, found: list[Found]) -> list[Found]:
    """Synonyms as Kafka lists them: from the key itself on, and none if only its synonyms have a value."""
    return list(dropwhile(lambda entry: entry[0] != name, found))


def _scaled(value: Value, factor: int) -> int:
    assert isinstance(value, int)
    return value * factor if value >= 0 else value


class ListenerConfig(_Config):
    """A view of a broker's values, for one listener: its own before those of all listeners.

    With a mechanism: the mechanism's own before the listener's.
    """

    _keys = BROKER_KEYS

    def __init__(self, config: BrokerConfig, listener: str, mechanism: str | None = None) -> None:
        self.listener = listener
        self._config = config
        self._prefixes = [prefix(listener, mechanism), prefix(listener)] if mechanism else [prefix(listener)]

    @property
    def owner(self) -> str:
        return f"listener {self.listener}"

    def __getitem__(self, name: str) -> Value:
        return self._config[self.name_of(name)]

    def is_set(self, name: str) -> bool:
        return self._config.is_set(self.name_of(name))

    def name_of(self, name: str) -> str:
        """The name of the key that has the value, for errors."""
        for beginning in self._prefixes:
            if self._config.is_set(own := beginning + name):
                return own
        return name


class TopicConfig(_Config):
    """A topic's values: its own overrides over the broker's."""

    _keys = TOPIC_KEYS

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self._broker = broker
        self.overrides = dict(overrides)
        self._parsed = {name: topic_key(name).parse(text) for name, text in overrides.items()}
        self._check_together()

    def _check_together(self) -> None:
        for least, most in TOPIC_PAIRS:
            low, high = self.integer(least), self.integer(most)
            if low > high:
                raise Contradiction(
                    f"conflict topic config setting {least} ({low}) > {most} ({high})", least, most
                )

    def __getitem__(self, name: str) -> Value:
        if name in self._parsed:
            return self._parsed[name]
        key = self._keys[name]
        for synonym in key.synonyms:
            if self._broker.is_set(synonym.name) and (value := self._broker[synonym.name]) is not None:
                return (
                    value if isinstance(value, bool | str | float | list) else _scaled(value, synonym.factor)
                )
        return key.default

    def describe(self) -> list[Entry]:
        entries = []
        for key in self._keys.values():
            value = as_text(self[key.name])
            own = [(key.name, value, ConfigSource.TOPIC)] if key.name in self.overrides else []
            of_broker = self._broker.found(key.synonyms)
            source = (own + of_broker)[0][2] if own or of_broker else ConfigSource.DEFAULT
            inherited = from_first(key.synonyms[0].name, of_broker) if key.synonyms else []
            entries.append(Entry(key, value, source, tuple(own + inherited)))
        return entries


def known_key(keys: Mapping[str, Key], name: str) -> Key:
    """The key of that name; raises ConfigError with the nearest known name."""
    if (key := keys.get(name)) is None:
        raise ConfigError(f"{name}: no such configuration key{_nearest(name, keys)}", name)
    return key


def known_broker_key(name: str) -> Key:
    """The broker key of that name, with or without a listener's prefix; raises ConfigError."""
    return broker_key(name) or known_key(BROKER_KEYS, name)


def dynamic_key(name: str) -> Key:
    """The broker key of that name; raises ConfigError unless it may be changed while the broker runs."""
    if broker_key(name) is None and (why := why_not_here(name)) is not None:
        raise ConfigError(f"{name} has no effect: {why}", name)
    key = known_broker_key(name)
    if key.dynamic_of_listener_only:
        message = f"{name} can change while the broker runs only for one listener: set {BEGINNING}NAME.{name}"
        raise ConfigError(message, name)
    if not key.dynamic:
        message = f"{name} cannot be changed while the broker runs: set it in the file, then restart"
        raise ConfigError(message, name)
    return key


def _nearest(name: str, keys: Mapping[str, Key]) -> str:
    near = difflib.get_close_matches(name, keys, 1)
    return f"; did you mean {near[0]}?" if near else ""


def topic_key(name: str) -> Key:
    """Raises ConfigError."""
    if (key := TOPIC_KEYS.get(name)) is None:
        raise ConfigError(f"Unknown topic config name: {name}{_nearest(name, TOPIC_KEYS)}", name)
    return key


def parse_properties(text: str) -> dict[str, str]:
    """Java's .properties format: `key=value`, `key: value` or `key value`, # and ! comments, \\ continues a line."""
    found: dict[str, str] = {}
    for line in _logical_lines(_LINE_END.split(text)):
        end = next((at for at, char in enumerate(line) if char in "=: \t"), len(line))
        key, rest = line[:end], line[end:].lstrip(" \t")
        if rest[:1] in ("=", ":"):
            rest = rest[1:]
        found[key] = _unescaped(rest.strip(" \t\f"))
    return found


_LINE_END = re.compile(r"\r\n|[\r\n]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def _unescaped(value: str) -> str:
    text = _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _CONTROL.get(found[2], found[2]), value
    )
    # \u escapes are of UTF-16: two of them may be one character
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _logical_lines(lines: Iterable[str]) -> Iterable[str]:
    joined = ""
    for line in lines:
        line = line.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


PORT = re.compile(r"[0-9]{1,5}")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Listener:
    """`NAME://host:port`, and the security protocol of that name."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(config: BrokerConfig, key: str) -> list[Listener]:
    """The listeners in `listeners` or `advertised.listeners`; raises ConfigError."""
    protocols = {}
    for pair in config.strings("listener.security.protocol.map"):
        name, _, protocol = pair.partition(":")
        protocols[name] = protocol
    listeners = [_listener(key, text, protocols) for text in config.strings(key)]
    for what in ("name", "port"):
        seen = [getattr(listener, what) for listener in listeners if listener.port or what == "name"]
        if key == "listeners" and len(set(seen)) < len(seen):
            raise ConfigError(f"{key}={','.join(config.strings(key))}: each listener needs its own {what}")
    return listeners


def _listener(key: str, text: str, protocols: Mapping[str, str]) -> Listener:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and name and PORT.fullmatch(port) and int(port) < 65536):
        raise ConfigError(f"{key}={text}: expected NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092")
    if name not in protocols:
        raise ConfigError(
            f"{key}={text}: the name {name} is not in listener.security.protocol.map: expected one of "
            + ", ".join(protocols)
        )
    if protocols[name] not in SECURITY_PROTOCOLS:
        raise ConfigError(
            f"listener.security.protocol.map: {name} has the security protocol {protocols[name]}: expected "
            + ", ".join(SECURITY_PROTOCOLS)
        )
    return Listener(name, host.strip("[]"), int(port), protocols[name])


def parse_address(key: str, text: str) -> tuple[str, int]:
    """`host:port`; raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not (colon and PORT.fullmatch(port) and int(port) < 65536):
        raise ConfigError(f"{key}={text}: expected HOST:PORT, as in 127.0.0.1:9404")
    return host.strip("[]"), int(port)
