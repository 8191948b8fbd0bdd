"""Configuration values as brokers parse them: `0.5` and `0.50` are the same setting, spelt by two clusters."""

from __future__ import annotations

import re

BOOLEAN, INT, SHORT, LONG, DOUBLE, LIST = 1, 3, 4, 5, 6, 7
"""Kafka's types in DescribeConfigs."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")


def parsed(text: str, kind: int) -> object:
    """The value; the trimmed text if it is not one of this type."""
    text = text.strip()
    if kind == LIST:
        return tuple(dict.fromkeys(item for part in text.split(",") if (item := part.strip())))
    if kind == BOOLEAN:
        return text.lower()
    if kind in (INT, SHORT, LONG) and _INTEGER.fullmatch(text):
        return int(text)
    if kind == DOUBLE and (number := _DECIMAL.fullmatch(text)):
        return float(number[1])
    return text
