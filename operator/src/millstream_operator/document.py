"""Writes docs/resources.md: every field of every kind, from the CRDs' own schemas and descriptions.

python -m millstream_operator.document > docs/resources.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .definitions import template_schema
from .schema import CRDS

Schema = Mapping[str, Any]

INTRODUCTION = """\
# The resources

`millstream.dev/v1alpha1`, generated from the CRDs in [crds/](../crds) by `python -m millstream_operator.document`;
`kubectl explain KIND.spec` shows the same. Examples: [examples/](../examples).

Every kind has `status.conditions`, `Ready` first, each with a reason, a message and the generation it was observed at.
`kubectl get millstream` lists all kinds. A field in **bold** is required.
"""


PODS = """\
## Pods

Fields of every `template`: of brokers, ZooKeeper servers, mirror workers, Spark's driver and executors. The API server
refuses other fields; [security.md](security.md#pod-templates) says why.
"""
TEMPLATE = "template"
CONTAINERS = ("broker", "zookeeper", "mirror", "driver", "executor")


def document() -> str:
    crds = _crds()
    kinds = [line for crd in crds for line in _kind(crd)]
    return "\n".join([INTRODUCTION, *kinds, *_pods()])


def _pods() -> Iterator[str]:
    """The fields that all templates share, described once."""
    templates = [template_schema(container) for container in CONTAINERS]
    yield PODS
    yield "| template | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in _fields(templates[0], ""):
        names = " or ".join(f"`{name}`" for name in CONTAINERS)
        yield field.replace("| `broker` |", f"| {names} |")
    yield ""
    yield "Rules beyond types and bounds:"
    yield ""
    yield from (f"- {rule}" for rule in dict.fromkeys(rule for one in templates for rule in _rules(one, "")))
    yield ""


def _crds() -> list[Schema]:
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


def _kind(crd: Schema) -> Iterator[str]:
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}"
    yield ""
    yield f"`kubectl get {names['plural']}` or `{names['shortNames'][0]}`. {_text(schema)}"
    yield ""
    for part in ("spec", "status"):
        yield f"| {part} | type | default | meaning |"
        yield "|---|---|---|---|"
        yield from _fields(schema["properties"][part], "")
        yield ""
    rules = list(_rules(schema, ""))
    if rules:
        yield "Rules beyond types and bounds:"
        yield ""
        yield from (f"- {rule}" for rule in rules)
        yield ""


def _fields(schema: Schema, prefix: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        shown = f"**`{path}`**" if name in required else f"`{path}`"
        default = _default(field.get("default"))
        if _is_shared(name, field):
            yield f"| {shown} | object |  | {_text(field)} See [Pods](#pods). |"
            continue
        yield f"| {shown} | {_type(field)} | {default} | {_text(field)} |"
        yield from _fields(field, f"{path}.")
        yield from _fields(field.get("items", {}), f"{path}[].")


def _is_shared(name: str, field: Schema) -> bool:
    """Whether a field is one of the templates that have the same fields. A workload's has others, and no default."""
    return name == TEMPLATE and "default" in field


def _default(value: Any) -> str:
    """A default in YAML; empty without one, and for an object whose fields have their own."""
    if value is None or value == {}:
        return ""
    if isinstance(value, dict):
        return f"`{', '.join(f'{key}: {amount}' for key, amount in value.items())}`"
    return f"`{value}`"


def _type(field: Schema) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"map of {_type(field['additionalProperties'])}"
    bounds = [f"{sign} {field[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in field]
    return " ".join([str(field.get("format") or field.get("type", "any")), ", ".join(bounds)]).strip()


def _rules(schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"{rule['message']}" if "message" in rule else f"`{path}`: `{rule['rule']}`"
    for name, field in schema.get("properties", {}).items():
        if not _is_shared(name, field):
            yield from _rules(field, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), Mapping):
        yield from _rules(schema["items"], path)


def _text(field: Schema) -> str:
    return " ".join(str(field.get("description", "")).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(document())
