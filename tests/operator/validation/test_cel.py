"""The CRDs' rules, and Kubernetes' extensions of CEL for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from millstream_harness.tiers import ROOT
from millstream_operator.validation import cel
from millstream_operator.validation.admission import refusal
from millstream_operator.validation.cel import CelError, as_read, compile_rule, fields_read
from millstream_operator.validation.schema import crd_schemas, with_defaults


def rules(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (rule["rule"] for rule in node.get("x-kubernetes-validations", ()))
        for value in node.values():
            yield from rules(value)
    elif isinstance(node, list):
        for value in node:
            yield from rules(value)


def test_every_rule_of_every_crd_is_understood() -> None:
    found = [rule for schema in crd_schemas().values() for rule in rules(schema)]
    assert len(found) > 20
    for rule in found:
        compile_rule(rule)


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self == 'a' || self == 'b'", "b", True),
        ("!(self in ['.', '..'])", "..", False),
        ("has(self.a) != has(self.b)", {"a": 1}, True),
        ("has(self.a) != has(self.b)", {}, False),
        ("has(self.a.b)", {"a": {"b": None}}, True),
        ("!has(self.a) || self.a.size() > 2", {"a": [1, 2]}, False),
        ("(has(self.a) ? self.a : self.b) == 1", {"b": 1}, True),
        ("self.all(a, self.exists_one(b, b.p == a.p))", [{"p": 1}, {"p": 2}], True),
        ("self.all(a, self.exists_one(b, b.p == a.p))", [{"p": 1}, {"p": 1}], False),
        ("self.filter(l, l.t == 'x').size() == 1", [{"t": "x"}, {"t": "y"}], True),
        ("self.map(x, x * 2 + 1) == [3, 5]", [1, 2], True),
        ("quantity(string(self)).isGreaterThan(quantity('0'))", "500m", True),
        ("quantity(string(self)).compareTo(quantity('1Gi')) >= 0", "1000Mi", False),
        ("self.startsWith('/') && self.matches('^/[a-z]+$')", "/lake", True),
        ("self[0] - 1 < 5 && -self[1] == 3", [2, -3], True),
        ('self == "it\'s" ', "it's", True),
        ("true || self.missing", {}, True),
    ],
)
def test_rules(rule: str, value: Any, holds: bool) -> None:
    assert compile_rule(rule)({"self": value}) is holds


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ("(self.type == 'cluster') != has(self.name)", {"type": True, "name": False}),
        ("!has(self.a) || self.a.size() > 2", {"a": True}),
        ("has(self.a.b) && has(self.c)", {"a": True, "c": False}),
        ("has(self.a) == has(oldSelf.a)", {"a": False}),
        ("self == oldSelf", None),
        ("has(self.a) && self.size() == 1", None),
        ("has(self.a) && self['b'] == 1", None),
        ("has(self.a) && self.all(key, key != 'b')", None),
        ("!('memory' in self)", None),
        ("quantity(string(self)).isGreaterThan(quantity('0'))", None),
    ],
)
def test_fields_that_a_rule_reads(rule: str, read: dict[str, bool] | None) -> None:
    assert fields_read(rule) == read


def objects(value: Any, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a resource, and the same without each of its fields, with each rule for it."""
    if isinstance(value, dict):
        for rule in schema.get("x-kubernetes-validations", ()):
            yield rule["rule"], value
            for name in value:
                yield rule["rule"], {key: item for key, item in value.items() if key != name}
        for name, item in value.items():
            yield from objects(item, schema.get("properties", {}).get(name, {}))
    elif isinstance(value, list):
        for item in value:
            yield from objects(item, schema.get("items", {}))


def outcome(rule: str, value: Any) -> bool | str:
    try:
        return compile_rule(rule)({"self": value})
    except CelError as error:
        return f"{error}"


def test_what_a_rule_does_not_read_does_not_matter() -> None:
    tried = set()
    for kind, schema in crd_schemas().items():
        text = (ROOT / f"examples/resources/{kind.lower()}.yaml").read_text()
        for manifest in yaml.safe_load_all(text):
            for rule, value in objects(with_defaults(manifest, schema), schema):
                if "oldSelf" not in rule and (read := as_read(rule, value)) != value:
                    assert outcome(rule, read) == outcome(rule, value), (rule, value)
                    tried.add(rule)
    assert len(tried) > 20


def test_resources_that_differ_in_names_share_the_evaluation_of_rules() -> None:
    def user(name: str) -> dict[str, Any]:
        resource = {"type": "topic", "name": name, "patternType": "prefix"}
        rules = {"type": "Simple", "acls": [{"resource": resource, "operations": ["Read"]}]}
        spec = {
            "clusterRef": {"name": "c"},
            "authorization": rules,
            "quotas": {"producerByteRate": len(name)},
        }
        return {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "User",
            "metadata": {"name": name},
            "spec": spec,
        }

    assert refusal("User", user("u")) == ""
    before = cel._holds.cache_info().misses
    for number in range(100):
        assert refusal("User", user(f"user-{number}")) == ""
    evaluated = cel._holds.cache_info().misses - before
    assert evaluated == 100, "one rule reads the name; those for rules and references do not"


@pytest.mark.parametrize("rule", ["self.x(", "self ==", "self @ 1", "self self"])
def test_what_is_not_understood_is_refused(rule: str) -> None:
    with pytest.raises(CelError):
        compile_rule(rule)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.missing == 1", {}),
        ("self < 'a'", 1),
        ("other", 1),
        ("frobnicate(self)", 1),
        ("self.fold(a, b)", 1),
    ],
)
def test_a_rule_that_does_not_fit_the_value(rule: str, value: Any) -> None:
    with pytest.raises(CelError):
        compile_rule(rule)({"self": value})
