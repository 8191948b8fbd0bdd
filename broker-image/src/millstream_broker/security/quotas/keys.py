"""The quotas that entities may have: Kafka's keys, their values, and Kafka's rules for both."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from millstream_kafka.protocol.errors import ApiError, ErrorCode

PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
CONNECTION = "connection_creation_rate"


class _Rule(NamedTuple):
    """A key's type in Kafka; None as its largest value: a fraction is allowed."""

    largest: int | None = None
    type_name: str = "DOUBLE"


_LONG, _INT = _Rule(2**63 - 1, "LONG"), _Rule(2**31 - 1, "INT")

OF_CLIENTS: Mapping[str, _Rule] = {PRODUCE: _LONG, FETCH: _LONG, REQUEST: _Rule(), MUTATION: _Rule()}
OF_IPS: Mapping[str, _Rule] = {CONNECTION: _INT}
ALL = frozenset(OF_CLIENTS) | frozenset(OF_IPS)


def check(key: str, value: float, *, of_ip: bool) -> str:
    """The text to store for a value. Raises ApiError if the key may not have it."""
    rule = (OF_IPS if of_ip else OF_CLIENTS).get(key)
    if rule is None:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if rule.largest is None:
        if not isfinite(value):
            raise _invalid(f"Quota {key} must be a finite number")
        return repr(value)
    if value > float(rule.largest):
        raise _invalid(f"Proposed value for {key} is too large for {_article(rule.type_name)}.")
    if value < 1 or value % 1.0 > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")
    return str(min(int(value), rule.largest))


def parse(text: str) -> float:
    """A stored value. Raises ValueError."""
    value = float(text)
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{text}: a quota is a number greater than 0")
    return value


def _article(type_name: str) -> str:
    return f"{'an' if type_name == 'INT' else 'a'} {type_name}"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
