"""The CRDs' validation rules, evaluated here as the API server evaluates them.

The rules of `x-kubernetes-validations` are the API's contract. The local runtime and the operator evaluate the same
text, so they refuse exactly what Kubernetes refuses. cel-python implements the Common Expression Language (CEL,
github.com/google/cel-spec); this module adds the Kubernetes functions that our rules use: `quantity`, `isGreaterThan`,
`compareTo`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import celpy
import msgspec
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError, CELFunction

from ..models.quantity import parse_quantity

Rule = Callable[[Mapping[str, Any]], bool]


class CelError(Exception):
    """A rule is not valid, or cannot be evaluated on its value."""


def _quantity(text: celtypes.StringType) -> celtypes.IntType:
    """The quantity in thousandths: exact up to 8 PiB."""
    return celtypes.IntType(int(parse_quantity(str(text)) * 1000))


def _is_greater(left: celtypes.IntType, right: celtypes.IntType) -> celtypes.BoolType:
    return celtypes.BoolType(left > right)


def _compare(left: celtypes.IntType, right: celtypes.IntType) -> celtypes.IntType:
    return celtypes.IntType((left > right) - (left < right))


_FUNCTIONS: dict[str, CELFunction] = {
    "quantity": _quantity,
    "isGreaterThan": _is_greater,
    "compareTo": _compare,
}


REMEMBERED = 4096
"""Cached results: most parts of most resources are defaults, and evaluating a rule takes milliseconds."""


_SELF = re.compile(r"\bself\b(?!\.\w)|\bself\.(?P<field>\w+)(?P<call>\()?")
_HAS = re.compile(r"\bhas\(self\.(?P<field>\w+)\)")


@functools.cache
def fields_read(text: str) -> Mapping[str, bool] | None:
    """The fields of an object that a rule reads, and of each whether it matters which value it has, not only whether
    it has one. None: the rule may read all."""
    found: dict[str, bool] = {}
    for mention in _SELF.finditer(_HAS.sub("", text)):
        if mention["field"] is None or mention["call"] is not None:
            return None
        found[mention["field"]] = True
    return {**{mention["field"]: False for mention in _HAS.finditer(text)}, **found}


def as_read(text: str, value: Any) -> Any:
    """The part of a value that a rule reads: it is the same for most resources, whatever their names."""
    if not isinstance(value, Mapping) or (fields := fields_read(text)) is None:
        return value
    return {
        name: item if fields[name] or item is None else True for name, item in value.items() if name in fields
    }


def holds(text: str, value: Any, old: Any) -> bool:
    """Whether a rule holds for a value (``self``) that replaces another one (``oldSelf``); raises CelError."""
    value = as_read(text, value)
    return _holds(text, msgspec.json.encode(value), msgspec.json.encode(old))


@functools.lru_cache(REMEMBERED)
def _holds(text: str, value: bytes, old: bytes) -> bool:
    return compile_rule(text)({"self": msgspec.json.decode(value), "oldSelf": msgspec.json.decode(old)})


@functools.cache
def compile_rule(text: str) -> Rule:
    """Compile a rule to a function of its variables (`self`, `oldSelf`), which are JSON values. Raises CelError."""
    environment = celpy.Environment()
    try:
        program = environment.program(environment.compile(text), functions=_FUNCTIONS)
    except CELParseError as error:
        raise CelError(f"{text!r} is no rule: {error}") from None

    def holds(variables: Mapping[str, Any]) -> bool:
        try:
            answer = program.evaluate({name: json_to_cel(value) for name, value in variables.items()})
        except (CELEvalError, ValueError, TypeError) as error:
            raise CelError(f"{text!r}: {error.args[0]}") from None
        return bool(answer)

    return holds
