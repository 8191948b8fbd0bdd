"""Configuration keys: name, type, default and rule, and the parsing of text into values.

An error names the key, the value and what is allowed, in Kafka's words, since clients see it too:

    Invalid value 7 for configuration log.segment.bytes: Value must be at least 14
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import TypeVar, cast

from millstream_kafka.mirror_source import FORM as MIRROR_SOURCE_FORM
from millstream_kafka.mirror_source import MOST_REQUESTS
from millstream_kafka.mirror_source import REQUEST as MIRROR_REQUEST
from millstream_kafka.mirror_source import parse as mirror_source_from
from millstream_kafka.topic_owner import FORM as TOPIC_OWNER_FORM
from millstream_kafka.topic_owner import OWNER as TOPIC_OWNER

Value = bool | int | float | str | list[str] | None

HIDDEN = "[hidden]"
"""Kafka's text for a secret."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
HOUR_MS = 60 * 60 * 1000


class ConfigError(ValueError):
    """An invalid configuration; the message is one line for users, `keys` names the keys at fault."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class Contradiction(ConfigError):
    """Values that are each valid, but not together."""


class Type(IntEnum):
    """Kafka's ConfigDef types, by their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


Problem = tuple[object, str]
"""An invalid value (of a list: the item), and why, in Kafka's words."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule besides the type. `allowed` describes the accepted values to users; `problem` returns None for those."""

    allowed: str
    problem: Callable[[Value], Problem | None]
    is_of_names: bool = False
    """Whether the value is a list of names: none may be empty, and each counts once."""


def between(low: float, high: float) -> Rule:
    def problem(value: Value) -> Problem | None:
        if not isinstance(value, int | float):
            return None
        if value < low:
            return value, f"Value must be at least {low}"
        return (value, f"Value must be no more than {high}") if value > high else None

    return Rule(f"≥ {low}" if high in (float("inf"), INT_MAX) else f"{low} to {high}", problem)


def at_least(low: float) -> Rule:
    return between(low, float("inf"))


def never_or_at_least(low: int) -> Rule:
    def problem(value: Value) -> Problem | None:
        if value == -1 or (isinstance(value, int) and value >= low):
            return None
        return value, f"Value must be at least {low}, or -1"

    return Rule(f"-1, or ≥ {low}", problem)


def _gzip_level(value: Value) -> Problem | None:
    if value == -1 or value in range(1, 10):
        return None
    return value, "Value must be between 1 and 9 or equal to -1"


gzip_level = Rule("-1, or 1 to 9", _gzip_level)


def replicas(name: str) -> Rule:
    def problem(value: Value) -> Problem | None:
        items = cast(list[str], value)
        if items == ["*"] or all(re.fullmatch(r"([0-9]+:[0-9]+)?", item) for item in items):
            return None
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        why = f"{name} must be the literal '*' or a list of replicas in the following format: {form}"
        return f"[{', '.join(items)}]", why

    return Rule("`*`, or PARTITION:BROKER, comma-separated", problem)


def _mirror_source(value: Value) -> Problem | None:
    if not value:
        return None
    try:
        mirror_source_from(str(value))
    except ValueError:
        return value, f"Value must be {MIRROR_SOURCE_FORM}, or empty"
    return None


def _mirror_request(value: Value) -> Problem | None:
    if not value or MIRROR_REQUEST.fullmatch(str(value)):
        return None
    return value, "Value must be the id of a request: 1 to 63 letters, digits, '.', '_' or '-', or empty"


def _mirror_requests(value: Value) -> Problem | None:
    requests = cast(list[str], value)
    if len(requests) > MOST_REQUESTS:
        return ",".join(requests), f"Value must have at most {MOST_REQUESTS} requests"
    return next(filter(None, map(_mirror_request, requests)), None)


def _topic_owner(value: Value) -> Problem | None:
    if not value or TOPIC_OWNER.fullmatch(str(value)):
        return None
    return value, f"Value must be {TOPIC_OWNER_FORM}, or empty"


topic_owner = Rule("NAMESPACE/NAME, or empty", _topic_owner)
mirror_requests = Rule(
    f"at most {MOST_REQUESTS}, comma-separated, each of 1 to 63 letters, digits, `.`, `_` or `-`",
    _mirror_requests,
    is_of_names=True,
)
mirror_source = Rule("CLUSTERID/TOPICID, CLUSTERID/TOPICID/rejoin, or empty", _mirror_source)


def principals_of(text: str) -> list[str]:
    """The principals in `super.users`. Raises ValueError for something else."""
    found = [item.strip() for item in text.split(";") if item.strip()]
    for principal in found:
        kind, _, name = principal.partition(":")
        if not (kind and name) or ",User:" in name.replace(", ", ","):
            raise ValueError(principal)
    return found


def _principals(value: Value) -> Problem | None:
    try:
        principals_of(str(value))
    except ValueError as error:
        return (
            value,
            f"{error} is no principal: expected TYPE:NAME;TYPE:NAME, as in User:admin;User:operator, with semicolons",
        )
    return None


