"""Errors about manifests as one line for users: kind, resource, field, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def explain(kind: str, manifest: Mapping[str, Any], error: str) -> str:
    """Msgspec's error about a manifest, ``WHAT - at `$.PATH` ``, with the field first."""
    what, _, path = error.rpartition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    return titled(kind, manifest, f"{where}: {what}" if what and where else what or error)


def titled(kind: str, manifest: Mapping[str, Any], what: str) -> str:
    """What is wrong, after the kind and name of the resource it is about."""
    metadata = manifest.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, Mapping) else "?"
    return f"{kind} {name}: {what}"


def shown(value: object) -> str:
    """A value in JSON, short."""
    if value is None:
        return "nothing"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
