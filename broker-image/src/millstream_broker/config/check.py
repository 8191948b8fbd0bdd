"""`millstream-broker --check`: validates configurations before anything starts with them.

JSON in:   {"brokers": {NAME: {KEY: VALUE}}, "topics": {NAME: {KEY: VALUE}}}   names are the caller's own
JSON out:  the same with a list of problems for each name, [] for those that are valid

It reports every problem: first each key by itself and, if every key is valid, keys that contradict each other.
Topics are checked against a broker's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .config import BrokerConfig, TopicConfig, known_broker_key, topic_key
from .config_keys import BROKER_KEYS
from .config_types import ConfigError, Key
from .listener_keys import why_not_here

Given = Mapping[str, str]
NODE_ID = "node.id"


def check(requested: Mapping[str, Mapping[str, Given]]) -> dict[str, dict[str, list[str]]]:
    return {
        "brokers": {name: broker_problems(given) for name, given in requested.get("brokers", {}).items()},
        "topics": {name: topic_problems(given) for name, given in requested.get("topics", {}).items()},
    }


def broker_problems(given: Given) -> list[str]:
    meant = {
        name: text
        for name, text in given.items()
        if name in BROKER_KEYS or (name != NODE_ID and why_not_here(name) is None)
    }
    return _problems(meant, known_broker_key) or _together(lambda: BrokerConfig(given))


def topic_problems(given: Given) -> list[str]:
    return _problems(given, topic_key) or _together(lambda: TopicConfig(BrokerConfig(), given))


def _problems(given: Given, key_of: Callable[[str], Key]) -> list[str]:
    found = []
    for name, text in given.items():
        try:
            key_of(name).parse(text)
        except ConfigError as error:
            found.append(str(error))
    return found


def _together(build: Callable[[], object]) -> list[str]:
    try:
        build()
    except ConfigError as error:
        return [str(error)]
    return []
