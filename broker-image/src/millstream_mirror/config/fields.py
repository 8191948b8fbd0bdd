"""Decoding of a JSON document, with errors that name the field, its value and what is allowed.

The types of the document say what is allowed: enumerations, and descriptions of their `msgspec.Meta`.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
MISSING = re.compile(r"Object missing required field `(.*)`")
PART = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
SHOWN = 500
"""Characters of a value in an error."""
SECRET = {"secret": True}
"""``Meta(extra=SECRET)``: an error does not show the value."""
ALLOWED: dict[type[inspect.Type], str] = {
    inspect.StrType: "a string",
    inspect.IntType: "a whole number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.StructType: "an object",
}


class MirrorConfigError(ValueError):
    """A one-line message for users."""


def wrong(field: str, value: Any, allowed: str) -> MirrorConfigError:
    text = json.dumps(value)
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return MirrorConfigError(f"{field}: {shown} is not allowed: expected {allowed}")


def decode(text: str, kind: type[T]) -> T:
    """Raises MirrorConfigError."""
    try:
        value = msgspec.json.decode(text)
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, inspect.type_info(kind)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MirrorConfigError(f"not JSON: {error}") from None
    except RecursionError:
        raise MirrorConfigError("not JSON: nested too deeply") from None


def _explained(message: str, value: Any, kind: inspect.Type) -> MirrorConfigError:
    """The error for a message of msgspec such as: Expected `str`, got `int` - at `$.sources[0].name`."""
    problem, _, path = message.partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    description, is_secret, kind = _described(kind)
    for name, index in PART.findall(path):
        description, is_secret, kind = _described(_type_of(kind, name))
        value = value[int(index)] if index else value[name]
    prefix = f"{path}." if path else ""
    if unknown := UNKNOWN.fullmatch(problem):
        names = (
            sorted(field.encode_name for field in kind.fields) if isinstance(kind, inspect.StructType) else []
        )
        return MirrorConfigError(f"{prefix}{unknown[1]}: unknown field: expected {', '.join(names)}")
    if missing := MISSING.fullmatch(problem):
        return MirrorConfigError(f"{prefix}{missing[1]}: missing")
    if isinstance(kind, inspect.EnumType):
        description = " or ".join(member.value for member in kind.cls)
    allowed = description or ALLOWED.get(type(kind), problem)
    if is_secret:
        return MirrorConfigError(f"{path}: expected {allowed}")
    return wrong(path or "the file", value, allowed)


def _type_of(kind: inspect.Type, name: str) -> inspect.Type:
    """The type of a field of an object, or of an item of a list."""
    if isinstance(kind, inspect.StructType):
        return next(field.type for field in kind.fields if field.encode_name == name)
    assert isinstance(kind, inspect.ListType)
    return kind.item_type


def _described(kind: inspect.Type) -> tuple[str, bool, inspect.Type]:
    """A type without annotations and without null; the description; and whether it is a secret."""
    description, is_secret = "", False
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.UnionType):
            kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
            continue
        description = (kind.extra_json_schema or {}).get("description", description)
        is_secret = is_secret or bool((kind.extra or {}).get("secret"))
        kind = kind.type
    return description, is_secret, kind
