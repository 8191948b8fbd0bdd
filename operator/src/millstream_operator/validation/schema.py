"""Defaults and validation by the CRDs' OpenAPI v3 schemas, as on the API server.

Source: the Kubernetes documentation on CustomResourceDefinitions ("structural schemas", "defaulting", "validation
rules"). One difference is deliberate: an unknown field is an error (as with `kubectl --validate=strict`), not a
warning.

The CRDs are those of `crds/` at the top of the repository; `make definitions` copies them into this package.
"""

from __future__ import annotations

import copy
import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import re2
import yaml

from .pattern_words import in_words

Schema = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_ARTICLES = {"object": "an object", "array": "a list", "integer": "an integer"}
_BITS = {"int32": 31, "int64": 63}


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid value: the field's path, the value and what is allowed."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what


OF_A_VARIABLE = "a variable has a value of its own, as others could see that of a Secret; "
TLS = "the listeners and the zookeeper of a Cluster, and the sources of a MirrorMaker, have TLS; "
DEEPEST = 4
"""Of fields that an unknown one is compared with: those of pod templates are deeper."""
CRDS = Path(__file__).parent.parent / "crds"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml takes a tenth of the time; not every wheel of PyYAML has it."""


@functools.cache
def crd_schemas() -> dict[str, Schema]:
    """The schema of each kind, at its storage version."""
    schemas: dict[str, Schema] = {}
    for file in sorted(CRDS.glob("*.yaml")):
        crd = yaml.load(file.read_text(), Loader=LOADER)
        stored = next(version for version in crd["spec"]["versions"] if version["storage"])
        schemas[crd["spec"]["names"]["kind"]] = stored["schema"]["openAPIV3Schema"]
    return schemas


def with_defaults(value: Any, schema: Schema) -> Any:
    """A copy of the value with the schema's defaults filled in, outer before inner as the API server does."""
    if isinstance(value, dict):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        result = dict(value)
        for name, inner in properties.items():
            # A null counts as left out where null is not allowed.
            missing = name not in result or (result[name] is None and not inner.get("nullable"))
            if missing and "default" in inner:
                result[name] = copy.deepcopy(inner["default"])
        others = schema.get("additionalProperties")
        for name, item in result.items():
            if name in properties:
                result[name] = with_defaults(item, properties[name])
            elif isinstance(others, Mapping):
                result[name] = with_defaults(item, others)
        return result
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(item, schema["items"]) for item in value]
    return value


