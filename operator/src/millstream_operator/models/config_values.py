"""Configuration values as brokers parse them: ``"compact, delete"`` and ``"compact,delete"`` are the same setting.

Brokers return a value in their own spelling, so a comparison of texts would find a difference for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

WHOLE = frozenset({"INT", "SHORT", "LONG"})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")


class ConfigValue(str):
    """A value as brokers return it, with the type of its key by Kafka's names; empty if they do not say."""

    __slots__ = ("type",)
    type: str

    def __new__(cls, text: str, type: str = "") -> ConfigValue:
        found = super().__new__(cls, text)
        found.type = type
        return found


def changed(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """The wanted settings that brokers do not have."""
    return {key: value for key, value in wanted.items() if not _is_same(value, there.get(key))}


def _is_same(wanted: str, there: str | None) -> bool:
    if there is None:
        return False
    kind = there.type if isinstance(there, ConfigValue) else ""
    return _parsed(wanted, kind) == _parsed(there, kind)


def _parsed(text: str, kind: str) -> object:
    """The value; the trimmed text if it is not one of this type."""
    text = text.strip()
    if kind == "LIST":
        return tuple(dict.fromkeys(item for part in text.split(",") if (item := part.strip())))
    if kind == "BOOLEAN":
        return text.lower()
    if kind in WHOLE and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "DOUBLE" and (number := _DECIMAL.fullmatch(text)):
        return float(number[1])
    return text
