"""The CRDs' rules, and Kubernetes' extensions of CEL for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream_operator.validation.cel import CelError, compile_rule
from millstream_operator.validation.schema import crd_schemas


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