def without_nulls(resource: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """A copy of a manifest without the nulls that the API server takes as left out, such as ``labels:`` without any.

    In metadata these are all, and a label or an annotation without a value is empty."""
    found: dict[str, Any] = {
        name: item for name, item in resource.items() if name != "metadata" or item is not None
    }
    found = _without_nulls(found, schema)
    if isinstance(metadata := resource.get("metadata"), dict):
        found["metadata"] = {
            name: {key: "" if text is None else text for key, text in item.items()}
            if name in ("labels", "annotations") and isinstance(item, dict)
            else item
            for name, item in metadata.items()
            if item is not None
        }
    return found


def _without_nulls(value: Any, schema: Schema) -> Any:
    """The same for fields and entries that may not be null; a null in a list stays, and is refused."""
    if isinstance(value, dict):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        others = schema.get("additionalProperties")
        result = {}
        for name, item in value.items():
            inner = properties.get(name, others if isinstance(others, Mapping) else None)
            if inner is None:
                result[name] = item
            elif item is not None or inner.get("nullable"):
                result[name] = _without_nulls(item, inner)
        return result
    if isinstance(value, list) and "items" in schema:
        return [_without_nulls(item, schema["items"]) for item in value]
    return value


def pruned(value: Any, schema: Schema) -> Any:
    """A copy of the value without fields that the schema does not know, as the API server stores it."""
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        others = schema.get("additionalProperties")
        if not properties and others is None:
            return value
        inner = others if isinstance(others, Mapping) else {}
        return {
            name: pruned(item, properties.get(name, inner))
            for name, item in value.items()
            if name in properties or others
        }
    if isinstance(value, list) and "items" in schema:
        return [pruned(item, schema["items"]) for item in value]
    return value


def validate(
    value: Any,
    schema: Schema,
    *,
    path: str = "",
    old: Any = None,
    waived: Collection[str] = (),
    whole: Schema | None = None,
) -> Iterator[Problem]:
    """Every problem of a value. ``old``: the value it replaces, for rules on what may change. ``waived``: rules to
    skip. ``whole``: the schema of the resource that the value is in."""
    whole = schema if whole is None else whole
    if value is None and schema.get("nullable"):
        return
    wrong = _type_problem(value, schema)
    if wrong:
        yield Problem(path, wrong)
        return
    before = list(_bounds(value, schema, path))
    if isinstance(value, dict):
        before += _object(value, schema, path, old, waived, whole)
    elif isinstance(value, list):
        before += _list(value, schema, path, old, waived, whole)
    yield from before
    if not before:  # rules may rely on the schema
        yield from _rules(value, schema, path, old, waived)


def _type_problem(value: Any, schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, int | str) and not isinstance(value, bool):
            return ""
        return f"{_show(value)} is neither an integer nor a string"
    expected = schema.get("type")
    if expected is None:
        return ""
    if isinstance(value, _TYPES[expected]) and (expected == "boolean" or not isinstance(value, bool)):
        return ""
    hint = ""
    if expected == "string" and _is_scalar(value):
        hint = f'; write "{_plain(value)}" in quotes'
    elif expected == "object" and schema.get("properties"):
        hint = f"; allowed here: {', '.join(sorted(schema['properties']))}"
    return f"{_show(value)} is not {_ARTICLES.get(expected, f'a {expected}')}{hint}"


def _bounds(value: Any, schema: Schema, path: str) -> Iterator[Problem]:
    if "enum" in schema and value not in schema["enum"]:
        yield Problem(path, f"{_show(value)} is not allowed; allowed: {', '.join(map(str, schema['enum']))}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        bits = _BITS.get(schema.get("format", ""))
        low = schema.get("minimum", -(2**bits) if bits else None)
        high = schema.get("maximum", 2**bits - 1 if bits else None)
        if low is not None and value < low:
            yield Problem(path, f"{value} is too small; allowed: {low} or more")
        if high is not None and value > high:
            yield Problem(path, f"{value} is too large; allowed: {high} or less")
    if isinstance(value, str):
        if "pattern" in schema and not re2.search(schema["pattern"], value):
            yield Problem(path, f"{_show(value)} is not allowed; allowed: {in_words(schema['pattern'])}")
        if schema.get("format") == "date-time" and not _is_time(value):
            yield Problem(path, f"{_show(value)} is no time; allowed: for example 2026-11-20T00:00:00Z")
        yield from _count(len(value), "characters", schema, "minLength", "maxLength", path)
    if isinstance(value, list):
        yield from _count(len(value), "items", schema, "minItems", "maxItems", path)
    if isinstance(value, dict):
        yield from _count(len(value), "entries", schema, "minProperties", "maxProperties", path)
    for alternative in ("anyOf", "oneOf"):
        if alternative in schema and not any(not list(validate(value, one)) for one in schema[alternative]):
            yield Problem(path, f"{_show(value)} matches none of the allowed forms")


def _count(count: int, what: str, schema: Schema, least: str, most: str, path: str) -> Iterator[Problem]:
    if count < schema.get(least, 0):
        yield Problem(path, f"{count} {what} are too few; allowed: {schema[least]} or more")
    if count > schema.get(most, count):
        yield Problem(path, f"{count} {what} are too many; allowed: {schema[most]} or fewer")


def _object(
    value: dict[str, Any], schema: Schema, path: str, old: Any, waived: Collection[str], whole: Schema
) -> Iterator[Problem]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    free = (
        schema.get("x-kubernetes-preserve-unknown-fields")
        or (not properties and others is None)
        or others is True
    )
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(_join(path, name), "is required")
    for name, item in value.items():
        inner = properties.get(name, others if isinstance(others, Mapping) else None)
        if inner is not None:
            was = old.get(name) if isinstance(old, dict) else None
            yield from validate(item, inner, path=_join(path, name), old=was, waived=waived, whole=whole)
        elif not free:
            yield Problem(
                _join(path, name),
                f"unknown field; {_hint(name, properties, whole)}"
                f"allowed here: {', '.join(sorted(properties)) or 'nothing'}",
            )


def _hint(name: str, properties: Mapping[str, Schema], whole: Schema) -> str:
    """What an unknown field may be meant for: a field with a similar name, else one of its name elsewhere."""
    if near := difflib.get_close_matches(name, properties, 1, cutoff=0.72):
        return f"did you mean {near[0]}? "
    if name == "valueFrom":
        return "secretKeyRef is here without it; " if "secretKeyRef" in properties else OF_A_VARIABLE
    if name == "tls":
        return TLS
    if places := list(_places(name, whole, "")):
        return f"it is a field of {' and of '.join(places[:2])}; "
    return ""


def _places(name: str, schema: Schema, path: str, depth: int = DEEPEST) -> Iterator[str]:
    """The paths of objects with a field of this name, outer ones first."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if path == "status":
        return
    if name in properties and path:
        yield path
    if depth:
        for inner, below in properties.items():
            at = _join(path, inner)
            yield from _places(name, below, at, depth - 1)
            if "items" in below:
                yield from _places(name, below["items"], f"{at}[]", depth - 1)


def _list(
    value: list[Any], schema: Schema, path: str, old: Any, waived: Collection[str], whole: Schema
) -> Iterator[Problem]:
    keys = schema.get("x-kubernetes-list-map-keys")
    kind = schema.get("x-kubernetes-list-type")
    seen: set[str] = set()
    known: dict[str, Any] = {}

    def identity(item: Any) -> str:
        return repr([item.get(key) for key in keys] if keys and isinstance(item, dict) else item)

    if keys and isinstance(old, list):
        known = {identity(item): item for item in old}
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if kind in ("map", "set"):
            if identity(item) in seen:
                yield Problem(here, f"{_show(item)} is listed twice; each may be listed once")
            seen.add(identity(item))
        if "items" in schema:
            was = known.get(identity(item))
            yield from validate(item, schema["items"], path=here, old=was, waived=waived, whole=whole)


def _rules(value: Any, schema: Schema, path: str, old: Any, waived: Collection[str]) -> Iterator[Problem]:
    if old is not None and value == old:
        return  # a newer rule does not apply to an unchanged value: "validation ratcheting"
    if not (rules := schema.get("x-kubernetes-validations")):
        return
    from . import cel  # only where rules are evaluated: it takes a tenth of a second

    for rule in rules:
        text = rule["rule"]
        if text in waived or ("oldSelf" in text and old is None):
            continue
        try:
            holds = cel.holds(text, value, old)
        except cel.CelError as error:
            yield Problem(path, f"{_show(value)} cannot be checked by the rule {text!r}: {error}")
            continue
        if not holds:
            shown = "" if isinstance(value, dict | list) else f"{_show(value)} is not allowed; "
            yield Problem(path, shown + rule.get("message", f"must hold: {text}"))


def _join(path: str, name: str) -> str:
    name = name if re.fullmatch(r"[\w-]+", name) else f"[{name!r}]"
    return f"{path}{'' if name.startswith('[') or not path else '.'}{name}"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show(value: Any) -> str:
    """A value as in YAML, shortened."""
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {_show(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(_show, value)) + "]"
    else:
        text = "null" if value is None else _plain(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
