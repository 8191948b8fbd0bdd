"""Keys of one listener: `listener.name.NAME.KEY`, or `listener.name.NAME.MECHANISM.KEY` for one of its SASL mechanisms.

As in Kafka, names of listeners and mechanisms are in lower case, and such a key stands before the plain KEY
(`config.ListenerConfig` reads them). Keys of both kinds say so in their definition.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .config_keys import BROKER_KEYS
from .config_types import ConfigError, Key
from .kafka_only_keys import why_without_effect

BEGINNING = "listener.name."


def prefix(listener: str, mechanism: str | None = None) -> str:
    """What the keys of a listener, or of one of its mechanisms, begin with."""
    start = f"{BEGINNING}{listener.lower()}."
    return start if mechanism is None else f"{start}{mechanism.lower()}."


def listener_of(name: str) -> str | None:
    """The listener of a key, in lower case; None for a key without prefix."""
    return name.removeprefix(BEGINNING).partition(".")[0] if name.startswith(BEGINNING) else None


def plain_name(name: str) -> str:
    """A key's name without the prefix for a listener and a mechanism."""
    if not name.startswith(BEGINNING):
        return name
    rest = name.removeprefix(BEGINNING).partition(".")[2]
    after_mechanism = rest.partition(".")[2]
    is_of_mechanism = (key := BROKER_KEYS.get(after_mechanism)) is not None and key.of_mechanism
    return after_mechanism if is_of_mechanism and rest not in BROKER_KEYS else rest


@lru_cache(4096)
def broker_key(name: str) -> Key | None:
    """A broker's key by its whole name; None if there is none. Raises ConfigError for a prefix that is wrong."""
    plain = plain_name(name)
    key = BROKER_KEYS.get(plain)
    if plain == name or key is None:
        return key
    listener = listener_of(name)
    if not listener or listener != listener.lower():
        expected = f"{BEGINNING}{(listener or 'NAME').lower()}.{plain}"
        raise ConfigError(f"{name}: expected the listener's name in lower case, as in {expected}", name)
    if not (key.of_listener or key.of_mechanism):
        raise ConfigError(f"{name}: {plain} cannot be set for one listener: set {plain}", name)
    return replace(key, name=name, default=None, dynamic_of_listener_only=False)


def why_not_here(name: str) -> str | None:
    """The reason why one of Kafka's keys, with or without a prefix, has no effect; None: it is not listed."""
    plain = plain_name(name)
    return None if plain in BROKER_KEYS else why_without_effect(plain)