principals = Rule("TYPE:NAME, `;` between several", _principals)


@lru_cache(16)
def limits_of_addresses(text: str) -> Mapping[str, int]:
    """The limits in `max.connections.per.ip.overrides`, by address. Raises ValueError for something else."""
    found = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        address, _, count = item.rpartition(":")
        if not (count.isascii() and count.isdigit()):
            raise ValueError(item)
        try:
            found[str(ip_address(address.strip()))] = int(count)
        except ValueError:
            raise ValueError(item) from None
    return found


def _limits_of_addresses(value: Value) -> Problem | None:
    try:
        limits_of_addresses(str(value))
    except ValueError as error:
        why = (
            "is no limit of an address: expected ADDRESS:COUNT, as in 10.0.0.7:100; brokers look up no names"
        )
        return value, f"{error} {why}"
    return None


address_limits = Rule("ADDRESS:COUNT, comma-separated", _limits_of_addresses)


def _audit_log(value: Value) -> Problem | None:
    is_right = value in ("stdout", "off") or str(value).startswith("/")
    return None if is_right else (value, "expected stdout, off, or an absolute path, as /var/log/audit.json")


audit_log = Rule("`stdout`, `off`, or an absolute path", _audit_log)


def one_of(*names: str) -> Rule:
    def problem(value: Value) -> Problem | None:
        allowed = ", ".join(name or "(empty)" for name in names)
        return None if value in names else (value, f"String must be one of: {allowed}")

    return Rule(", ".join(f"`{name}`" if name else "empty" for name in names), problem)


def some_of(*names: str) -> Rule:
    rule = one_of(*names)

    def problem(value: Value) -> Problem | None:
        return next(filter(None, map(rule.problem, cast(list[str], value))), None)

    return Rule(f"{rule.allowed}; several: comma-separated", problem, is_of_names=True)


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key's default, and the factor to the topic key's unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key. `inert` keys are accepted, since Kafka's own files contain them, but have no effect."""

    name: str
    type: Type
    default: Value
    doc: str
    rule: Rule | None = None
    dynamic: bool = False
    inert: bool = False
    synonyms: tuple[Synonym, ...] = ()
    of_listener: bool = False
    """Whether it may be set for one listener (`listener_keys`)."""
    of_mechanism: bool = False
    """Whether it may be set for one mechanism of a listener."""
    dynamic_of_listener_only: bool = False
    """Whether it changes at run time only for one listener."""

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is a secret: it is never shown."""
        return self.type is Type.PASSWORD

    def shown(self, value: Value) -> str | None:
        """A value as text for people, without secrets."""
        return HIDDEN if self.is_sensitive and value is not None else as_text(value)

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises ConfigError."""
        text = text.strip(_BLANKS)
        value: Value
        try:
            if self.type is Type.BOOLEAN:
                value = {"true": True, "false": False}[text.lower()]
            elif self.type in _RANGES:
                value = _number(_INTEGER, text, int)
                low, high = _RANGES[self.type]
                if not low <= value <= high:
                    raise ValueError
            elif self.type is Type.DOUBLE:
                value = _number(_DECIMAL, text, float)
            elif self.type is Type.LIST:
                value = re.split(r"\s*,\s*", text, flags=re.ASCII) if text else []
                if self.rule is None:  # Kafka reads these lists by another parser
                    value = [item for item in value if item]
            else:
                value = text
        except (ValueError, KeyError):
            why = f"Not a number of type {self.type.name}"
            if self.type is Type.BOOLEAN:
                why = "Expected value to be either true or false"
            raise self.refused(text, why) from None
        if self.rule is None:
            return value
        if self.rule.is_of_names and isinstance(value, list):
            if "" in value:
                raise ConfigError(f"Configuration '{self.name}' values must not be empty.", self.name)
            value = list(dict.fromkeys(value))
        if (problem := self.rule.problem(value)) is not None:
            raise self.refused(*problem)
        return value

    def refused(self, value: object, why: str) -> ConfigError:
        value = HIDDEN if self.is_sensitive else value
        return ConfigError(f"Invalid value {value} for configuration {self.name}: {why}", self.name)


def keys_by_name(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


_RANGES = {Type.SHORT: (-(2**15), 2**15 - 1), Type.INT: (-(2**31), INT_MAX), Type.LONG: (-(2**63), LONG_MAX)}

_BLANKS = "".join(map(chr, range(33)))
"""What Java trims."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")
"""Numbers as Kafka's configuration files write them: not Python's 1_000, nan or digits of other scripts."""
Number = TypeVar("Number", int, float)


def _number(form: re.Pattern[str], text: str, kind: Callable[[str], Number]) -> Number:
    if form.fullmatch(text) is None:
        raise ValueError(text)
    return kind(text.rstrip("dDfF") if form is _DECIMAL else text)


def as_text(value: Value) -> str | None:
    """A value as DescribeConfigs and properties files write it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).replace("e+", "E")
    return ",".join(value) if isinstance(value, list) else str(value)
