"""CRDs and records agree, chart and operator have the same CRDs, and each field has a description."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from millstream_harness.specs import manifest
from millstream_operator.models import (
    KINDS,
    Cluster,
    ConsumerGroup,
    MirrorMaker,
    MirrorPatterns,
    Resource,
    Topic,
)
from millstream_operator.models.base import Metadata
from millstream_operator.validation.admission import WAIVED, refusal
from millstream_operator.validation.pattern_words import WORDS, in_words
from millstream_operator.validation.schema import crd_schemas, validate, with_defaults

ROOT = Path(__file__).resolve().parents[3]


def _crd_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        yield crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


CRDS = list(_crd_schemas())


def differences(path: str, schema: dict[str, Any], kind: Any, *, defaults: bool) -> Iterator[str]:
    """Where a schema and a record type name other fields, requirements, choices or defaults."""
    kind = bare(kind)
    if path.endswith(".template"):
        return  # written from the record
    if schema.get("type") == "array":
        yield from differences(f"{path}[]", schema["items"], typing.get_args(kind)[0], defaults=defaults)
        return
    if typing.get_origin(kind) is typing.Literal and sorted(map(str, typing.get_args(kind))) != sorted(
        map(str, schema.get("enum", ()))
    ):
        yield f"{path}: choices {typing.get_args(kind)} and {schema.get('enum')}"
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    if set(fields) != set(schema["properties"]):
        yield f"{path}: fields {sorted(set(fields) ^ set(schema['properties']))} only on one side"
        return
    required = set(schema.get("required", ()))
    for name, field in fields.items():
        inner = schema["properties"][name]
        if (name in required) != field.required:
            yield f"{path}.{name}: required only on one side"
        value = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            value = msgspec.to_builtins(field.default_factory())
        if (
            defaults
            and not isinstance(value, dict)
            and value not in (None, ())
            and inner.get("default") != value
        ):
            yield f"{path}.{name}: defaults {inner.get('default')} and {value}"
        if defaults and "default" in inner and inner["default"] not in ({}, []) and value in (None, ()):
            yield f"{path}.{name}: default {inner['default']} only in the CRD"
        yield from differences(f"{path}.{name}", inner, field.type, defaults=defaults)


def bare(kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Annotated:
        return bare(typing.get_args(kind)[0])
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    return bare(options[0]) if type(None) in typing.get_args(kind) and len(options) == 1 else kind


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_the_crd_and_the_record_agree(kind: str, schema: dict[str, Any]) -> None:
    record: type[Resource] = KINDS[kind]
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(record)}
    assert (
        list(
            itertools.chain(
                differences("spec", schema["properties"]["spec"], fields["spec"], defaults=True),
                differences("status", schema["properties"]["status"], fields["status"], defaults=False),
            )
        )
        == []
    )


def records(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """A record's type and those inside it."""
    kind = bare(kind)
    if isinstance(origin := typing.get_origin(kind) or kind, type) and issubclass(origin, msgspec.Struct):
        yield origin
        for field in msgspec.structs.fields(kind):
            yield from records(field.type)
    else:
        for argument in typing.get_args(kind):
            yield from records(argument)


def test_only_the_crd_has_the_rules_of_a_resource() -> None:
    """A record has types; pods' have the bounds that are written into the CRDs; and one rule no CRD can say."""
    specs = {one for kind in (Cluster, Topic, ConsumerGroup, MirrorMaker) for one in records(kind)}
    own = {one for one in specs if hasattr(one, "__post_init__")}
    assert own == {MirrorPatterns}
    bounded = {
        one
        for one in specs
        if one.__module__ not in ("millstream_operator.models.pods", "millstream_operator.models.workload")
        and one is not Metadata
        and any(
            value is not None
            for field in msgspec.structs.fields(one)
            for meta in getattr(field.type, "__metadata__", ())
            for value in (meta.ge, meta.le, meta.pattern, meta.min_length, meta.max_length)
        )
    }
    assert bounded == set()


