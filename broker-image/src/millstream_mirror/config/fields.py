"""Fields of a JSON document: errors that name the field, its value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any


class MirrorConfigError(ValueError):
    """A one-line message for users."""


def an_object(
    field: str, value: Any, required: Collection[str], optional: Collection[str]
) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field or "the file", value, "an object")
    prefix = f"{field}." if field else ""
    allowed = sorted({*required, *optional})
    for name in value:
        if name not in allowed:
            raise MirrorConfigError(f"{prefix}{name}: unknown field: expected {', '.join(allowed)}")
    for name in sorted(required):
        if name not in value:
            raise MirrorConfigError(f"{prefix}{name}: missing")
    return value


def a_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(field, value, "a string")
    return value


def wrong(field: str, value: Any, allowed: str) -> MirrorConfigError:
    return MirrorConfigError(f"{field}: {json.dumps(value)} is not allowed: expected {allowed}")
