"""Turns msgspec's validation errors into lines for users: the field as they write it, its value, what is allowed.

msgspec says ``Expected `int` >= 1 - at `$.spec.partitions` ``; the value and the allowed names are looked up by
following that path through the manifest and the record types.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec


def explain(cls: type[msgspec.Struct], kind: str, manifest: Mapping[str, Any], error: str) -> str:
    """msgspec's message with the field's path as users write it, the value, and what is allowed."""
    what, _, path = error.rpartition(" - at `$")
    if not what:
        what, path = error, ""
    steps = [step for step in re.split(r"[.\[\]]+", path.rstrip("`").replace("[...]", ".*")) if step]
    where, value, struct = _follow(cls, manifest, steps)
    metadata = manifest.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    prefix = f"{kind} {name}: "
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        allowed = (
            ", ".join(sorted(f.encode_name for f in msgspec.structs.fields(struct))) if struct else "none"
        )
        return f"{prefix}{_join(where, found[1])}: unknown field; allowed: {allowed}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"{prefix}{_join(where, found[1])}: required"
    if what.startswith(("Expected", "Invalid")):
        return f"{prefix}{where}: {shown(value)} is not allowed: {_expected(what)}{_choices(cls, steps)}"
    return f"{prefix}{where}: {what}" if where else f"{prefix}{what}"


def _expected(what: str) -> str:
    return what[0].lower() + what[1:].replace(" | null`", "`")  # a field that may be null may be left out


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _follow(cls: type, manifest: object, steps: list[str]) -> tuple[str, object, type[msgspec.Struct] | None]:
    """Walk a msgspec path: the path as users write it, the value there, and the record type there."""
    path, value, kind = "", manifest, typing.cast(Any, cls)
    for step in steps:
        kind = _plain(kind)
        if step == "*":  # any value of a mapping: the first that is not text is to blame
            entries = value if isinstance(value, Mapping) else {}
            key = next((k for k, v in entries.items() if not isinstance(v, str)), "…")
            path, value, kind = f"{path}[{key}]", entries.get(key), Any
        elif step.isdigit():
            path = f"{path}[{step}]"
            value = value[int(step)] if isinstance(value, list | tuple) else None
            kind = (typing.get_args(kind) or (Any,))[0]
        else:
            path = _join(path, step)
            value = value.get(step) if isinstance(value, Mapping) else None
            kind = _field_type(kind, step)
    kind = _plain(kind)
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return path, value, typing.cast(type[msgspec.Struct], kind) if is_struct else None


def _field_type(kind: object, name: str) -> object:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for entry in msgspec.structs.fields(kind):
            if entry.encode_name == name:
                return entry.type
    return Any


def _plain(kind: Any) -> Any:
    """A type without Annotated and without ``| None``."""
    if typing.get_origin(kind) is Annotated:
        return _plain(typing.get_args(kind)[0])
    options = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if type(None) in typing.get_args(kind) and len(options) == 1:
        return _plain(options[0])
    return kind


def _choices(cls: type, steps: list[str]) -> str:
    kind: Any = cls
    for step in steps:
        kind = _plain(kind)
        kind = (typing.get_args(kind) or (Any,))[0] if step.isdigit() else _field_type(kind, step)
    kind = _plain(kind)
    if typing.get_origin(kind) is Literal:
        return f"; expected one of {', '.join(str(arg) for arg in typing.get_args(kind))}"
    return ""