def test_rules_that_are_waived_are_in_the_crd_and_new_resources_must_meet_them() -> None:
    spec = dict(CRDS)["Cluster"]["properties"]["spec"]["properties"]
    rules = {rule["rule"] for rule in spec["listeners"]["items"]["x-kubernetes-validations"]}
    assert rules >= WAIVED
    inside = {"name": "internal", "type": "Internal", "port": 9091}
    outside = {"name": "outside", "type": "NodePort", "port": 9094}
    stored = manifest("Cluster", {"listeners": [inside, outside]})
    assert refusal("Cluster", stored) == ""
    schema = dict(CRDS)["Cluster"]
    said = {problem.path for problem in validate(with_defaults(stored, schema), schema)}
    assert said == {"spec.listeners[0]", "spec.listeners[1]"}


@pytest.mark.parametrize("copy", ["charts/millstream/crds", "operator/src/millstream_operator/crds"])
def test_chart_and_operator_have_the_same_crds(copy: str) -> None:
    ours = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    copies = {path.name: path.read_text() for path in (ROOT / copy).glob("*.yaml")}
    assert copies == ours, "copy them: make definitions"


# What Kubernetes knows of a schema's node (JSONSchemaProps of apiextensions.k8s.io/v1) and we use.
SCHEMA_KEYS = {
    *("additionalProperties", "anyOf", "default", "description", "enum", "format", "items", "maxItems"),
    *("maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum"),
    *(
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
    ),
    *("x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"),
}


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_every_node_of_a_schema_has_known_keys_only(kind: str, schema: dict[str, Any]) -> None:
    """An unquoted comma in `{description: Why, in words.}` makes a key of what comes after it."""

    def unknown(path: str, node: dict[str, Any]) -> Iterator[str]:
        yield from (f"{path}: {key!r}" for key in node.keys() - SCHEMA_KEYS)
        yield from (
            f"{path}: {key!r} of a rule"
            for rule in node.get("x-kubernetes-validations", ())
            for key in rule.keys() - {"rule", "message"}
        )
        if "description" in node and not node["description"].endswith("."):
            yield f"{path}: the description {node['description']!r} does not end with a full stop"
        for name, inner in node.get("properties", {}).items():
            yield from unknown(f"{path}.{name}", inner)
        for name in ("items", "additionalProperties"):
            if isinstance(node.get(name), dict):
                yield from unknown(f"{path}[]", node[name])
        for inner in node.get("anyOf", ()):
            yield from unknown(f"{path}|", inner)

    assert list(unknown("", schema)) == []


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "crds").glob("*.yaml")))
def test_a_definition_has_known_keys_only_outside_its_schema_too(file: str) -> None:
    crd = yaml.safe_load((ROOT / "crds" / file).read_text())
    (version,) = crd["spec"]["versions"]
    assert crd["spec"].keys() == {"group", "scope", "names", "versions"}
    assert version.keys() <= {
        *("name", "served", "storage", "subresources", "additionalPrinterColumns", "schema")
    }
    for column in version["additionalPrinterColumns"]:
        assert column.keys() <= {"name", "type", "jsonPath", "description", "priority"}, column


@pytest.mark.parametrize(("kind", "schema"), CRDS, ids=[kind for kind, _ in CRDS])
def test_every_field_is_described(kind: str, schema: dict[str, Any]) -> None:
    def undescribed(path: str, node: dict[str, Any]) -> Iterator[str]:
        for name, inner in node.get("properties", {}).items():
            if not inner.get("description"):
                yield f"{path}.{name}"
            yield from undescribed(f"{path}.{name}", inner)
        if "items" in node:
            yield from undescribed(f"{path}[]", node["items"])

    assert [p for part in ("spec", "status") for p in undescribed(part, schema["properties"][part])] == []


def test_every_pattern_of_the_crds_is_shown_in_words_or_short() -> None:
    """A pattern in a message helps nobody; short ones that are named by their field are left."""

    def patterns(schema: object) -> Iterator[str]:
        if isinstance(schema, dict):
            if isinstance(schema.get("pattern"), str):
                yield schema["pattern"]
            for inner in schema.values():
                yield from patterns(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from patterns(inner)

    found = set(patterns(crd_schemas()))
    without = {one for one in found if in_words(one).startswith("text that matches")}
    assert len(without) <= 10, without
    assert {one for one in WORDS if one not in found} == set(), "words for a pattern that no CRD has"
