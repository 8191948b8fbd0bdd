"""Writes docs/resources.md and a page for each kind: every field, from the CRDs' own schemas and descriptions.

python -m millstream_operator.tools.document examples/resources docs

The first folder has an example manifest for each kind. A field has an anchor, its path: `topic.md#spec.partitions`. An
object has a section, so names in tables are short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from ..validation.schema import CRDS
from .definitions import template_schema

Schema = Mapping[str, Any]

INTRODUCTION = """\
# The resources

`millstream.dev/v1alpha1`: a page for each kind, with an example and every field. `make definitions` generates them from
the CRDs in [crds/](../crds); `kubectl explain KIND.spec` shows the same. More examples: [examples/](../examples).

Every kind has `status.conditions`, `Ready` first, each with a reason, a message and the generation it was observed at
([all of them](reference/conditions.md)). `kubectl get millstream` lists all kinds.
"""
PODS_TEXT = """\
Fields of every `template`: of brokers, ZooKeeper servers, mirror workers, Spark's driver and executors. The API server
refuses other fields; [security.md]({up}security.md#pod-templates) says why.
"""
PODS_EXAMPLE = """\
Here brokers run on nodes that are kept for them:

```yaml
spec:
  brokers:
    template:
      metadata:
        labels: {team: streaming}
      spec:
        nodeSelector: {disk: nvme}
        tolerations: [{key: kafka, operator: Exists}]
        priorityClassName: high
```
"""
REQUIRED = "A field in **bold** is required."
TEMPLATE: Final = "template"
CONTAINERS = ("broker", "zookeeper", "mirror", "driver", "executor")
LONGEST_EXAMPLE: Final = 60


def pages(examples: Path) -> dict[str, str]:
    """Text of each page, by its path in docs/. ``examples``: a folder with a manifest for each kind."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    found = {
        "resources.md": "\n".join(
            [INTRODUCTION, *(line for crd in crds for line in _entry(crd)), *_pods_entry()]
        )
    }
    for crd in crds:
        name = crd["spec"]["names"]["singular"]
        manifest = (examples / f"{name}.yaml").read_text()
        found[f"resources/{name}.md"] = "\n".join(_kind(crd, manifest))
    found["resources/pods.md"] = "\n".join(_pods())
    return found


def _entry(crd: Schema) -> Iterator[str]:
    """A kind in the index. Its heading is an anchor that pages link to."""
    names, schema = crd["spec"]["names"], _schema(crd)
    page = f"resources/{names['singular']}.md"
    yield f"## {names['kind']}"
    yield ""
    yield f"{_text(schema)} Fields: [{names['kind']}]({page})."
    yield ""
    fields = (f"[`{name}`]({page}#spec.{name})" for name in schema["properties"]["spec"]["properties"])
    yield f"{', '.join(fields)}."
    yield ""


def _pods_entry() -> Iterator[str]:
    yield "## Pods"
    yield ""
    yield PODS_TEXT.format(up="")
    yield "Fields: [Pods](resources/pods.md)."
    yield ""


def _kind(crd: Schema, manifest: str) -> Iterator[str]:
    names, schema = crd["spec"]["names"], _schema(crd)
    yield f"# {names['kind']}"
    yield ""
    yield f"{_text(schema)} `kubectl get {names['plural']}` or `{names['shortNames'][0]}`."
    yield ""
    yield f"```yaml\n{manifest.rstrip()}\n```"
    yield ""
    yield f"{REQUIRED} [All kinds](../resources.md)."
    yield ""
    example = next(one for one in yaml.safe_load_all(manifest) if one["kind"] == names["kind"])
    for part in ("spec", "status"):
        yield f"## {part}"
        yield ""
        yield from _tables(schema["properties"][part], part, example.get(part))
    yield from _list_of_rules(_rules(schema, ""))


def _pods() -> Iterator[str]:
    """The fields that all templates share."""
    templates = [template_schema(container) for container in CONTAINERS]
    yield "# Pods"
    yield ""
    yield PODS_TEXT.format(up="../")
    yield PODS_EXAMPLE
    yield f"{REQUIRED} [All kinds](../resources.md)."
    yield ""
    yield "## template"
    yield ""
    names = " or ".join(f"`{name}`" for name in CONTAINERS)
    for line in _tables(templates[0], TEMPLATE, None):
        yield line.replace("| `broker` |", f"| {names} |")
    yield from _list_of_rules(rule for template in templates for rule in _rules(template, ""))


def _list_of_rules(rules: Iterator[str]) -> Iterator[str]:
    if found := dict.fromkeys(rules):
        yield "## Rules beyond types and bounds"
        yield ""
        yield from (f"- {rule}" for rule in found)
        yield ""


def _schema(crd: Schema) -> Schema:
    schema: Schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _tables(schema: Schema, path: str, example: Any) -> Iterator[str]:
    """A table of an object's fields, and a section for each object among them. ``example``: its value there."""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        anchor = f"{path}.{name}"
        shown = f'<a id="{anchor.replace("[]", "")}"></a>' + (
            f"**`{name}`**" if name in required else f"`{name}`"
        )
        if _is_shared(name, field):
            yield f"| {shown} | [object](pods.md) |  | {_text(field)} |"
            continue
        kind = _type(field)
        if _object(field) is not None:
            kind = f"[{kind}](#{_slug(_section(anchor, field))})"
        meaning = _text(field) + _example(field, _at(example, name))
        yield f"| {shown} | {kind} | {_default(field.get('default'))} | {meaning} |"
    yield ""
    for name, field in schema.get("properties", {}).items():
        inner = _object(field)
        if inner is not None and not _is_shared(name, field):
            section = _section(f"{path}.{name}", field)
            yield f"### {section}"
            yield ""
            yield _text(field)
            yield ""
            yield from _tables(inner, section, _at(example, name))


def _object(field: Schema) -> Schema | None:
    """The object with fields of its own that this field is, or is a list of."""
    inner: Schema = field["items"] if field.get("type") == "array" else field
    return inner if inner.get("properties") else None


def _section(path: str, field: Schema) -> str:
    return f"{path}[]" if field.get("type") == "array" else path


def _slug(section: str) -> str:
    """The anchor that both GitHub and the site give the heading."""
    return section.lower().replace(".", "").replace("[]", "")


def _at(example: Any, name: str) -> Any:
    """The field's value in an example; of a list, the first element's that has it."""
    some = example if isinstance(example, list) else [example]
    return next((one[name] for one in some if isinstance(one, dict) and name in one), None)


def _example(field: Schema, value: Any) -> str:
    """The value of a field that is no object, on one line."""
    if value is None or value == field.get("default") or _object(field) is not None:
        return ""
    text = (
        yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
        .removesuffix("...\n")
        .strip()
    )
    return f" Example: `{text}`." if len(text) <= LONGEST_EXAMPLE else ""


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


def main(examples: str, docs: str) -> None:
    for path, text in pages(Path(examples)).items():
        file = Path(docs, path)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
